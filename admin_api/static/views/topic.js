// One topic: how each broker keeps it, its queues, traffic, route, consumers.

import { withQuery } from "/static/api.js";
import { button, link, make, setText } from "/static/dom.js";
import { amount, bytes, clock, count, span } from "/static/format.js";
import { makeChange } from "/static/parts/change.js";
import { askForm } from "/static/parts/dialog.js";
import { createForm } from "/static/parts/form.js";
import { createNotice } from "/static/parts/notice.js";
import { cell, createTable } from "/static/parts/table.js";
import { readParts, section } from "/static/parts/sections.js";
import { access } from "/static/views/topics.js";
import { editTopicForm } from "/static/views/topic_form.js";

const REFRESH_MS = 5000;

const CONFIG = [
  { title: "Broker", read: (row) => row.brokerName },
  { title: "Queues (read/write)", isNumber: true, read: (row) => `${count(row.readQueues)} / ${count(row.writeQueues)}` },
  { title: "Allowed", read: (row) => access(row.canRead, row.canWrite) },
  { title: "Ordered", read: (row) => (row.isOrdered ? "yes" : "no") },
  { title: "Message type", read: (row) => row.messageType ?? "any" },
  { title: "Kept for", read: (row) => (row.retentionMs === null ? "as long as the log" : span(row.retentionMs)) },
];
const QUEUES = [
  { title: "Queue", read: (row) => `${row.brokerName}/${row.queueId}`, sort: (row) => `${row.brokerName}/${row.queueId}` },
  { title: "First offset", isNumber: true, read: (row) => count(row.minOffset) },
  { title: "Next offset", isNumber: true, read: (row) => count(row.maxOffset) },
  { title: "Messages", isNumber: true, read: (row) => count(row.messageCount), sort: (row) => row.messageCount },
  { title: "Last message", isPlain: true, read: (row) => (row.messageCount === 0 ? "–" : clock(row.lastMessageAtMs, Date.now())), sort: (row) => row.lastMessageAtMs },
];
const rate = (counts) => (counts === null ? null : `${amount(counts.perSecond)} /s`);
const STATS = [
  { title: "Who", read: (row) => row.who },
  { title: "Now", isNumber: true, read: (row) => rate(row.messages) },
  { title: "Last minute", isNumber: true, read: (row) => count(row.messages?.lastMinute ?? null) },
  { title: "Last hour", isNumber: true, read: (row) => count(row.messages?.lastHour ?? null) },
  { title: "Last day", isNumber: true, read: (row) => count(row.messages?.lastDay ?? null) },
  { title: "Bytes of the day", isNumber: true, read: (row) => bytes(row.bytes?.lastDay ?? null) },
];
const PRODUCERS = [
  { title: "Group", read: (row) => row.group },
  { title: "Client", read: (row) => row.clientId },
  { title: "Address", read: (row) => row.address },
  { title: "Language", read: (row) => row.language },
  { title: "Version", read: (row) => row.version },
];
const ROUTE = [
  { title: "Broker", read: (row) => row.brokerName },
  { title: "Cluster", read: (row) => row.cluster },
  { title: "Queues (read/write)", isNumber: true, read: (row) => `${count(row.readQueues) ?? "unknown"} / ${count(row.writeQueues) ?? "unknown"}` },
  { title: "Addresses", read: (row) => Object.entries(row.addresses).map(([id, at]) => `${id}: ${at}`).join(", ") },
];

export function createView(name) {
  const path = `/api/v1/topics/${encodeURIComponent(name)}`;
  const notice = createNotice();
  const kind = make("p", "intro");
  const configs = createTable({ label: "Configuration by broker", columns: CONFIG, keyOf: (row) => row.brokerName });
  const queues = createTable({ label: "Queues", columns: QUEUES, keyOf: (row) => `${row.brokerName}/${row.queueId}` });
  const stats = createTable({ label: "Traffic", columns: STATS, keyOf: (row) => row.who, empty: "Nothing was counted yet." });
  const route = createTable({ label: "Route", columns: ROUTE, keyOf: (row) => row.brokerName, empty: "Clients are sent nowhere." });
  const groups = createTable({
    label: "Consumer groups", columns: [{ title: "Group", read: (row) => cell(row, () => link(row, `#/groups/${encodeURIComponent(row)}`)) }], keyOf: (row) => row,
  });
  const producers = createTable({
    label: "Producers", columns: PRODUCERS, keyOf: (row) => `${row.group}@${row.clientId}`, empty: "Nobody is connected who may send.",
  });
  let newest = null;
  const parts = [
    { path, miss: () => [configs, groups].forEach((table) => table.miss()), show(topic) {
      newest = topic;
      setText(kind, `${topic.kind} topic`);
      configs.show(topic.configs);
      groups.show(topic.consumerGroups);
    } },
    { path: `${path}/queues`, miss: queues.miss, show: (answer) => queues.show(answer.queues) },
    { path: `${path}/stats`, miss: stats.miss, show: (answer) => stats.show(statsRows(answer)) },
    { path: withQuery("/api/v1/producer-groups", { topic: name }), isOptional: true, miss: producers.miss, show: (answer) => producers.show(producerRows(answer)) },
    { path: `${path}/route`, miss: route.miss, show: (answer) => route.show(answer.brokers) },
  ];
  const refresh = (signal) => readParts(parts, notice, signal);
  const element = make("div", "one",
    make("div", "bar", make("div", "actions",
      button("Edit…", () => edit(path, name, newest).then(() => refresh())),
      button("Send a test message…", () => sendTest(path, name)),
      link("Find messages", `#/messages?topic=${encodeURIComponent(name)}`),
      button("Delete…", () => remove(path, name), "danger"))),
    notice.element, kind,
    section("Configuration", configs.element), section("Queues", queues.element), section("Traffic", stats.element),
    section("Consumer groups", groups.element),
    section("Producers of its brokers", producers.element), section("Route", route.element));
  return { title: `Topic ${name}`, element, refresh, refreshMs: REFRESH_MS };
}

function statsRows(answer) {
  return [
    { who: "written", messages: answer.putMessages, bytes: answer.putBytes },
    ...(answer.groups ?? []).map((group) => ({ who: `read by ${group.group}`, messages: group.gotMessages, bytes: group.gotBytes })),
  ];
}

const producerRows = (answer) => answer.items.flatMap(({ group, clients }) => clients.map((client) => ({ ...client, group })));

async function edit(path, name, topic) {
  if (topic === null || topic.configs.length === 0) return;
  const body = await askForm(`Edit ${name}`, editTopicForm(topic.configs[0]), "Show what happens");
  if (body !== null) await makeChange({ title: `Edit ${name}`, verb: "Change", method: "PATCH", path, body });
}

async function remove(path, name) {
  if (await makeChange({ title: `Delete topic ${name}`, verb: "Delete", method: "DELETE", path })) location.hash = "#/topics";
}

export async function sendTest(path, name) {
  const form = createForm([
    { name: "text", title: "Body", type: "area", wide: true, value: "test" },
    { name: "keys", title: "Keys", hint: "Words, divided by spaces" },
    { name: "tags", title: "Tag" },
    { name: "delayLevel", title: "Delay level", type: "number", min: 1, max: 1000 },
  ]);
  const values = await askForm(`Send to ${name}`, form, "Show what happens");
  if (values === null) return;
  const body = { ...values, text: values.text ?? "", keys: (values.keys ?? "").split(/\s+/).filter(Boolean) };
  await makeChange({ title: `Send to ${name}`, verb: "Send", method: "POST", path: `${path}/messages`, body });
}
