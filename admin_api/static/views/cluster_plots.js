// The last hour of one group: throughput, put latency, lag.

import { make } from "/static/dom.js";
import { amount, duration } from "/static/format.js";
import { createPlot } from "/static/parts/plot.js";

const GAP_INTERVALS = 3;
const time = (ms) => (ms === 0 ? "0" : duration(ms));

export function createGroupPlots() {
  const throughput = createPlot("Messages a second", amount);
  const latency = createPlot("Put latency (p99)", time);
  const lag = createPlot("Behind the leader by", time);
  const row = make("div", "plots", throughput.element, latency.element, lag.element);
  const note = make("p", "empty", "No sample yet: the first comes some seconds after the admin process started.");
  const element = make("section", "past", make("h3", "", "The last hour"), note, row);
  let version = 0;
  return {
    element,
    /** `ids`: of the members there are now. */
    update(past, isReplicated, ids) {
      note.hidden = past !== null;
      row.hidden = past === null;
      lag.element.hidden = !isReplicated;
      if (past === null || past.version === version) return;
      version = past.version;
      const samples = withGaps(past.samples);
      const times = samples.map((sample) => sample.atMs / 1000);
      const of = (name, read) => ({ name, values: samples.map((sample) => read(sample) ?? null) });
      throughput.show(times, [of("written", (one) => one.putPerS), of("consumed", (one) => one.getPerS)]);
      latency.show(times, [of("put", (one) => one.putP99Ms)]);
      const members = [...new Set([...ids, ...samples.flatMap((sample) => Object.keys(sample.lagMs ?? {}))])].sort();
      lag.show(times, members.map((id) => of(id, (one) => (one.leaderId === id ? 0 : one.lagMs?.[id]))));
    },
    close() {
      for (const plot of [throughput, latency, lag]) plot.close();
    },
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
