// One consumer group: how far it is in each queue, who consumes, and what can be done about its offsets.

import { withQuery } from "/static/api.js";
import { button, link, make, reconcile, setText } from "/static/dom.js";
import { amount, clock, count, duration } from "/static/format.js";
import { makeChange } from "/static/parts/change.js";
import { askForm } from "/static/parts/dialog.js";
import { createFacts } from "/static/parts/facts.js";
import { createForm } from "/static/parts/form.js";
import { createNotice } from "/static/parts/notice.js";
import { readParts, section } from "/static/parts/sections.js";
import { UNKNOWN, cell, createTable } from "/static/parts/table.js";
import { askClone, askReset, askSettings, askSkip } from "/static/views/group_changes.js";
import { showRunning } from "/static/views/group_member.js";
import { sayPresence } from "/static/views/groups.js";

const REFRESH_MS = 5000;
const QUEUES = [
  { title: "Queue", read: (row) => `${row.brokerName}/${row.queueId}`, sort: (row) => `${row.brokerName}/${row.queueId}` },
  { title: "Lag", isNumber: true, read: (row) => count(row.lag), sort: (row) => row.lag },
  { title: "Offset", isNumber: true, read: (row) => count(row.offset) },
  { title: "Next offset of the queue", isNumber: true, read: (row) => count(row.maxOffset) },
  { title: "Waiting for", isNumber: true, read: (row) => duration(row.delayMs), sort: (row) => row.delayMs },
  { title: "Last consumed", isPlain: true, read: (row) => clock(row.lastConsumedAtMs, Date.now()) },
  { title: "Consumer", read: (row) => row.clientId },
];
const yes = (value) => (value === null || value === undefined ? null : value ? "yes" : "no");

export function createView(name) {
  const path = `/api/v1/consumer-groups/${encodeURIComponent(name)}`;
  const notice = createNotice();
  const facts = createFacts();
  const topics = make("div", "topics");
  const nothing = make("p", "empty", "Loading…");
  const members = createTable({ label: "Consumers", columns: memberColumns(path), keyOf: (row) => row.clientId, empty: "Nobody is connected." });
  const wanted = createTable({
    label: "Subscriptions", keyOf: (row) => row.topic, empty: "Nothing is subscribed now.",
    columns: [
      { title: "Topic", read: (row) => cell(row.topic, () => link(row.topic, `#/topics/${encodeURIComponent(row.topic)}`)) },
      { title: "Filter", read: (row) => row.expression }, { title: "Kind", read: (row) => row.expressionType },
    ],
  });
  const settings = createTable({ label: "Settings by broker", columns: SETTINGS, keyOf: (row) => row.brokerName });
  let group = null;
  let progress = null;
  const parts = [
    { path, miss: () => [members, wanted, settings].forEach((table) => table.miss()), show(answer) {
      group = answer;
      facts.show(factsOf(answer));
      members.show(answer.members);
      wanted.show(answer.subscriptions);
      settings.show(answer.brokers);
    } },
    { path: `${path}/progress`, miss: () => progress === null && setText(nothing, UNKNOWN), show(answer) {
      progress = answer;
      nothing.hidden = (answer.topics ?? []).length > 0;
      setText(nothing, answer.topics === null ? UNKNOWN : "It has no offset in any topic.");
      reconcile(topics, answer.topics ?? [], (topic) => topic.topic, createTopic, updateTopic);
    } },
  ];
  const refresh = async (signal) => {
    if (await readParts(parts, notice, signal)) end();
  };
  /** Nothing of what is shown holds any more, nothing can be done to it, and nobody has to ask again. */
  const end = () => {
    view.refreshMs = 0;
    notice.ofGone(group === null && progress === null ? `There is no group ${name}.` : `The group ${name} is gone: no broker knows it any more.`);
    element.replaceChildren(notice.element, make("p", "actions",
      button("Look again", () => dispatchEvent(new HashChangeEvent("hashchange"))), link("All groups", "#/groups")));
  };
  const topicNames = () => (progress?.topics ?? []).map((topic) => topic.topic);
  const act = (work) => async () => {
    if (progress === null) await refresh();  // the forms offer its topics
    if (await work()) refresh();
  };
  const element = make("div", "one",
    make("div", "bar", make("div", "actions",
      button("Reset offsets…", act(() => askReset(path, name, topicNames())), "strong"),
      button("Skip what has accumulated…", act(() => askSkip(path, name, topicNames()))),
      button("Clone offsets…", act(() => askClone(path, name, topicNames()))),
      button("Settings…", act(() => askSettings(path, name, group))),
      link("Dead letters", `#/dlq/${encodeURIComponent(name)}`),
      button("Delete…", () => remove(path, name), "danger"))),
    notice.element, facts.element,
    section("Progress", nothing, topics), section("Consumers", members.element),
    section("Subscriptions", wanted.element), section("Settings", settings.element));
  const view = { title: `Group ${name}`, element, refresh, refreshMs: REFRESH_MS };
  return view;
}

const SETTINGS = [
  { title: "Broker", read: (row) => row.brokerName },
  { title: "Consumers get messages", read: (row) => (row.settings === null ? "not there" : yes(row.settings.consumeEnabled)) },
  { title: "Retries before the DLQ", isNumber: true, read: (row) => count(row.settings?.retryMaxTimes ?? null) },
  { title: "May broadcast", read: (row) => yes(row.settings?.consumeBroadcastEnabled) },
  { title: "POP in order", read: (row) => yes(row.settings?.isOrderly) },
];

function factsOf(group) {
  return [
    ["State", sayPresence(group.presence)],
    ["Lag", group.isBroadcast ? "kept by its consumers" : count(group.lag)],
    ["Consumers", count(group.memberCount)],
    ["Messages/s", amount(group.consumeTps)],
    ["Model", group.messageModel?.toLowerCase() ?? null],
    ["Queues without an offset", count(group.unknownQueues)],
    ["Popped, not acknowledged", count(group.popInFlight)],
    ["Settings alike on all brokers", yes(group.hasSameSettings)],
  ];
}

function memberColumns(path) {
  return [
    { title: "Client", read: (row) => row.clientId },
    { title: "Address", read: (row) => row.address },
    { title: "Language", read: (row) => row.language },
    { title: "Version", read: (row) => row.version },
    { title: "Doing", read: (row) => cell(row.clientId, () => button("What it does…", () => showRunning(path, row.clientId))) },
  ];
}

const tables = new WeakMap();

function createTopic(topic) {
  const table = createTable({ label: `Queues of ${topic.topic}`, columns: QUEUES, keyOf: (row) => `${row.brokerName}/${row.queueId}` });
  const made = make("details", "topic", make("summary", ""), table.element);
  made.open = true;
  tables.set(made, table);
  return made;
}

function updateTopic(part, topic) {
  setText(part.firstChild, `${topic.topic}: lag ${count(topic.lag) ?? "unknown"}${topic.isRetry ? " (retries)" : ""}`);
  tables.get(part).show(topic.queues);
}

async function remove(path, name) {
  const title = `Delete group ${name}`;
  const form = createForm([{ name: "withOffsets", title: "Forget its offsets too", type: "check", value: true, hint: "If not, a group of this name goes on where it was." }]);
  const values = await askForm(title, form, "Show what happens");
  if (values === null) return;
  if (await makeChange({ title, verb: "Delete", method: "DELETE", path: withQuery(path, values) })) location.hash = "#/groups";
}
