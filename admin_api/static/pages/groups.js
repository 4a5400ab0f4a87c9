// All consumer groups; and one: how far it is in each queue, who consumes, and what can be done about its offsets. Each
// change asks what is wanted, shows the effect on every queue, and then does it.

import { ask, withQuery } from "/static/api.js";
import { Actions, Button, Facts, List, Notice, Panel, Table, UNKNOWN } from "/static/components.js";
import { pick, useAnswers } from "/static/data.js";
import { askForm, makeChange, showDialog, showError } from "/static/dialogs.js";
import { amount, clock, count, duration, toInputTime } from "/static/format.js";
import { html } from "/static/markup.js";
import { useEffect, useState } from "/static/vendor/preact/hooks.mjs";

const REFRESH_MS = 5000;
const HOUR_MS = 3_600_000;
const PRESENCE = { online: "● online", offline: "○ offline", unknown: "? unknown" };
const NAME_PATTERN = "[%\\|a-zA-Z0-9_\\-]+";

const yes = (value) => (value === null || value === undefined ? null : value ? "yes" : "no");
const queueName = (row) => `${row.brokerName}/${row.queueId}`;
const sayPresence = (presence) => PRESENCE[presence] ?? presence;

const FILTERS = [
  { name: "name", title: "Name contains", type: "search" },
  { name: "order", title: "Sorted by", type: "select", options: [["lag", "lag"], ["name", "name"], ["members", "consumers"], ["rate", "messages/s"]] },
  { name: "system", title: "RocketMQ's own too", type: "check" },
];
const GROUPS = {
  label: "Consumer groups",
  keyOf: (row) => row.group,
  empty: "No group matches.",
  columns: [
    { title: "Group", read: (row) => row.group, link: (row) => `#/groups/${encodeURIComponent(row.group)}` },
    { title: "Lag", isNumber: true, read: sayLag },
    { title: "Consumers", isNumber: true, read: (row) => count(row.members) },
    { title: "State", read: (row) => sayPresence(row.presence) },
    { title: "Model", read: (row) => row.messageModel?.toLowerCase() ?? null },
    { title: "Messages/s", isNumber: true, read: (row) => amount(row.consumeTps) },
    { title: "Allowed", read: (row) => (row.consumeEnabled === null ? "differs" : row.consumeEnabled ? "yes" : "✕ no") },
  ],
};
const QUEUES = [
  { title: "Queue", read: queueName, sort: queueName },
  { title: "Lag", isNumber: true, read: (row) => count(row.lag), sort: (row) => row.lag },
  { title: "Offset", isNumber: true, read: (row) => count(row.offset) },
  { title: "Next offset of the queue", isNumber: true, read: (row) => count(row.maxOffset) },
  { title: "Waiting for", isNumber: true, read: (row) => duration(row.delayMs), sort: (row) => row.delayMs },
  { title: "Last consumed", isPlain: true, read: (row) => clock(row.lastConsumedAtMs, Date.now()) },
  { title: "Consumer", read: (row) => row.clientId },
];
const SUBSCRIPTIONS = [
  { title: "Topic", read: (row) => row.topic, link: (row) => `#/topics/${encodeURIComponent(row.topic)}` },
  { title: "Filter", read: (row) => row.expression },
  { title: "Kind", read: (row) => row.expressionType },
];
const SETTINGS = [
  { title: "Broker", read: (row) => row.brokerName },
  { title: "Consumers get messages", read: (row) => (row.settings === null ? "not there" : yes(row.settings.consumeEnabled)) },
  { title: "Retries before the DLQ", isNumber: true, read: (row) => count(row.settings?.retryMaxTimes ?? null) },
  { title: "May broadcast", read: (row) => yes(row.settings?.consumeBroadcastEnabled) },
  { title: "POP in order", read: (row) => yes(row.settings?.isOrderly) },
];
const MEMBER_QUEUES = [
  { title: "Queue", read: (row) => `${row.topic} ${queueName(row)}` },
  { title: "Got, not consumed", isNumber: true, read: (row) => count(row.cachedMessages ?? row.unacknowledged) },
  { title: "Offset", isNumber: true, read: (row) => count(row.commitOffset) },
  { title: "Last pull", read: (row) => clock(row.lastPullAtMs, Date.now()) },
  { title: "Last consumed", read: (row) => clock(row.lastConsumeAtMs, Date.now()) },
];
const MEMBER_SETTINGS = [
  { title: "Setting", read: ([name]) => name },
  { title: "Value", read: ([, value]) => value },
];
const MEMBER_RATES = [
  { title: "Topic", read: (row) => row.topic },
  { title: "Pulls/s", isNumber: true, read: (row) => amount(row.pullTps) },
  { title: "Consumed/s", isNumber: true, read: (row) => amount(row.consumeOkTps) },
  { title: "Failed/s", isNumber: true, read: (row) => amount(row.consumeFailedTps) },
  { title: "ms each", isNumber: true, read: (row) => amount(row.consumeMs) },
];

function sayLag(row) {
  if (row.messageModel === "BROADCASTING") return "kept by its consumers";
  if (row.lag === null) return null;
  return row.isLagPartial ? `at least ${count(row.lag)}` : count(row.lag);
}

export function GroupsPage() {
  const create = (refresh) => html`<${Button} kind="strong" onClick=${() => createGroup(refresh)}>New group…<//>`;
  const parameters = ({ order = "lag", ...rest }) => ({ ...rest, sort: order, descending: order !== "name" });
  return html`
    <${List} path="/api/v1/consumer-groups" everyMs=${REFRESH_MS} table=${GROUPS} actions=${create}
      filters=${FILTERS} filterLabel="Filter groups" parameters=${parameters} />`;
}

async function createGroup(onDone) {
  const values = await askForm("New consumer group", [
    { name: "group", title: "Name", required: true, pattern: NAME_PATTERN },
    { name: "retryMaxTimes", title: "Retries before the DLQ", type: "number", min: -1, value: 16 },
    { name: "consumeEnabled", title: "Its consumers get messages", type: "check", value: true },
  ]);
  if (values === null) return;
  const { group, ...body } = values;
  const path = `/api/v1/consumer-groups/${encodeURIComponent(group)}`;
  if (await makeChange({ title: `Create group ${group}`, verb: "Create", method: "PUT", path, body })) onDone();
}

/** A group that is gone takes its figures and actions with it, and is not asked for again. */
export function GroupPage({ subject: name }) {
  const [gone, setGone] = useState(null);
  if (gone === null) return html`<${Group} name=${name} onGone=${setGone} />`;
  const lookAgain = () => dispatchEvent(new HashChangeEvent("hashchange"));
  return html`
    <div class="one">
      <${Notice} notice=${{ text: gone, items: [] }} />
      <p class="actions"><${Button} onClick=${lookAgain}>Look again<//><a href="#/groups">All groups</a></p>
    </div>`;
}

function Group({ name, onGone }) {
  const path = `/api/v1/consumer-groups/${encodeURIComponent(name)}`;
  const paths = { group: path, progress: `${path}/progress` };
  const { answers: { group, progress }, notice, isGone, refresh } = useAnswers(paths, { everyMs: REFRESH_MS });
  useEffect(() => {
    const wasThere = group || progress;
    if (isGone) onGone(wasThere ? `The group ${name} is gone: no broker knows it any more.` : `There is no group ${name}.`);
  }, [isGone]);
  /** A change, whose form offers the topics that the group consumes. */
  const act = (change) => async () => {
    const known = progress ?? await ask(paths.progress).catch(() => null);
    const topics = (known?.topics ?? []).map((topic) => topic.topic);
    if (await change(path, name, topics)) refresh();
  };
  const changeSettings = () => askSettings(path, name, group);
  return html`
    <div class="one">
      <${Actions}>
        <${Button} kind="strong" onClick=${act(askReset)}>Reset offsets…<//>
        <${Button} onClick=${act(askSkip)}>Skip what has accumulated…<//>
        <${Button} onClick=${act(askClone)}>Clone offsets…<//>
        <${Button} onClick=${act(changeSettings)}>Settings…<//>
        <a href=${`#/dlq/${encodeURIComponent(name)}`}>Dead letters</a>
        <${Button} kind="danger" onClick=${() => deleteGroup(path, name)}>Delete…<//>
      <//>
      <${Notice} notice=${notice} />
      <${Facts} facts=${group && factsOf(group)} />
      <${Panel} title="Progress"><${Progress} topics=${pick(progress, (answer) => answer.topics)} /><//>
      <${Panel} title="Consumers">
        <${Table} label="Consumers" columns=${memberColumns(path)} keyOf=${(row) => row.clientId}
          rows=${pick(group, (answer) => answer.members)} empty="No consumer is connected." />
      <//>
      <${Panel} title="Subscriptions">
        <${Table} label="Subscriptions" columns=${SUBSCRIPTIONS} keyOf=${(row) => row.topic}
          rows=${pick(group, (answer) => answer.subscriptions)} empty="Nothing is subscribed now." />
      <//>
      <${Panel} title="Settings">
        <${Table} label="Settings by broker" columns=${SETTINGS} keyOf=${(row) => row.brokerName}
          rows=${pick(group, (answer) => answer.brokers)} />
      <//>
    </div>`;
}

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

/** topics: undefined while they are read, null when no broker answered. */
function Progress({ topics }) {
  if (!topics?.length) {
    const text = topics === undefined ? "Loading…" : topics === null ? UNKNOWN : "It has no offset in any topic.";
    return html`<p class="empty">${text}</p>`;
  }
  return html`
    <div class="topics">
      ${topics.map((topic) => html`
        <details class="topic" open=${true} key=${topic.topic}>
          <summary>${topic.topic}: lag ${count(topic.lag) ?? "unknown"}${topic.isRetry ? " (retries)" : ""}</summary>
          <${Table} label=${`Queues of ${topic.topic}`} columns=${QUEUES} keyOf=${queueName} rows=${topic.queues} />
        </details>`)}
    </div>`;
}

function memberColumns(path) {
  return [
    { title: "Client", read: (row) => row.clientId },
    { title: "Address", read: (row) => row.address },
    { title: "Language", read: (row) => row.language },
    { title: "Version", read: (row) => row.version },
    { title: "Doing", view: (row) => html`<${Button} onClick=${() => showMember(path, row.clientId)}>What it does…<//>` },
  ];
}

/** What one consumer says of itself. */
async function showMember(path, clientId) {
  const title = `Consumer ${clientId}`;
  try {
    const { properties, queues, rates, stack } = await ask(`${path}/members/${encodeURIComponent(clientId)}/running?stack=true`);
    await showDialog(title, html`
      <${Table} label="Its queues" columns=${MEMBER_QUEUES} keyOf=${(row) => `${row.topic}@${queueName(row)}/${row.isPop}`} rows=${queues} />
      <${Table} label="Its rates" columns=${MEMBER_RATES} keyOf=${(row) => row.topic} rows=${rates} />
      <${Table} label="Its settings" columns=${MEMBER_SETTINGS} keyOf=${([name]) => name} rows=${Object.entries(properties)} />
      <h3>What its threads do</h3>
      ${stack === null ? html`<p>It tells no stack.</p>` : html`<pre>${stack}</pre>`}`);
  } catch (error) {
    await showError(title, error);
  }
}

const topicField = (topics) => ({ name: "topic", title: "Topic", type: "select", options: topics });
const anyTopicField = (topics) => topicField([["", "all that it consumes"], ...topics]);

async function askReset(path, name, topics) {
  const title = `Reset the offsets of ${name}`;
  const places = [["latest", "behind the last message"], ["earliest", "the first message"], ["time", "a time"], ["offset", "an offset"]];
  const values = await askForm(title, [
    topics.length > 0 ? topicField(topics) : { name: "topic", title: "Topic", required: true },
    { name: "to", title: "Go on at", type: "select", options: places, value: "time" },
    {
      name: "timeMs", title: "Time (of this computer)", type: "time", value: toInputTime(Date.now() - HOUR_MS),
      required: true, isShown: ({ to }) => to === "time",
    },
    { name: "offset", title: "Offset", type: "number", min: 0, required: true, isShown: ({ to }) => to === "offset" },
  ]);
  if (values === null) return false;
  const { topic, to, timeMs, offset } = values;
  const body = { topic, to, ...(to === "time" ? { timeMs } : {}), ...(to === "offset" ? { offset } : {}) };
  return makeChange({ title, verb: "Reset", method: "POST", path: `${path}/offsets/reset`, body });
}

async function askSkip(path, name, topics) {
  const title = `Skip what has accumulated for ${name}`;
  const body = await askForm(title, [anyTopicField(topics)]);
  if (body === null) return false;
  return makeChange({ title, verb: "Skip", method: "POST", path: `${path}/offsets/skip`, body });
}

async function askClone(path, name, topics) {
  const title = `Clone the offsets of ${name}`;
  const target = { name: "targetGroup", title: "Group that gets them", required: true, pattern: NAME_PATTERN };
  const body = await askForm(title, [target, anyTopicField(topics)]);
  if (body === null) return false;
  return makeChange({ title, verb: "Clone", method: "POST", path: `${path}/offsets/clone`, body });
}

async function askSettings(path, name, group) {
  const now = group?.brokers.find((broker) => broker.settings !== null)?.settings ?? {};
  const title = `Settings of ${name}`;
  const values = await askForm(title, [
    { name: "consumeEnabled", title: "Its consumers get messages", type: "check", value: now.consumeEnabled },
    { name: "consumeBroadcastEnabled", title: "Its consumers may broadcast", type: "check", value: now.consumeBroadcastEnabled },
    { name: "isOrderly", title: "POP hands a queue out in order", type: "check", value: now.isOrderly },
    { name: "retryMaxTimes", title: "Retries before the DLQ", type: "number", min: -1, value: now.retryMaxTimes },
    { name: "retryQueues", title: "Queues of its retry topic", type: "number", min: 0, max: 1024, value: now.retryQueues },
  ]);
  if (values === null) return false;
  const body = Object.fromEntries(Object.entries(values).filter(([key, value]) => now[key] !== value));
  return makeChange({ title, verb: "Change", method: "PUT", path, body });
}

async function deleteGroup(path, name) {
  const title = `Delete group ${name}`;
  const hint = "If not, a group of this name goes on where it was.";
  const values = await askForm(title, [{ name: "withOffsets", title: "Forget its offsets too", type: "check", value: true, hint }]);
  if (values === null) return;
  if (await makeChange({ title, verb: "Delete", method: "DELETE", path: withQuery(path, values) })) location.hash = "#/groups";
}
