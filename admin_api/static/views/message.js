// One message: its body as text, JSON or hex, its properties, who consumed it, its trace, and sending it again.

import { withQuery } from "/static/api.js";
import { button, link, make, setText } from "/static/dom.js";
import { bytes, clock, count, duration } from "/static/format.js";
import { makeChange } from "/static/parts/change.js";
import { askForm } from "/static/parts/dialog.js";
import { createFacts } from "/static/parts/facts.js";
import { createForm } from "/static/parts/form.js";
import { createNotice } from "/static/parts/notice.js";
import { readParts, section } from "/static/parts/sections.js";
import { cell, createTable } from "/static/parts/table.js";

const FORMATS = [["auto", "as it is"], ["text", "text"], ["json", "JSON"], ["hex", "hex"], ["base64", "base64"]];
const STATES = {
  consumed: "✓ consumed", filtered: "– left out by its filter", notYet: "… not yet", offline: "○ not yet, nobody is connected", unknown: null,
};
const TRACK = [
  { title: "Group", read: (row) => cell(row.group, () => link(row.group, `#/groups/${encodeURIComponent(row.group)}`)) },
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

export function createView(id, query) {
  const topic = query.get("topic");
  const path = `/api/v1/messages/${encodeURIComponent(id)}`;
  const notice = createNotice();
  const facts = createFacts();
  const properties = createFacts();
  const body = make("pre", "body");
  body.tabIndex = 0;
  const remark = make("p", "hint");
  const track = createTable({ label: "Consumed by", columns: TRACK, keyOf: (row) => row.group, empty: "No group consumes the topic." });
  const trace = createTable({ label: "Trace", columns: TRACE, keyOf: (row) => `${row.kind}${row.atMs}${row.group}${row.clientHost}`, empty: "No client told of it: none traces." });
  const choice = createForm([{ name: "format", title: "Shown as", type: "select", options: FORMATS }], { label: "Body", inline: true });
  choice.control("format").addEventListener("change", () => refresh());
  let found = topic;
  const parts = () => [
    { path: withQuery(path, { topic, bodyFormat: choice.control("format").value }), show(message) {
      found = message.topic;
      facts.show(factsOf(message));
      properties.show(Object.entries(message.properties).sort());
      setText(body, message.body.content ?? "");
      setText(remark, sayBody(message.body));
    } },
    { path: withQuery(`${path}/track`, { topic }), show: (answer) => track.show(answer.items), miss: track.miss, isOptional: true },
    { path: withQuery(`${path}/trace`, { topic }), show: (answer) => trace.show(answer.spans), miss: trace.miss, isOptional: true },
  ];
  const refresh = (signal) => readParts(parts(), notice, signal);
  const element = make("div", "one",
    make("div", "bar", make("div", "actions", button("Send it again…", () => resend(path, found)))),
    notice.element, facts.element,
    section("Body", choice.element, remark, body), section("Properties", properties.element),
    section("Consumed by", track.element), section("Trace", trace.element));
  return { title: "Message", element, refresh };
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

async function resend(path, topic) {
  const form = createForm([
    { name: "target", title: "To", type: "select", options: [["topic", "its topic, as a new message for all groups"], ["consumer", "one consumer, now"]] },
    { name: "consumerGroup", title: "Group (for one consumer)" },
    { name: "clientId", title: "Client (any when empty)" },
  ]);
  const body = await askForm("Send the message again", form, "Show what happens");
  if (body !== null) await makeChange({ title: "Send the message again", verb: "Send", method: "POST", path: withQuery(`${path}/resend`, { topic }), body });
}
