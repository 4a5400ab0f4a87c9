// One broker process: storage, figures, configuration.

import { button, make, setAttribute, setText } from "/static/dom.js";
import { bytes, clock, count } from "/static/format.js";
import { makeChange } from "/static/parts/change.js";
import { askForm } from "/static/parts/dialog.js";
import { createFacts } from "/static/parts/facts.js";
import { createForm } from "/static/parts/form.js";
import { createNotice } from "/static/parts/notice.js";
import { readParts, section } from "/static/parts/sections.js";
import { cell, createTable } from "/static/parts/table.js";
import { percent, sayState } from "/static/views/nodes.js";

const REFRESH_MS = 5000;

export function createView(address) {
  const path = `/api/v1/brokers/${encodeURIComponent(address)}`;
  const notice = createNotice();
  const state = make("p", "intro cut");
  const storage = createFacts();
  const figures = createTable({
    label: "Figures", columns: [{ title: "Name", read: (row) => row[0] }, { title: "Value", isText: true, read: (row) => row[1] }], keyOf: (row) => row[0],
  });
  const settings = createTable({ label: "Configuration", columns: settingColumns(path, () => refresh()), keyOf: (row) => row.key });
  const filter = createForm([{ name: "q", title: "Key contains", type: "search" }], { label: "Filter the configuration", inline: true });
  let all = [];
  const showSettings = () => {
    const wanted = (filter.values().q ?? "").toLowerCase();
    settings.show(all.filter((row) => row.key.toLowerCase().includes(wanted)));
  };
  filter.element.addEventListener("input", showSettings);
  filter.element.addEventListener("submit", (event) => event.preventDefault());
  const parts = [
    { path: `${path}/storage`, show: (answer) => storage.show(storageFacts(answer)) },
    { path: `${path}/runtime`, miss: figures.miss, show(answer) {
      setText(state, `${sayState(answer.broker)}, ${answer.broker.brokerName}${answer.broker.role ? `, ${answer.broker.role.toLowerCase()}` : ""}`);
      figures.show(Object.entries(answer.figures).sort());
    } },
    { path: `${path}/config`, miss: settings.miss, show(answer) {
      all = answer.settings;
      showSettings();
    } },
  ];
  const refresh = (signal) => readParts(parts, notice, signal);
  const element = make("div", "one", notice.element, state,
    section("Storage", storage.element), section("Configuration", filter.element, settings.element), section("Figures", figures.element));
  return { title: `Node ${address}`, element, refresh, refreshMs: REFRESH_MS };
}

function settingColumns(path, refresh) {
  return [
    { title: "Key", read: (row) => row.key },
    { title: "Value", isText: true, read: (row) => row.value },
    { title: "While it runs", read: (row) => cell(`${row.key}${row.canChange}${row.value}`, () => changer(path, row, refresh)) },
  ];
}

function changer(path, row, refresh) {
  if (row.canChange === false) return make("span", "", "fixed");
  const change = button("Change…", async () => {
    const form = createForm([{ name: "value", title: row.key, value: row.value }]);
    const values = await askForm(`Change ${row.key}`, form, "Show what happens");
    if (values === null) return;
    const body = { settings: { [row.key]: values.value ?? "" } };
    if (await makeChange({ title: `Change ${row.key}`, verb: "Change", method: "PATCH", path: `${path}/config`, body })) refresh();
  });
  setAttribute(change, "aria-label", `Change ${row.key}`);
  return change;
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
