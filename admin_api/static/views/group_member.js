// What one consumer says of itself.

import { ask } from "/static/api.js";
import { make } from "/static/dom.js";
import { amount, clock, count } from "/static/format.js";
import { showError } from "/static/parts/change.js";
import { showDialog } from "/static/parts/dialog.js";
import { createTable } from "/static/parts/table.js";

const QUEUES = [
  { title: "Queue", read: (row) => `${row.topic} ${row.brokerName}/${row.queueId}` },
  { title: "Got, not consumed", isNumber: true, read: (row) => count(row.cachedMessages ?? row.unacknowledged) },
  { title: "Offset", isNumber: true, read: (row) => count(row.commitOffset) },
  { title: "Last pull", read: (row) => clock(row.lastPullAtMs, Date.now()) },
  { title: "Last consumed", read: (row) => clock(row.lastConsumeAtMs, Date.now()) },
];
const RATES = [
  { title: "Topic", read: (row) => row.topic },
  { title: "Pulls/s", isNumber: true, read: (row) => amount(row.pullTps) },
  { title: "Consumed/s", isNumber: true, read: (row) => amount(row.consumeOkTps) },
  { title: "Failed/s", isNumber: true, read: (row) => amount(row.consumeFailedTps) },
  { title: "ms each", isNumber: true, read: (row) => amount(row.consumeMs) },
];

export async function showRunning(path, clientId) {
  const title = `Consumer ${clientId}`;
  try {
    const running = await ask(`${path}/members/${encodeURIComponent(clientId)}/running?stack=true`);
    const queues = createTable({ label: "Its queues", columns: QUEUES, keyOf: (row) => `${row.topic}@${row.brokerName}/${row.queueId}/${row.isPop}` });
    const rates = createTable({ label: "Its rates", columns: RATES, keyOf: (row) => row.topic });
    queues.show(running.queues);
    rates.show(running.rates);
    const stack = running.stack === null ? [make("p", "", "It tells no stack.")] : [make("pre", "", running.stack)];
    await showDialog(title, [queues.element, rates.element, make("h3", "", "What its threads do"), ...stack]);
  } catch (error) {
    await showError(title, error);
  }
}
