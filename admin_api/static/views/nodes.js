// Every broker process: is it there, what does it carry, how full is its disk.

import { link } from "/static/dom.js";
import { amount, clock, count } from "/static/format.js";
import { createList } from "/static/parts/list.js";
import { cell } from "/static/parts/table.js";

const REFRESH_MS = 5000;
const STATES = { up: "✓ up", down: "✕ down", unknown: "? unknown" };
export const percent = (ratio) => (ratio === null ? null : `${amount(ratio * 100)} %`);
export const sayState = (row) => (row.problem && row.state !== "up" ? `${STATES[row.state]}: ${row.problem}` : STATES[row.state]);

const COLUMNS = [
  { title: "Address", isPlain: true, read: (row) => cell(row.address, () => link(row.address, `#/nodes/${encodeURIComponent(row.address)}`)) },
  { title: "State", isText: true, read: sayState },
  { title: "Broker", isPlain: true, read: (row) => row.brokerName },
  { title: "Node", isPlain: true, read: (row) => row.nodeId },
  { title: "Role", isPlain: true, read: (row) => row.role?.toLowerCase() ?? null },
  { title: "Takes writes", isPlain: true, read: (row) => (row.isWritable === null ? null : row.isWritable ? "yes" : "no") },
  { title: "In/s", isNumber: true, read: (row) => amount(row.putPerSecond) },
  { title: "Out/s", isNumber: true, read: (row) => amount(row.getPerSecond) },
  { title: "In today", isNumber: true, read: (row) => count(row.putToday) },
  { title: "Disk used", isNumber: true, read: (row) => percent(row.diskUsedRatio) },
  { title: "Version", isPlain: true, read: (row) => (row.version?.toLowerCase() === row.product ? row.version : [row.product, row.version].filter(Boolean).join(" ") || null) },
  { title: "Started", isPlain: true, read: (row) => clock(row.startedAtMs, Date.now()) },
];

export function createView() {
  const list = createList({
    path: "/api/v1/brokers",
    table: { label: "Nodes", columns: COLUMNS, keyOf: (row) => row.address, empty: "No broker is known." },
  });
  return { title: "Nodes", element: list.element, refresh: list.refresh, refreshMs: REFRESH_MS };
}
