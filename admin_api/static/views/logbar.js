// One node's log as a bar: what is committed, what is on its disk, what is only written, and where its readers are.

import { make, setAttribute, setText } from "/static/dom.js";
import { count } from "/static/format.js";

const TAIL_ENTRIES_MIN = 40;

/** The log marks that stand for a node: its own, or the last it gave before it fell silent. */
export const marksOf = (node) => (node.log.endIndex === null && node.lastKnown ? node.lastKnown.log : node.log);

/** First and last index of the bars of one group; the same for all its nodes, so that they can be compared. */
export function scaleOf(nodes, mode) {
  const logs = nodes.map(marksOf).filter((log) => log.endIndex !== null);
  if (logs.length === 0) return null;
  const last = Math.max(...logs.map((log) => log.endIndex));
  const begin = Math.min(...logs.map((log) => log.beginIndex ?? 0));
  if (mode === "whole") return { first: begin, last };
  const marks = logs.flatMap((log) => [log.endIndex, log.committedIndex, log.appliedIndex, log.persistedIndex]);
  const lowest = Math.min(...marks.filter((mark) => mark !== null));
  const length = Math.max(TAIL_ENTRIES_MIN, Math.ceil((last - lowest) * 1.25));
  return { first: Math.max(begin, last - length), last };
}

export function createLogBar() {
  const track = make("div", "track", make("span", "part written"), make("span", "part persisted"),
    make("span", "part committed"), make("span", "mark applied"));
  track.setAttribute("role", "img");
  return make("div", "logbar", track, make("div", "axis", make("span"), make("span")));
}

export function updateLogBar(bar, node, scale) {
  const log = marksOf(node);
  const isKnown = scale !== null && log.endIndex !== null;
  bar.classList.toggle("no-log", !isKnown);
  bar.classList.toggle("remembered", log !== node.log);
  const [track, axis] = bar.children;
  const [written, persisted, committed, applied] = track.children;
  setAttribute(track, "aria-label", isKnown ? spoken(log, log !== node.log) : "The log of this node is unknown");
  setText(axis.children[0], isKnown ? count(scale.first) : "");
  setText(axis.children[1], isKnown ? count(scale.last) : "");
  if (!isKnown) return;
  const begin = Math.max(log.beginIndex ?? scale.first, scale.first);
  place(written, begin, log.endIndex, scale);
  place(persisted, begin, log.persistedIndex, scale);
  place(committed, begin, log.committedIndex, scale);
  applied.hidden = log.appliedIndex === null;
  applied.style.setProperty("left", `${percent(log.appliedIndex ?? 0, scale)}%`);
}

function percent(index, scale) {
  const length = scale.last - scale.first + 1;
  return Math.min(100, Math.max(0, ((index + 1 - scale.first) / length) * 100));
}

function place(part, begin, end, scale) {
  part.hidden = end === null || end < begin;
  const from = percent(begin - 1, scale);
  part.style.setProperty("left", `${from}%`);
  part.style.setProperty("width", `${Math.max(0, percent(end ?? 0, scale) - from)}%`);
}

function spoken(log, isRemembered) {
  const of = (value) => (value === null ? "unknown" : count(value));
  return `${isRemembered ? "Last known log" : "Log"} from ${of(log.beginIndex)} to ${of(log.endIndex)}, `
    + `committed ${of(log.committedIndex)}, persisted ${of(log.persistedIndex)}, applied ${of(log.appliedIndex)}`;
}
