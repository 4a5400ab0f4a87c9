// What the pages show: answers that are read again and again, lists that are read piece by piece, and the event stream.

import { ask, follow, pause, withQuery } from "/static/api.js";
import { useEffect, useRef, useState } from "/static/vendor/preact/hooks.mjs";

/**
 * Calls `read(signal)` now, when an input changes, and `everyMs` after it has ended (null: not again), while the window is
 * visible. Gives a function that reads at once.
 */
export function usePolling(read, everyMs, inputs) {
  const [round, setRound] = useState(0);
  useEffect(() => {
    const end = new AbortController();
    poll(read, everyMs, end.signal);
    return () => end.abort();
  }, [...inputs, round]);
  return () => setRound((past) => past + 1);
}

async function poll(read, everyMs, signal) {
  while (!signal.aborted) {
    await untilVisible(signal);
    await read(signal);
    if (everyMs === null) return;
    await pause(everyMs, signal);
  }
}

function untilVisible(signal) {
  if (document.visibilityState === "visible") return null;
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true, signal });
  });
}

/**
 * Reads each of `paths` ({ name: path }) by itself, so that one that fails leaves the others; those in `optional` may fail
 * silently. Gives { answers, notice, isGone, refresh }: an answer is undefined before it is there, null when there was none
 * yet, and stays until a newer one comes. `isGone`: all that is not optional does not exist.
 */
export function useAnswers(paths, { everyMs = null, optional = [] } = {}) {
  const [answers, setAnswers] = useState({});
  const [state, setState] = useState({ notice: null, isGone: false });

  async function readOne(name, path, signal) {
    const isOptional = optional.includes(name);
    try {
      const answer = await ask(path, { signal });
      if (!signal.aborted) setAnswers((known) => ({ ...known, [name]: answer }));
      return { answer, isOptional };
    } catch (error) {
      if (!signal.aborted) setAnswers((known) => ({ [name]: null, ...known }));
      return { error, isOptional };
    }
  }

  async function readAll(signal) {
    const outcomes = await Promise.all(Object.entries(paths).map(([name, path]) => readOne(name, path, signal)));
    if (signal.aborted) return;
    const isGone = outcomes.every((one) => one.isOptional || one.error?.status === 404);
    setState({ notice: noticeOf(outcomes), isGone });
  }

  return { answers, ...state, refresh: usePolling(readAll, everyMs, Object.values(paths)) };
}

/** What is picked from an answer; undefined or null, as the answer, when there is none. */
export const pick = (answer, read) => (answer ? read(answer) : answer);

/** A list that is read piece by piece: { items, cursor, notice, start(path), more() }; `cursor` is null at its end. */
export function usePieces() {
  const [list, setList] = useState({ items: undefined, cursor: null, notice: null });
  const reading = useRef({ path: null, end: new AbortController() });

  async function read(path, cursor) {
    reading.current.end.abort();
    reading.current = { path, end: new AbortController() };
    const { signal } = reading.current.end;
    try {
      const answer = await ask(withQuery(path, { cursor }), { signal });
      const before = cursor === null ? [] : list.items;
      setList({ items: [...before, ...answer.items], cursor: answer.nextCursor ?? null, notice: noticeOf([{ answer }]) });
    } catch (error) {
      if (!signal.aborted) setList((known) => ({ ...known, items: known.items ?? null, notice: noticeOf([{ error }]) }));
    }
  }

  useEffect(() => () => reading.current.end.abort(), []);
  return { ...list, start: (path) => read(path, null), more: () => read(reading.current.path, list.cursor) };
}

/** What is wrong with answers: { text, items }, or null. `outcomes`: [{ answer | error, isOptional }]. */
function noticeOf(outcomes) {
  const failed = outcomes.filter((one) => one.error);
  if (outcomes.length === 1 && failed.length === 1) return { text: sayError(failed[0].error), items: [] };
  const problems = [
    ...failed.filter((one) => !one.isOptional).map((one) => sayError(one.error)),
    ...outcomes.flatMap((one) => one.answer?.problems ?? []).map(sayProblem),
  ];
  const items = [...new Set(problems)];
  const isPartial = outcomes.some((one) => (one.error ? !one.isOptional : one.answer.isPartial === true));
  if (failed.length === outcomes.length) return { text: "Nothing could be read.", items };
  if (isPartial) return { text: "This is a part only: not every broker answered.", items };
  return items.length > 0 ? { text: "Not all could be read.", items } : null;
}

/** RocketMQ's remarks have several lines. */
const oneLine = (text) => text.replace(/\s+/g, " ");

function sayProblem(problem) {
  if (typeof problem === "string") return oneLine(problem);
  const text = problem.problem ?? problem.detail ?? "no answer";
  const isNamed = problem.address === undefined || text.includes(problem.address);
  return oneLine(isNamed ? text : `${problem.address}: ${text}`);
}

export function sayError(error) {
  return error instanceof TypeError ? "The admin process cannot be reached." : oneLine(error.message);
}

let live = { cluster: null, heardAtMs: 0, isOpen: false, problem: null };
const listeners = new Set();

function setLive(change) {
  live = { ...live, ...change };
  for (const listener of listeners) listener(live);
}

/** Follows the event stream of the cluster, one for the page. */
export function startLive() {
  return follow("/api/v1/cluster/events", {
    open: () => setLive({ isOpen: true, problem: null }),
    event(name, data) {
      if (name === "cluster") setLive({ cluster: JSON.parse(data), heardAtMs: Date.now() });
      else if (name === "unchanged" && live.cluster !== null) {
        setLive({ cluster: { ...live.cluster, ...JSON.parse(data) }, heardAtMs: Date.now() });
      }
    },
    lost: (error) => setLive({ isOpen: false, problem: error }),
  }, new AbortController().signal);
}

/** { cluster, heardAtMs, isOpen, problem }: the last picture of the cluster (null before the first), and how old it is. */
export function useLive() {
  const [shown, setShown] = useState(live);
  useEffect(() => {
    setShown(live);
    listeners.add(setShown);
    return () => listeners.delete(setShown);
  }, []);
  return shown;
}
