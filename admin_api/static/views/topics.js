// All topics.

import { button, link } from "/static/dom.js";
import { count } from "/static/format.js";
import { makeChange } from "/static/parts/change.js";
import { askForm } from "/static/parts/dialog.js";
import { createList } from "/static/parts/list.js";
import { cell } from "/static/parts/table.js";
import { newTopicForm } from "/static/views/topic_form.js";

const REFRESH_MS = 10_000;
export const access = (canRead, canWrite) => [canRead ? "read" : null, canWrite ? "write" : null].filter(Boolean).join(", ") || "✕ none";

const COLUMNS = [
  { title: "Topic", read: (row) => cell(row.name, () => link(row.name, `#/topics/${encodeURIComponent(row.name)}`)) },
  { title: "Kind", read: (row) => row.kind },
  { title: "Brokers", read: (row) => row.brokers.join(", ") },
  { title: "Queues (read/write)", isNumber: true, read: (row) => `${count(row.readQueues)} / ${count(row.writeQueues)}` },
  { title: "Allowed", read: (row) => access(row.canRead, row.canWrite) },
  { title: "Ordered", read: (row) => (row.isOrdered ? "yes" : "no") },
];

export function createView() {
  const create = button("New topic…", async () => {
    const form = newTopicForm();
    const body = await askForm("New topic", form, "Show what happens");
    if (body === null) return;
    if (await makeChange({ title: `Create topic ${body.name}`, verb: "Create", method: "POST", path: "/api/v1/topics", body })) list.refresh();
  }, "strong");
  const list = createList({
    path: "/api/v1/topics",
    actions: [create],
    filterLabel: "Filter topics",
    filters: [
      { name: "name", title: "Name contains", type: "search" },
      { name: "kind", title: "Kind", type: "select", options: [["", "all"], "normal", "retry", "dlq", "system"] },
    ],
    table: { label: "Topics", columns: COLUMNS, keyOf: (row) => row.name, empty: "No topic matches." },
  });
  return { title: "Topics", element: list.element, refresh: list.refresh, refreshMs: REFRESH_MS };
}
