// Every broker process: is it there, what does it carry, how full is its disk; and one of them with its configuration.

import { Button, Facts, Form, List, Notice, Panel, Table } from "/static/components.js";
import { pick, useAnswers } from "/static/data.js";
import { askForm, makeChange } from "/static/dialogs.js";
import { amount, bytes, clock, count } from "/static/format.js";
import { html } from "/static/markup.js";
import { useState } from "/static/vendor/preact/hooks.mjs";

const REFRESH_MS = 5000;
const STATES = { up: "✓ up", down: "✕ down", unknown: "? unknown" };
const percent = (ratio) => (ratio === null ? null : `${amount(ratio * 100)} %`);
const sayState = (row) => (row.problem && row.state !== "up" ? `${STATES[row.state]}: ${row.problem}` : STATES[row.state]);

const NODES = {
  label: "Nodes",
  keyOf: (row) => row.address,
  empty: "No broker is known.",
  columns: [
    { title: "Address", isPlain: true, read: (row) => row.address, link: (row) => `#/nodes/${encodeURIComponent(row.address)}` },
    { title: "State", read: sayState },
    { title: "Broker", isPlain: true, read: (row) => row.brokerName },
    { title: "Node", isPlain: true, read: (row) => row.nodeId },
    { title: "Role", isPlain: true, read: (row) => row.role?.toLowerCase() ?? null },
    { title: "Takes writes", isPlain: true, read: (row) => (row.isWritable === null ? null : row.isWritable ? "yes" : "no") },
    { title: "In/s", isNumber: true, read: (row) => amount(row.putPerSecond) },
    { title: "Out/s", isNumber: true, read: (row) => amount(row.getPerSecond) },
    { title: "In today", isNumber: true, read: (row) => count(row.putToday) },
    { title: "Disk used", isNumber: true, read: (row) => percent(row.diskUsedRatio) },
    { title: "Version", isPlain: true, read: sayVersion },
    { title: "Started", isPlain: true, read: (row) => clock(row.startedAtMs, Date.now()) },
  ],
};

function sayVersion({ product, version }) {
  if (version?.toLowerCase() === product) return version;
  return [product, version].filter(Boolean).join(" ") || null;
}

export function NodesPage() {
  return html`<${List} path="/api/v1/brokers" everyMs=${REFRESH_MS} table=${NODES} />`;
}

const FILTER = [{ name: "q", title: "Key contains", type: "search" }];
const FIGURES = [{ title: "Name", read: (row) => row[0] }, { title: "Value", isText: true, read: (row) => row[1] }];

export function NodePage({ subject: address }) {
  const path = `/api/v1/brokers/${encodeURIComponent(address)}`;
  const paths = { storage: `${path}/storage`, runtime: `${path}/runtime`, config: `${path}/config` };
  const { answers: { storage, runtime, config }, notice, refresh } = useAnswers(paths, { everyMs: REFRESH_MS });
  const [wanted, setWanted] = useState("");
  const settings = [
    { title: "Key", read: (row) => row.key },
    { title: "Value", isText: true, read: (row) => row.value },
    { title: "While it runs", view: (row) => html`<${Changer} path=${path} row=${row} onChange=${refresh} />` },
  ];
  const filter = ({ q = "" }) => setWanted(q.toLowerCase());
  const rows = pick(config, (answer) => answer.settings.filter((row) => row.key.toLowerCase().includes(wanted)));
  return html`
    <div class="one">
      <${Notice} notice=${notice} />
      <p class="intro cut">${runtime && sayBroker(runtime.broker)}</p>
      <${Panel} title="Storage"><${Facts} facts=${storage && storageFacts(storage)} /><//>
      <${Panel} title="Configuration">
        <${Form} fields=${FILTER} label="Filter the configuration" isInline=${true} onInput=${filter} />
        <${Table} label="Configuration" columns=${settings} rows=${rows} keyOf=${(row) => row.key} />
      <//>
      <${Panel} title="Figures">
        <${Table} label="Figures" columns=${FIGURES} keyOf=${(row) => row[0]}
          rows=${pick(runtime, (answer) => Object.entries(answer.figures).sort())} />
      <//>
    </div>`;
}

const sayBroker = (broker) => [sayState(broker), broker.brokerName, broker.role?.toLowerCase()].filter(Boolean).join(", ");

function Changer({ path, row, onChange }) {
  if (row.canChange === false) return html`<span>fixed</span>`;
  const title = `Change ${row.key}`;
  const change = async () => {
    const values = await askForm(title, [{ name: "value", title: row.key, value: row.value }]);
    if (values === null) return;
    const body = { settings: { [row.key]: values.value ?? "" } };
    if (await makeChange({ title, verb: "Change", method: "PATCH", path: `${path}/config`, body })) onChange();
  };
  return html`<${Button} aria-label=${title} onClick=${change}>Change…<//>`;
}

function storageFacts({ directory, log, disk, retention }) {
  return [
    ["Directory", directory],
    ["Log", bytes(log.sizeBytes)],
    ["From position", count(log.beginPosition)],
    ["To position", count(log.endPosition)],
    ["Shown by queues up to", count(log.dispatchedPosition)],
    ["Files", log.fileCount === null ? null : `${count(log.fileCount)} of ${bytes(log.fileBytes) ?? "unknown size"}`],
    ["Oldest message", clock(log.earliestMessageAtMs, Date.now())],
    ["Disk", bytes(disk.totalBytes)],
    ["Free", bytes(disk.freeBytes)],
    ["Disk used", percent(disk.usedRatio)],
    ["Old files go early above", percent(disk.cleanAboveRatio)],
    ["Takes no messages above", percent(disk.fullAboveRatio)],
    ["Messages are kept for", retention.keepHours === null ? null : `${count(retention.keepHours)} h`],
    ["Old files go at", retention.deleteHours === null ? null : `${retention.deleteHours} o'clock`],
  ];
}
