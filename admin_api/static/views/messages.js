// Finds messages: by key, by id, by time.

import { ask, withQuery } from "/static/api.js";
import { button, link, make } from "/static/dom.js";
import { bytes, clock, count, toInputTime } from "/static/format.js";
import { createForm } from "/static/parts/form.js";
import { createNotice } from "/static/parts/notice.js";
import { cell, createTable } from "/static/parts/table.js";
import { section } from "/static/parts/sections.js";
import { sendTest } from "/static/views/topic.js";

const HOUR_MS = 3_600_000;

export const messageAddress = (message) => `#/messages/${encodeURIComponent(message.id)}?topic=${encodeURIComponent(message.topic)}`;

export const MESSAGE_COLUMNS = [
  { title: "Message", read: (row) => cell(row.id, () => link(row.uniqueKey ?? row.id, messageAddress(row))) },
  { title: "Keys", read: (row) => row.keys.join(" ") || "–" },
  { title: "Tag", read: (row) => row.tags ?? "–" },
  { title: "Stored", isPlain: true, read: (row) => clock(row.storedAtMs, Date.now()), sort: (row) => row.storedAtMs },
  { title: "Queue", read: (row) => `${row.brokerName ?? "unknown"}/${row.queueId} at ${count(row.queueOffset)}` },
  { title: "Size", isNumber: true, read: (row) => bytes(row.storedBytes) },
  { title: "Body", isText: true, read: (row) => row.preview?.replace(/\s+/g, " ") ?? "no text" },
];

export function createView(_subject, query) {
  const topic = query.get("topic") ?? "";
  const notice = createNotice();
  const found = createTable({ label: "Messages found", columns: MESSAGE_COLUMNS, keyOf: (row) => row.id, empty: "No message found." });
  found.element.hidden = true;
  let items = [];
  let cursor = null;
  let last = null;
  const more = button("More", () => search(last, cursor));
  more.hidden = true;

  async function search(parameters, from = null) {
    last = parameters;
    try {
      const answer = await ask(withQuery("/api/v1/messages", { ...parameters, cursor: from }));
      notice.ofAnswer(answer);
      items = from === null ? answer.items : [...items, ...answer.items];
      cursor = answer.nextCursor ?? null;
      found.element.hidden = false;
      found.show(items);
      more.hidden = cursor === null;
    } catch (error) {
      notice.ofError(error);
    }
  }

  const topicField = (isRequired) => ({ name: "topic", title: "Topic", required: isRequired, value: topic });
  const byKey = finder("By key", [topicField(true), { name: "key", title: "Key", required: true }], search);
  const byTime = finder("By time", [
    topicField(true),
    { name: "from", title: "From", type: "time", value: toInputTime(Date.now() - HOUR_MS), required: true },
    { name: "to", title: "To", type: "time", value: toInputTime(Date.now() + HOUR_MS), required: true },
  ], search);
  const byId = finder("By id", [topicField(false), { name: "id", title: "Message id", required: true }], (values) => {
    location.hash = withQuery(`#/messages/${encodeURIComponent(values.id)}`, { topic: values.topic });
  });
  const send = finder("Send a test message", [topicField(true)], (values) => sendTest(`/api/v1/topics/${encodeURIComponent(values.topic)}`, values.topic), "Write it…");
  const element = make("div", "messages", make("div", "finders", byKey, byTime, byId, send), notice.element, found.element, more);
  return { title: "Messages", element };
}

function finder(title, fields, find, verb = "Find") {
  const form = createForm(fields, { label: title });
  form.element.addEventListener("submit", (event) => {
    event.preventDefault();
    find(form.values());
  });
  return section(title, form.element, make("div", "actions", button(verb, () => form.element.requestSubmit(), "strong")));
}
