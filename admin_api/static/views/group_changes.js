// What can be done to a consumer group. Each asks what is wanted, shows the effect on every queue, and then does it.

import { toInputTime } from "/static/format.js";
import { makeChange } from "/static/parts/change.js";
import { askForm } from "/static/parts/dialog.js";
import { createForm } from "/static/parts/form.js";

const WHERE = [
  ["latest", "behind the last message"], ["earliest", "the first message"], ["time", "a time"], ["offset", "an offset"],
];
const HOUR_MS = 3_600_000;

const topicField = (topics, isNeeded) => ({
  name: "topic", title: "Topic", type: "select", options: [...(isNeeded ? [] : [["", "all that it consumes"]]), ...topics],
});

export async function askReset(path, name, topics) {
  const title = `Reset the offsets of ${name}`;
  const form = createForm([
    topics.length > 0 ? topicField(topics, true) : { name: "topic", title: "Topic", required: true },
    { name: "to", title: "Go on at", type: "select", options: WHERE, value: "time" },
    { name: "timeMs", title: "Time (of this computer)", type: "time", value: toInputTime(Date.now() - HOUR_MS) },
    { name: "offset", title: "Offset", type: "number", min: 0 },
  ]);
  const showFields = () => {
    const to = form.control("to").value;
    for (const [field, when] of [["timeMs", "time"], ["offset", "offset"]]) {
      form.control(field).closest(".field").hidden = to !== when;
      form.control(field).required = to === when;
    }
  };
  form.control("to").addEventListener("change", showFields);
  showFields();
  const values = await askForm(title, form, "Show what happens");
  if (values === null) return false;
  const { topic, to } = values;
  const body = { topic, to, ...(to === "time" ? { timeMs: values.timeMs } : {}), ...(to === "offset" ? { offset: values.offset } : {}) };
  return makeChange({ title, verb: "Reset", method: "POST", path: `${path}/offsets/reset`, body });
}

export async function askSkip(path, name, topics) {
  const title = `Skip what has accumulated for ${name}`;
  const values = await askForm(title, createForm([topicField(topics, false)]), "Show what happens");
  if (values === null) return false;
  return makeChange({ title, verb: "Skip", method: "POST", path: `${path}/offsets/skip`, body: values });
}

export async function askClone(path, name, topics) {
  const title = `Clone the offsets of ${name}`;
  const target = { name: "targetGroup", title: "Group that gets them", required: true, pattern: "[%\\|a-zA-Z0-9_\\-]+" };
  const values = await askForm(title, createForm([target, topicField(topics, false)]), "Show what happens");
  if (values === null) return false;
  return makeChange({ title, verb: "Clone", method: "POST", path: `${path}/offsets/clone`, body: values });
}

export async function askSettings(path, name, group) {
  const now = group?.brokers.find((broker) => broker.settings !== null)?.settings ?? {};
  const title = `Settings of ${name}`;
  const form = createForm([
    { name: "consumeEnabled", title: "Its consumers get messages", type: "check", value: now.consumeEnabled },
    { name: "consumeBroadcastEnabled", title: "Its consumers may broadcast", type: "check", value: now.consumeBroadcastEnabled },
    { name: "isOrderly", title: "POP hands a queue out in order", type: "check", value: now.isOrderly },
    { name: "retryMaxTimes", title: "Retries before the DLQ", type: "number", min: -1, value: now.retryMaxTimes },
    { name: "retryQueues", title: "Queues of its retry topic", type: "number", min: 0, max: 1024, value: now.retryQueues },
  ]);
  const values = await askForm(title, form, "Show what happens");
  if (values === null) return false;
  const body = Object.fromEntries(Object.entries(values).filter(([key, value]) => now[key] !== value));
  return makeChange({ title, verb: "Change", method: "PUT", path, body });
}
