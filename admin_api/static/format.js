// Numbers and times as people read them. Pure: the present is an argument. null in, null out: the view says "unknown".

const COUNT = new Intl.NumberFormat("en");
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

export const count = (value) => (value === null ? null : COUNT.format(value));

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
