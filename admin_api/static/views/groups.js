// All consumer groups, those that are farthest behind first.

import { button, link } from "/static/dom.js";
import { amount, count } from "/static/format.js";
import { makeChange } from "/static/parts/change.js";
import { askForm } from "/static/parts/dialog.js";
import { createForm } from "/static/parts/form.js";
import { createList } from "/static/parts/list.js";
import { cell } from "/static/parts/table.js";

const REFRESH_MS = 5000;
const PRESENCE = { online: "● online", offline: "○ offline", unknown: "? unknown" };
export const sayPresence = (presence) => PRESENCE[presence] ?? presence;

const COLUMNS = [
  { title: "Group", read: (row) => cell(row.group, () => link(row.group, `#/groups/${encodeURIComponent(row.group)}`)) },
  { title: "Lag", isNumber: true, read: lagOf },
  { title: "Consumers", isNumber: true, read: (row) => count(row.members) },
  { title: "State", read: (row) => sayPresence(row.presence) },
  { title: "Model", read: (row) => row.messageModel?.toLowerCase() ?? null },
  { title: "Messages/s", isNumber: true, read: (row) => amount(row.consumeTps) },
  { title: "Allowed", read: (row) => (row.consumeEnabled === null ? "differs" : row.consumeEnabled ? "yes" : "✕ no") },
];

function lagOf(row) {
  if (row.messageModel === "BROADCASTING") return "kept by its consumers";
  if (row.lag === null) return null;
  return row.isLagPartial ? `at least ${count(row.lag)}` : count(row.lag);
}

export function createView() {
  const create = button("New group…", async () => {
    const form = createForm([
      { name: "group", title: "Name", required: true, pattern: "[%\\|a-zA-Z0-9_\\-]+" },
      { name: "retryMaxTimes", title: "Retries before the DLQ", type: "number", min: -1, value: 16 },
      { name: "consumeEnabled", title: "Its consumers get messages", type: "check", value: true },
    ]);
    const values = await askForm("New consumer group", form, "Show what happens");
    if (values === null) return;
    const { group, ...body } = values;
    const path = `/api/v1/consumer-groups/${encodeURIComponent(group)}`;
    if (await makeChange({ title: `Create group ${group}`, verb: "Create", method: "PUT", path, body })) list.refresh();
  }, "strong");
  const list = createList({
    path: "/api/v1/consumer-groups",
    actions: [create],
    filterLabel: "Filter groups",
    parameters: ({ order, ...rest }) => ({ ...rest, sort: order, descending: order !== "name" }),
    filters: [
      { name: "name", title: "Name contains", type: "search" },
      { name: "order", title: "Sorted by", type: "select", options: [["lag", "lag"], ["name", "name"], ["members", "consumers"], ["rate", "messages/s"]] },
      { name: "system", title: "RocketMQ's own too", type: "check" },
    ],
    table: { label: "Consumer groups", columns: COLUMNS, keyOf: (row) => row.group, empty: "No group matches." },
  });
  return { title: "Consumer groups", element: list.element, refresh: list.refresh, refreshMs: REFRESH_MS };
}
