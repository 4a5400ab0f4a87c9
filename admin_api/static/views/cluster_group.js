// One replication group: its state in a sentence, its nodes, and what is worth opening.

import { button, make, reconcile, setAttribute, setText, setValue } from "/static/dom.js";
import { clock, count, place } from "/static/format.js";
import { makeChange } from "/static/parts/change.js";
import { createForm } from "/static/parts/form.js";
import { askForm } from "/static/parts/dialog.js";
import { createGroupPlots } from "/static/views/cluster_plots.js";
import { scaleOf } from "/static/views/logbar.js";
import { createNode, updateNode } from "/static/views/cluster_node.js";

const DURABILITY = {
  persisted: "an acknowledged message is on the disks of a majority",
  replicated: "an acknowledged message is in the memory of a majority",
};
const modes = new WeakMap();
const plots = new WeakMap();
const shownGroups = new WeakMap();

export function createGroup() {
  const plot = createGroupPlots();
  const section = make("section", "group",
    make("div", "group-head", make("h2", "cut"), make("p", "verdict", make("strong"), make("span", "cut")), modeSwitch()),
    make("p", "durability cut"),
    legend(),
    make("div", "nodes"),
    make("div", "actions", button("Hand leadership over…", () => handOver(shownGroups.get(section))),
      button("Preferred leader…", () => prefer(shownGroups.get(section)))),
    plot.element,
    make("div", "history",
      make("section", "elections", make("h3", "", "Elections"), table(["Time", "Term", "Leader", "Reason"])),
      details("Watermarks by term", true), details("Leader epochs")));
  modes.set(section, "tail");
  plots.set(section, plot);
  section.querySelector(".switch").addEventListener("click", (event) => {
    const mode = event.target.closest("button")?.value;
    if (mode) modes.set(section, mode);
    if (mode) section.dispatchEvent(new CustomEvent("redraw", { bubbles: true }));
  });
  return section;
}

export function closeGroup(section) {
  plots.get(section).close();
}

/** `past`: what views/history.js has of it, or null. */
export function updateGroup(section, group, nowMs, past) {
  const mode = modes.get(section);
  const [head, durability, legends, nodes, actions, , history] = section.children;
  const isReplicated = group.nodes.some((node) => node.isLedgermq !== false);
  shownGroups.set(section, group);
  plots.get(section).update(past, isReplicated, group.nodes.map((node) => node.id).filter((id) => id !== null));
  for (const part of [legends, actions, history, head.children[2]]) part.hidden = !isReplicated;
  setAttribute(section, "data-state", group.state);
  setText(head.children[0], group.group);
  setText(head.children[1].children[0], group.state);
  setText(head.children[1].children[1], verdict(group));
  for (const button of section.querySelectorAll(".switch button")) {
    setAttribute(button, "aria-pressed", String(button.value === mode));
  }
  setText(durability, [
    group.cluster === null ? null : `Cluster ${group.cluster}`,
    group.durability === null ? null : `${group.durability}: ${DURABILITY[group.durability] ?? "durability of its own"}`,
  ].filter(Boolean).join(" · "));
  const scale = scaleOf(group.nodes, mode);
  reconcile(nodes, group.nodes, (node) => node.id ?? node.remotingAddress, createNode,
    (card, node) => updateNode(card, node, scale, nowMs));
  updateElections(history.children[0].querySelector("tbody"), group, nowMs);
  updateWatermarks(history.children[1], group);
  updateEpochs(history.children[2], group);
}

function verdict(group) {
  const members = group.nodes.filter((node) => node.id !== null);
  const nodes = `${members.filter((node) => node.state === "up").length} of ${members.length} nodes up`;
  if (members.length === 0) return `stock RocketMQ, ${group.nodes.filter((node) => node.state === "up").length} of ${group.nodes.length} brokers up`;
  if (group.leaderId === null) return `no leader known, ${nodes}`;
  const inSync = group.inSync === null ? "in sync: unknown" : `in sync: ${group.inSync.join(", ")} (${group.inSync.length} of ${members.length})`;
  return `${group.leaderId} leads in term ${count(group.term)}, ${nodes}, ${inSync}`;
}

/** To a member that is chosen, or to the one nearest to the leader. */
async function handOver(group) {
  const others = group.nodes.filter((node) => node.id !== null && node.id !== group.leaderId).map((node) => [node.id, `${node.id} (${node.state})`]);
  const form = createForm([{ name: "nodeId", title: "New leader", type: "select", options: [["", "the one nearest to the leader"], ...others] }]);
  const values = await askForm(`Hand over the leadership of ${group.group}`, form, "Show what happens");
  if (values === null) return;
  await makeChange({
    title: `Hand over the leadership of ${group.group}`,
    verb: "Hand over",
    method: "POST",
    path: `/api/v1/replication/${encodeURIComponent(group.group)}/transfer`,
    body: { nodeId: values.nodeId ?? null },
  });
}

/** Who is to lead whenever it can. */
async function prefer(group) {
  const title = `Preferred leader of ${group.group}`;
  const members = group.nodes.filter((node) => node.id !== null).map((node) => node.id);
  const form = createForm([{ name: "nodeId", title: "Preferred leader", type: "select", options: [["", "nobody"], ...members] }]);
  const values = await askForm(title, form, "Show what happens");
  if (values === null) return;
  const path = `/api/v1/replication/${encodeURIComponent(group.group)}/preferred-leader`;
  await makeChange({ title, verb: "Prefer", method: "PUT", path, body: { nodeId: values.nodeId ?? null } });
}

function modeSwitch() {
  const button = (value, text) => {
    const made = make("button", "", text);
    made.type = "button";
    made.value = value;
    return made;
  };
  const made = make("div", "switch", button("tail", "End of the log"), button("whole", "Whole log"));
  made.setAttribute("role", "group");
  made.setAttribute("aria-label", "What the log bars show");
  return made;
}

function legend() {
  const entry = (kind, text) => make("li", "", make("span", `swatch ${kind}`), text);
  const made = make("ul", "legend", entry("committed", "committed"), entry("persisted", "on its disk"),
    entry("written", "written"), entry("applied", "applied"));
  made.setAttribute("aria-hidden", "true");
  return made;
}

function table(names) {
  const cell = (name) => {
    const made = make("th", "", name);
    made.scope = "col";
    return made;
  };
  return make("div", "scroll", make("table", "", make("thead", "", make("tr", "", ...names.map(cell))), make("tbody")));
}

function details(title, isOpen = false) {
  const made = make("details", "", make("summary", "", title), make("div", "scroll"));
  made.open = isOpen;
  return made;
}

const row = (cells) => make("tr", "", ...cells.map(() => make("td")));
const fillRow = (line, cells) => cells.forEach((text, place) => setValue(line.children[place], text));

function updateElections(body, group, nowMs) {
  const shown = [...(group.elections ?? [])].reverse();
  const cells = (e) => [clock(e.atMs, nowMs), count(e.term), e.leaderId, e.reason ?? "–"];
  reconcile(body, shown, (e) => e.term, (e) => row(cells(e)), (line, e) => fillRow(line, cells(e)));
  body.closest("section").hidden = shown.length === 0;
}

function updateWatermarks(part, group) {
  const marks = group.watermarksByTerm ?? {};
  const terms = Object.keys(marks).sort((a, b) => Number(b) - Number(a));
  const ids = [...new Set(terms.flatMap((term) => Object.keys(marks[term])))].sort();
  part.hidden = terms.length === 0;
  const frame = part.querySelector(".scroll");
  if (frame.dataset.ids !== ids.join()) {
    frame.dataset.ids = ids.join();
    frame.replaceChildren(table(["Term", ...ids]).firstElementChild);
  }
  const cells = (term) => [count(Number(term)), ...ids.map((id) => place(marks[term][id] ?? null))];
  reconcile(frame.querySelector("tbody"), terms, (term) => term, (term) => row(cells(term)),
    (line, term) => fillRow(line, cells(term)));
}

function updateEpochs(part, group) {
  const epochs = group.epochs ?? [];
  part.hidden = epochs.length === 0;
  const frame = part.querySelector(".scroll");
  if (!frame.firstElementChild) frame.append(table(["Term", "First index"]).firstElementChild);
  const cells = (epoch) => [count(epoch.term), count(epoch.firstIndex)];
  reconcile(frame.querySelector("tbody"), [...epochs].reverse(), (epoch) => epoch.term,
    (epoch) => row(cells(epoch)), (line, epoch) => fillRow(line, cells(epoch)));
}
