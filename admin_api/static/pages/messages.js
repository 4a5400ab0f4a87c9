// Finds messages by key, by id, by time; and shows one: its body as text, JSON or hex, its properties, who consumed it, its
// trace, and sending it again.

import { withQuery } from "/static/api.js";
import { Actions, Button, Facts, Form, Notice, Panel, Table } from "/static/components.js";
import { pick, useAnswers, usePieces } from "/static/data.js";
import { askForm, makeChange } from "/static/dialogs.js";
import { bytes, clock, count, duration, toInputTime } from "/static/format.js";
import { html } from "/static/markup.js";
import { sendTest } from "/static/pages/topics.js";
import { useState } from "/static/vendor/preact/hooks.mjs";

const HOUR_MS = 3_600_000;

const messageAddress = ({ id, topic }) => withQuery(`#/messages/${encodeURIComponent(id)}`, { topic });

export const MESSAGE_COLUMNS = [
  { title: "Message", read: (row) => row.uniqueKey ?? row.id, link: messageAddress },
  { title: "Keys", read: (row) => row.keys.join(" ") || "–" },
  { title: "Tag", read: (row) => row.tags ?? "–" },
  { title: "Stored", isPlain: true, read: (row) => clock(row.storedAtMs, Date.now()), sort: (row) => row.storedAtMs },
  { title: "Queue", read: (row) => `${row.brokerName ?? "unknown"}/${row.queueId} at ${count(row.queueOffset)}` },
  { title: "Size", isNumber: true, read: (row) => bytes(row.storedBytes) },
  { title: "Body", isText: true, read: (row) => row.preview?.replace(/\s+/g, " ") ?? "no text" },
];

export function MessagesPage({ query }) {
  const [fields] = useState(() => finderFields(query.get("topic") ?? ""));
  const { items, cursor, notice, start, more } = usePieces();
  const search = (values) => start(withQuery("/api/v1/messages", values));
  const openMessage = (values) => { location.hash = messageAddress(values); };
  return html`
    <div class="messages">
      <div class="finders">
        <${Finder} title="By key" fields=${fields.key} onSubmit=${search} />
        <${Finder} title="By time" fields=${fields.time} onSubmit=${search} />
        <${Finder} title="By id" fields=${fields.id} onSubmit=${openMessage} />
        <${Finder} title="Send a test message" fields=${fields.send} onSubmit=${({ topic }) => sendTest(topic)} verb="Write it…" />
      </div>
      <${Notice} notice=${notice} />
      ${items && html`
        <${Table} label="Messages found" columns=${MESSAGE_COLUMNS} keyOf=${(row) => row.id} rows=${items} empty="No message found." />`}
      ${cursor !== null && html`<${Button} onClick=${more}>More<//>`}
    </div>`;
}

function finderFields(topic) {
  const topicField = { name: "topic", title: "Topic", required: true, value: topic };
  const timeField = (name, title, ms) => ({ name, title, type: "time", value: toInputTime(ms), required: true });
  return {
    key: [topicField, { name: "key", title: "Key", required: true }],
    time: [topicField, timeField("from", "From", Date.now() - HOUR_MS), timeField("to", "To", Date.now() + HOUR_MS)],
    id: [{ ...topicField, required: false }, { name: "id", title: "Message id", required: true }],
    send: [topicField],
  };
}

function Finder({ title, fields, onSubmit, verb = "Find" }) {
  const id = `finder-${title.toLowerCase().replaceAll(" ", "-")}`;
  return html`
    <${Panel} title=${title}>
      <${Form} id=${id} label=${title} fields=${fields} onSubmit=${onSubmit} />
      <div class="actions"><button type="submit" form=${id} class="button strong">${verb}</button></div>
    <//>`;
}

const FORMATS = [{
  name: "format", title: "Shown as", type: "select",
  options: [["auto", "as it is"], ["text", "text"], ["json", "JSON"], ["hex", "hex"], ["base64", "base64"]],
}];
const STATES = {
  consumed: "✓ consumed", filtered: "– left out by its filter", notYet: "… not yet", offline: "○ not yet, no consumer is connected", unknown: null,
};
const CONSUMED_BY = [
  { title: "Group", read: (row) => row.group, link: (row) => `#/groups/${encodeURIComponent(row.group)}` },
  { title: "State", read: (row) => STATES[row.state] ?? null },
  { title: "Its offset", isNumber: true, read: (row) => count(row.offset) },
  { title: "Remark", isText: true, read: (row) => row.problem ?? "–" },
];
const TRACE = [
  { title: "What", read: (row) => row.kind },
  { title: "When", read: (row) => clock(row.atMs, Date.now()) },
  { title: "Took", isNumber: true, read: (row) => duration(row.costMs) },
  { title: "Outcome", read: (row) => (row.isSuccess === null ? null : row.isSuccess ? "✓ success" : `✕ ${row.status ?? "failed"}`) },
  { title: "Group", read: (row) => row.group },
  { title: "Client", read: (row) => row.clientHost },
];

export function MessagePage({ subject: id, query }) {
  const topic = query.get("topic");
  const [format, setFormat] = useState("auto");
  const path = `/api/v1/messages/${encodeURIComponent(id)}`;
  const paths = {
    message: withQuery(path, { topic, bodyFormat: format }),
    track: withQuery(`${path}/track`, { topic }),
    trace: withQuery(`${path}/trace`, { topic }),
  };
  const { answers: { message, track, trace }, notice } = useAnswers(paths, { optional: ["track", "trace"] });
  return html`
    <div class="one">
      <${Actions}><${Button} onClick=${() => sendAgain(path, message?.topic ?? topic)}>Send it again…<//><//>
      <${Notice} notice=${notice} />
      <${Facts} facts=${message && factsOf(message)} />
      <${Panel} title="Body">
        <${Form} label="Body" fields=${FORMATS} isInline=${true} onInput=${(values) => setFormat(values.format)} />
        <p class="hint">${message && sayBody(message.body)}</p>
        <pre class="body" tabindex="0">${message?.body.content}</pre>
      <//>
      <${Panel} title="Properties"><${Facts} facts=${message && Object.entries(message.properties).sort()} /><//>
      <${Panel} title="Consumed by">
        <${Table} label="Consumed by" columns=${CONSUMED_BY} keyOf=${(row) => row.group}
          rows=${pick(track, (answer) => answer.items)} empty="No group consumes the topic." />
      <//>
      <${Panel} title="Trace">
        <${Table} label="Trace" columns=${TRACE} keyOf=${(row) => `${row.kind}${row.atMs}${row.group}${row.clientHost}`}
          rows=${pick(trace, (answer) => answer.spans)} empty="No client has sent a trace of it." />
      <//>
    </div>`;
}

function factsOf(message) {
  return [
    ["Id", message.id],
    ["Client's id", message.uniqueKey ?? "none"],
    ["Topic", message.topic],
    ["Queue", `${message.brokerName ?? "unknown"}/${message.queueId} at ${count(message.queueOffset)}`],
    ["Keys", message.keys.join(" ") || "none"],
    ["Tag", message.tags ?? "none"],
    ["Born", clock(message.bornAtMs, Date.now())],
    ["Stored", clock(message.storedAtMs, Date.now())],
    ["From", message.bornHost],
    ["Consumed again", `${count(message.reconsumeTimes)} times`],
    ["Checksum", message.isCrcRight ? "✓ right" : "✕ the body is not what was sent"],
  ];
}

function sayBody(body) {
  const size = `${bytes(body.bodyBytes) ?? "an unknown number of bytes"}${body.compression ? `, ${body.compression}` : ""}`;
  return [size, body.isBodyCut ? "only its beginning is shown" : null, body.problem].filter(Boolean).join("; ");
}

async function sendAgain(path, topic) {
  const title = "Send the message again";
  const targets = [["topic", "its topic, as a new message for all groups"], ["consumer", "one consumer, now"]];
  const body = await askForm(title, [
    { name: "target", title: "To", type: "select", options: targets },
    { name: "consumerGroup", title: "Group (for one consumer)" },
    { name: "clientId", title: "Client (any when empty)" },
  ]);
  if (body !== null) await makeChange({ title, verb: "Send", method: "POST", path: withQuery(`${path}/resend`, { topic }), body });
}
