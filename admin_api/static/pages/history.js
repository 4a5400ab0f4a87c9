// The last hour of a group as the server sampled it: throughput, put latency, lag, as plots over uPlot. What is unknown is a
// gap. Lines differ by dash as well as by colour, and the newest values stand beside it as text.

import { ask, withQuery } from "/static/api.js";
import { usePolling } from "/static/data.js";
import { amount, duration } from "/static/format.js";
import { html } from "/static/markup.js";
import { useLayoutEffect, useMemo, useRef, useState } from "/static/vendor/preact/hooks.mjs";
import uPlot from "/static/vendor/uplot/uPlot.esm.js";

const REFRESH_MS = 5000;
const GAP_INTERVALS = 3;
const HEIGHT = 150;
const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3], [4, 2]];
const COLOURS = ["--accent", "--plot-2", "--plot-3", "--plot-4", "--plot-5"];
const SHOWN_S_MIN = 300;
const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DARK = matchMedia("(prefers-color-scheme: dark)");

/** Samples by broker name, kept up by asking only for what is new. */
export function useHistory() {
  const [history, setHistory] = useState({});
  const newestMs = useRef(null);
  usePolling(async (signal) => {
    try {
      const answer = await ask(withQuery("/api/v1/history", { sinceMs: newestMs.current }), { signal });
      const times = answer.groups.flatMap((group) => group.samples.map((sample) => sample.atMs));
      if (times.length > 0) newestMs.current = Math.max(newestMs.current ?? 0, ...times);
      setHistory((known) => withNewer(known, answer));
    } catch {
      // The plots stay as they are and end where they end; the head of the page says that the process does not answer.
    }
  }, REFRESH_MS, []);
  return history;
}

/** Samples that are known are not taken twice; a group without a new one keeps the array that it has. */
function withNewer(known, { groups, keepMs }) {
  const merged = { ...known };
  for (const { brokerName, samples } of groups) {
    const kept = known[brokerName] ?? [];
    const fresh = samples.filter((sample) => sample.atMs > (kept.at(-1)?.atMs ?? -1));
    if (fresh.length === 0) continue;
    const newest = fresh.at(-1).atMs;
    merged[brokerName] = [...kept, ...fresh].filter((sample) => sample.atMs > newest - keepMs);
  }
  return merged;
}

const sayTime = (ms) => (ms === 0 ? "0" : duration(ms));

/** samples: undefined while there are none. `ids`: of the members there are now. */
export function LastHour({ samples, ids, isReplicated }) {
  const plots = useMemo(() => samples && plotsOf(withGaps(samples), ids), [samples, ids.join()]);
  return html`
    <section class="past">
      <h3>The last hour</h3>
      ${plots === undefined
        ? html`<p class="empty">No sample yet: the first comes some seconds after the admin process started.</p>`
        : html`
          <div class="plots">
            <${Plot} title="Messages a second" say=${amount} ...${plots.throughput} />
            <${Plot} title="Put latency (p99)" say=${sayTime} ...${plots.latency} />
            ${isReplicated && html`<${Plot} title="Behind the leader by" say=${sayTime} ...${plots.lag} />`}
          </div>`}
    </section>`;
}

function plotsOf(samples, ids) {
  const times = samples.map((sample) => sample.atMs / 1000);
  const line = (name, read) => ({ name, values: samples.map((sample) => read(sample) ?? null) });
  const members = [...new Set([...ids, ...samples.flatMap((sample) => Object.keys(sample.lagMs ?? {}))])].sort();
  return {
    throughput: { times, lines: [line("written", (one) => one.putPerS), line("consumed", (one) => one.getPerS)] },
    latency: { times, lines: [line("put", (one) => one.putP99Ms)] },
    lag: { times, lines: members.map((id) => line(id, (one) => (one.leaderId === id ? 0 : one.lagMs?.[id]))) },
  };
}

/** While the admin process did not sample nothing is known: an empty sample breaks the line there. */
function withGaps(samples) {
  const steps = samples.slice(1).map((sample, place) => sample.atMs - samples[place].atMs).sort((a, b) => a - b);
  const usual = steps[Math.floor(steps.length / 2)] ?? 0;
  return samples.flatMap((sample, place) => {
    const before = samples[place - 1];
    const isGap = before !== undefined && sample.atMs - before.atMs > GAP_INTERVALS * usual;
    return isGap ? [{ atMs: before.atMs + usual }, sample] : [sample];
  });
}

/** `times` in seconds, `lines` [{ name, values }]; `say(value)` is the text of a value. */
function Plot({ title, say, times, lines }) {
  const frame = useChart(times, lines, say);
  const last = lines.map(({ name, values }) => [name, values.at(-1) ?? null]);
  const spoken = last.map(([name, value]) => `${name} ${value === null ? "unknown" : say(value)}`);
  const label = `${title} over the last hour; now ${spoken.join(", ") || "nothing measured yet"}`;
  return html`
    <figure class="plot">
      <figcaption>${title}</figcaption>
      <div class="canvas" role="img" aria-label=${label} ref=${frame} />
      <ul class="plot-values">
        ${last.map(([name, value], place) => html`
          <li key=${name}>
            <span aria-hidden="true" class=${`dash dash-${place % DASHES.length}`} /><span class="cut">${`${name} `}</span>
            <b class=${value === null ? "unknown" : null}>${value === null ? "unknown" : say(value)}</b>
          </li>`)}
      </ul>
    </figure>`;
}

/** Draws into the element that has the ref. A chart that differs by more than its values is a new one. */
function useChart(times, lines, say) {
  const frame = useRef(null);
  const chart = useRef({ plot: null, shape: "" });
  const draw = useRef(null);
  draw.current = () => {
    const width = Math.floor(frame.current.clientWidth);
    if (width === 0) return;
    const shape = [DARK.matches, width, ...lines.map((line) => line.name)].join("|");
    const data = [times, ...lines.map((line) => line.values)];
    if (shape === chart.current.shape) {
      chart.current.plot.setData(data);
      return;
    }
    chart.current.plot?.destroy();
    chart.current = { shape, plot: new uPlot(optionsOf(lines, width, say), data, frame.current) };
  };
  useLayoutEffect(() => draw.current(), [times, lines]);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => draw.current());
    observer.observe(frame.current);
    return () => {
      observer.disconnect();
      chart.current.plot?.destroy();
    };
  }, []);
  return frame;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function optionsOf(lines, width, say) {
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: { range: (_, first, last) => [Math.min(first, last - SHOWN_S_MIN), last] },
      y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1) * 1.1] },
    },
    axes: [
      { ...axis, size: 28, space: 60, incrs: [60, 300, 600, 900, 1200], values: (_, marks) => marks.map((mark) => TIME.format(mark * 1000)) },
      { ...axis, size: 58, values: (_, marks) => marks.map((mark) => say(mark)) },
    ],
    series: [{}, ...lines.map((line, place) => ({
      label: line.name,
      stroke: colour(COLOURS[place % COLOURS.length]),
      dash: DASHES[place % DASHES.length],
      width: 1.75,
      spanGaps: false,
      points: { show: false },
    }))],
  };
}
