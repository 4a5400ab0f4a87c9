// Numbers and times as people read them. Pure: the present is an argument. null in, null out: the view says "unknown".

const COUNT = new Intl.NumberFormat("en");
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

export const count = (value) => (value === null ? null : COUNT.format(value));

/** The index of an entry; -1 is the word of a log for none. */
export const place = (index) => (index === -1 ? "none" : count(index));

export function bytes(value) {
  if (value === null) return null;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  let rest = value;
  while (rest >= 1024 && step < units.length - 1) {
    rest /= 1024;
    step += 1;
  }
  return `${rest >= 100 || step === 0 ? Math.round(rest) : rest.toFixed(1)}\u00a0${units[step]}`;
}

export function span(ms) {
  if (ms === null) return null;
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

export function clock(atMs, nowMs) {
  if (atMs === null) return null;
  const at = new Date(atMs);
  const isToday = at.toDateString() === new Date(nowMs).toDateString();
  return isToday ? CLOCK.format(at) : `${DAY.format(at)}, ${CLOCK.format(at)}`;
}

export function lag(entries, size) {
  if (entries === null) return null;
  if (entries === 0) return "none";
  const said = `${count(entries)} ${entries === 1 ? "entry" : "entries"}`;
  return size === null ? said : `${said}, ${bytes(size)}`;
}

/** A rate or a duration with as many digits as say something. */
export function amount(value) {
  if (value === null) return null;
  if (Math.abs(value) >= 100) return COUNT.format(Math.round(value));
  return COUNT.format(Math.round(value * 100) / 100);
}

/** How long something took, or how far behind it is. */
export function duration(ms) {
  if (ms === null) return null;
  if (ms === 0) return "none";
  if (ms < 1000) return `${amount(ms)}\u00a0ms`;
  if (ms < 60_000) return `${amount(Math.round(ms / 100) / 10)}\u00a0s`;
  return span(ms);
}

/** A time of an <input type="datetime-local"> in Unix ms, null when empty. */
export function inputTime(text) {
  const ms = new Date(text).getTime();
  return text === "" || Number.isNaN(ms) ? null : ms;
}

/** Unix ms for an <input type="datetime-local">, with seconds. */
export function toInputTime(ms) {
  const at = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return at.toISOString().slice(0, 19);
}

/** "none", "1 entry", "3 entries". */
export function counted(value, one, many = `${one}s`) {
  if (value === null) return null;
  return `${count(value)} ${value === 1 ? one : many}`;
}
