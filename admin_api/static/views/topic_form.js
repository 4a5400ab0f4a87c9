// The forms of a topic.

import { createForm } from "/static/parts/form.js";

const QUEUES_MAX = 65_536;

function fields(now) {
  const flag = (name, title, value) => ({ name, title, type: "check", value });
  return [
    { name: "readQueues", title: "Queues to read", type: "number", min: 1, max: QUEUES_MAX, value: now.readQueues },
    { name: "writeQueues", title: "Queues to write", type: "number", min: 1, max: QUEUES_MAX, value: now.writeQueues },
    flag("canRead", "May be read", now.canRead),
    flag("canWrite", "May be written", now.canWrite),
    flag("isOrdered", "Ordered", now.isOrdered),
  ];
}

export function newTopicForm() {
  const name = { name: "name", title: "Name", required: true, pattern: "[%\\|a-zA-Z0-9_+\\-]+", hint: "Letters, digits, % | _ + and -" };
  return createForm([name, ...fields({ readQueues: 8, writeQueues: 8, canRead: true, canWrite: true, isOrdered: false })]);
}

/** `config`: how one broker has it now. What is not changed is not sent. */
export function editTopicForm(config) {
  const form = createForm(fields(config));
  return {
    element: form.element,
    values: () => Object.fromEntries(Object.entries(form.values()).filter(([name, value]) => config[name] !== value)),
  };
}
