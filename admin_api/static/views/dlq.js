// The dead letters of every group.

import { link } from "/static/dom.js";
import { clock, count, span } from "/static/format.js";
import { createList } from "/static/parts/list.js";
import { cell } from "/static/parts/table.js";

const REFRESH_MS = 10_000;

const COLUMNS = [
  { title: "Group", read: (row) => cell(row.group, () => link(row.group, `#/dlq/${encodeURIComponent(row.group)}`)), sort: (row) => row.group },
  { title: "Dead letters", isNumber: true, read: (row) => (row.isPartial && row.count !== null ? `at least ${count(row.count)}` : count(row.count)), sort: (row) => row.count },
  { title: "Oldest", isPlain: true, read: (row) => (row.count === 0 ? "–" : clock(row.oldestAtMs, Date.now())), sort: (row) => row.oldestAtMs },
  { title: "Age of the oldest", read: (row) => (row.count === 0 ? "–" : span(row.oldestAtMs === null ? null : Date.now() - row.oldestAtMs)) },
  { title: "Newest", isPlain: true, read: (row) => (row.count === 0 ? "–" : clock(row.newestAtMs, Date.now())), sort: (row) => row.newestAtMs },
];

export function createView() {
  const list = createList({
    path: "/api/v1/dlq",
    filterLabel: "Filter groups",
    filters: [{ name: "name", title: "Group contains", type: "search" }],
    intro: "Messages that a group could not consume, after all its retries.",
    table: { label: "Dead letters by group", columns: COLUMNS, keyOf: (row) => row.group, empty: "No group has dead letters.", sort: [1, "descending"] },
  });
  return { title: "Dead letters", element: list.element, refresh: list.refresh, refreshMs: REFRESH_MS };
}
