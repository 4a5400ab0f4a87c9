// A plot of the last hour over uPlot. What is unknown is a gap. Lines differ by dash as well as by colour, and the newest
// values stand beside it as text.

import { make, reconcile, setAttribute, setText, setValue } from "/static/dom.js";
import uPlot from "/static/vendor/uplot/uPlot.esm.js";

const HEIGHT = 150;
const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3], [4, 2]];
const COLOURS = ["--accent", "--plot-2", "--plot-3", "--plot-4", "--plot-5"];
const SHOWN_S_MIN = 300;
const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DARK = matchMedia("(prefers-color-scheme: dark)");

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** `say(value)` is the text of a value; show(times in s, [{ name, values }]). */
export function createPlot(title, say) {
  const frame = make("div", "canvas");
  const values = make("ul", "plot-values");
  const element = make("figure", "plot", make("figcaption", "", title), frame, values);
  frame.setAttribute("role", "img");
  let chart = null;
  let shape = "";
  let shown = null;

  function draw() {
    const [times, series] = shown;
    const width = Math.floor(frame.clientWidth);
    if (width === 0) return;
    const wanted = [DARK.matches, width, ...series.map((one) => one.name)].join("|");
    const data = [times, ...series.map((one) => one.values)];
    if (wanted === shape) {
      chart.setData(data);
      return;
    }
    shape = wanted;
    chart?.destroy();
    chart = new uPlot(optionsOf(series, width, say), data, frame);
  }

  const observer = new ResizeObserver(() => shown && draw());
  observer.observe(frame);
  return {
    element,
    show(times, series) {
      shown = [times, series];
      draw();
      tell(frame, values, title, series, say);
    },
    close() {
      observer.disconnect();
      chart?.destroy();
    },
  };
}

function tell(frame, values, title, series, say) {
  const last = series.map((one) => [one.name, one.values.at(-1) ?? null]);
  reconcile(values, last, ([name]) => name, () => make("li", "", swatch(), make("span", "cut"), make("b")),
    (line, [name, value]) => {
      setAttribute(line.children[0], "class", dashOf(last.findIndex((one) => one[0] === name)));
      setText(line.children[1], `${name} `);
      setValue(line.children[2], value === null ? null : say(value));
    });
  const said = last.map(([name, value]) => `${name} ${value === null ? "unknown" : say(value)}`);
  setAttribute(frame, "aria-label", `${title} over the last hour; now ${said.join(", ") || "nothing measured yet"}`);
}

/** The line of the series at this place: one that came in between moves the others on. */
const dashOf = (place) => `dash dash-${place % DASHES.length}`;

function swatch() {
  const line = make("span");
  line.setAttribute("aria-hidden", "true");
  return line;
}

function optionsOf(series, width, say) {
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
    axes: [{ ...axis, size: 28, space: 60, incrs: [60, 300, 600, 900, 1200], values: (_, marks) => marks.map((mark) => TIME.format(mark * 1000)) }, { ...axis, size: 58, values: (_, marks) => marks.map((mark) => say(mark)) }],
    series: [{}, ...series.map((one, place) => ({
      label: one.name,
      stroke: colour(COLOURS[place % COLOURS.length]),
      dash: DASHES[place % DASHES.length],
      width: 1.75,
      spanGaps: false,
      points: { show: false },
    }))],
  };
}
