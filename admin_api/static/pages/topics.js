// All topics; and one: how each broker keeps it, its queues, traffic, route, consumers.

import { withQuery } from "/static/api.js";
import { Actions, Button, List, Notice, Panel, Table } from "/static/components.js";
import { pick, useAnswers } from "/static/data.js";
import { askForm, makeChange } from "/static/dialogs.js";
import { amount, bytes, clock, count, span } from "/static/format.js";
import { html } from "/static/markup.js";

const LIST_REFRESH_MS = 10_000;
const REFRESH_MS = 5000;
const QUEUES_MAX = 65_536;

const allowed = (row) => [row.canRead ? "read" : null, row.canWrite ? "write" : null].filter(Boolean).join(", ") || "✕ none";
const isOrdered = (row) => (row.isOrdered ? "yes" : "no");
const queueCounts = (row) => `${count(row.readQueues) ?? "unknown"} / ${count(row.writeQueues) ?? "unknown"}`;
const rate = (counts) => (counts === null ? null : `${amount(counts.perSecond)} /s`);

const FILTERS = [
  { name: "name", title: "Name contains", type: "search" },
  { name: "kind", title: "Kind", type: "select", options: [["", "all"], "normal", "retry", "dlq", "system"] },
];
const TOPICS = {
  label: "Topics",
  keyOf: (row) => row.name,
  empty: "No topic matches.",
  columns: [
    { title: "Topic", read: (row) => row.name, link: (row) => `#/topics/${encodeURIComponent(row.name)}` },
    { title: "Kind", read: (row) => row.kind },
    { title: "Brokers", read: (row) => row.brokers.join(", ") },
    { title: "Queues (read/write)", isNumber: true, read: queueCounts },
    { title: "Allowed", read: allowed },
    { title: "Ordered", read: isOrdered },
  ],
};
const CONFIGS = [
  { title: "Broker", read: (row) => row.brokerName },
  { title: "Queues (read/write)", isNumber: true, read: queueCounts },
  { title: "Allowed", read: allowed },
  { title: "Ordered", read: isOrdered },
  { title: "Message type", read: (row) => row.messageType ?? "any" },
  { title: "Kept for", read: (row) => (row.retentionMs === null ? "as long as the log" : span(row.retentionMs)) },
];
const queueName = (row) => `${row.brokerName}/${row.queueId}`;
const QUEUES = [
  { title: "Queue", read: queueName, sort: queueName },
  { title: "First offset", isNumber: true, read: (row) => count(row.minOffset) },
  { title: "Next offset", isNumber: true, read: (row) => count(row.maxOffset) },
  { title: "Messages", isNumber: true, read: (row) => count(row.messageCount), sort: (row) => row.messageCount },
  {
    title: "Last message", isPlain: true, sort: (row) => row.lastMessageAtMs,
    read: (row) => (row.messageCount === 0 ? "–" : clock(row.lastMessageAtMs, Date.now())),
  },
];
const TRAFFIC = [
  { title: "Who", read: (row) => row.who },
  { title: "Now", isNumber: true, read: (row) => rate(row.messages) },
  { title: "Last minute", isNumber: true, read: (row) => count(row.messages?.lastMinute ?? null) },
  { title: "Last hour", isNumber: true, read: (row) => count(row.messages?.lastHour ?? null) },
  { title: "Last day", isNumber: true, read: (row) => count(row.messages?.lastDay ?? null) },
  { title: "Bytes of the day", isNumber: true, read: (row) => bytes(row.bytes?.lastDay ?? null) },
];
const GROUPS = [{ title: "Group", read: (row) => row, link: (row) => `#/groups/${encodeURIComponent(row)}` }];
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
  { title: "Queues (read/write)", isNumber: true, read: queueCounts },
  { title: "Addresses", read: (row) => Object.entries(row.addresses).map(([id, at]) => `${id}: ${at}`).join(", ") },
];

export function TopicsPage() {
  const create = (refresh) => html`<${Button} kind="strong" onClick=${() => createTopic(refresh)}>New topic…<//>`;
  return html`
    <${List} path="/api/v1/topics" everyMs=${LIST_REFRESH_MS} table=${TOPICS} actions=${create}
      filters=${FILTERS} filterLabel="Filter topics" />`;
}

export function TopicPage({ subject: name }) {
  const path = `/api/v1/topics/${encodeURIComponent(name)}`;
  const paths = {
    topic: path,
    queues: `${path}/queues`,
    stats: `${path}/stats`,
    producers: withQuery("/api/v1/producer-groups", { topic: name }),
    route: `${path}/route`,
  };
  const { answers, notice, refresh } = useAnswers(paths, { everyMs: REFRESH_MS, optional: ["producers"] });
  const { topic, queues, stats, producers, route } = answers;
  return html`
    <div class="one">
      <${Actions}>
        <${Button} onClick=${() => editTopic(path, name, topic).then(refresh)}>Edit…<//>
        <${Button} onClick=${() => sendTest(name)}>Send a test message…<//>
        <a href=${`#/messages?topic=${encodeURIComponent(name)}`}>Find messages</a>
        <${Button} kind="danger" onClick=${() => deleteTopic(path, name)}>Delete…<//>
      <//>
      <${Notice} notice=${notice} />
      <p class="intro">${topic && `${topic.kind} topic`}</p>
      <${Panel} title="Configuration">
        <${Table} label="Configuration by broker" columns=${CONFIGS} keyOf=${(row) => row.brokerName}
          rows=${pick(topic, (answer) => answer.configs)} />
      <//>
      <${Panel} title="Queues">
        <${Table} label="Queues" columns=${QUEUES} keyOf=${queueName} rows=${pick(queues, (answer) => answer.queues)} />
      <//>
      <${Panel} title="Traffic">
        <${Table} label="Traffic" columns=${TRAFFIC} keyOf=${(row) => row.who} rows=${pick(stats, trafficRows)}
          empty="Nothing was counted yet." />
      <//>
      <${Panel} title="Consumer groups">
        <${Table} label="Consumer groups" columns=${GROUPS} keyOf=${(row) => row}
          rows=${pick(topic, (answer) => answer.consumerGroups)} />
      <//>
      <${Panel} title="Producers of its brokers">
        <${Table} label="Producers" columns=${PRODUCERS} keyOf=${(row) => `${row.group}@${row.clientId}`}
          rows=${pick(producers, producerRows)} empty="No producer is connected." />
      <//>
      <${Panel} title="Route">
        <${Table} label="Route" columns=${ROUTE} keyOf=${(row) => row.brokerName}
          rows=${pick(route, (answer) => answer.brokers)} empty="Clients are sent nowhere." />
      <//>
    </div>`;
}

function trafficRows(answer) {
  return [
    { who: "written", messages: answer.putMessages, bytes: answer.putBytes },
    ...(answer.groups ?? []).map((group) => ({ who: `read by ${group.group}`, messages: group.gotMessages, bytes: group.gotBytes })),
  ];
}

const producerRows = (answer) => answer.items.flatMap(({ group, clients }) => clients.map((client) => ({ ...client, group })));

const topicFields = (now) => [
  { name: "readQueues", title: "Queues to read", type: "number", min: 1, max: QUEUES_MAX, value: now.readQueues },
  { name: "writeQueues", title: "Queues to write", type: "number", min: 1, max: QUEUES_MAX, value: now.writeQueues },
  { name: "canRead", title: "May be read", type: "check", value: now.canRead },
  { name: "canWrite", title: "May be written", type: "check", value: now.canWrite },
  { name: "isOrdered", title: "Ordered", type: "check", value: now.isOrdered },
];

async function createTopic(onDone) {
  const name = { name: "name", title: "Name", required: true, pattern: "[%\\|a-zA-Z0-9_+\\-]+", hint: "Letters, digits, % | _ + and -" };
  const usual = { readQueues: 8, writeQueues: 8, canRead: true, canWrite: true, isOrdered: false };
  const body = await askForm("New topic", [name, ...topicFields(usual)]);
  if (body === null) return;
  if (await makeChange({ title: `Create topic ${body.name}`, verb: "Create", method: "POST", path: "/api/v1/topics", body })) onDone();
}

/** What is not changed is not sent; "now" is how the first broker has it. */
async function editTopic(path, name, topic) {
  if (!topic || topic.configs.length === 0) return;
  const now = topic.configs[0];
  const values = await askForm(`Edit ${name}`, topicFields(now));
  if (values === null) return;
  const body = Object.fromEntries(Object.entries(values).filter(([key, value]) => now[key] !== value));
  await makeChange({ title: `Edit ${name}`, verb: "Change", method: "PATCH", path, body });
}

async function deleteTopic(path, name) {
  if (await makeChange({ title: `Delete topic ${name}`, verb: "Delete", method: "DELETE", path })) location.hash = "#/topics";
}

export async function sendTest(topic) {
  const title = `Send to ${topic}`;
  const values = await askForm(title, [
    { name: "text", title: "Body", type: "area", value: "test" },
    { name: "keys", title: "Keys", hint: "Words, divided by spaces" },
    { name: "tags", title: "Tag" },
    { name: "delayLevel", title: "Delay level", type: "number", min: 1, max: 1000 },
  ]);
  if (values === null) return;
  const path = `/api/v1/topics/${encodeURIComponent(topic)}/messages`;
  const body = { ...values, text: values.text ?? "", keys: (values.keys ?? "").split(/\s+/).filter(Boolean) };
  await makeChange({ title, verb: "Send", method: "POST", path, body });
}
