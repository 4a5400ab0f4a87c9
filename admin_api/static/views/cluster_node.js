// The card of one node.

import { make, setAttribute, setText, setValue } from "/static/dom.js";
import { bytes, clock, count, duration, lag, place, span } from "/static/format.js";
import { createLogBar, updateLogBar } from "/static/views/logbar.js";

const SIGNS = { LEADER: "★", FOLLOWER: "●", CANDIDATE: "◌", DOWN: "✕", UNKNOWN: "?", STOCK: "■" };
const FACTS = [
  ["Lag", (node) => lag(node.lagEntries, node.lagBytes)],
  ["Behind by", (node) => duration(node.lagMs)],
  ["In sync", (node) => (node.isInSync === null ? null : node.isInSync ? "✓ yes" : "✕ no")],
  ["Push", pushing],
  ["End", (node) => place(node.log.endIndex)],
  ["Persisted", (node) => place(node.log.persistedIndex)],
  ["Committed", (node) => place(node.log.committedIndex)],
  ["Applied", (node) => place(node.log.appliedIndex)],
  ["Begin", (node) => count(node.log.beginIndex)],
  ["Log size", (node) => bytes(node.log.endPosition)],
  ["Term", (node) => count(node.term)],
];

function pushing(node) {
  if (node.role === "LEADER") return "–";
  if (node.push === null || node.push.state === null) return null;
  const pace = node.push.isThrottled ? ", throttled" : "";
  return `${node.push.state.toLowerCase()}${pace}`;
}

export function createNode() {
  const facts = make("dl", "facts");
  for (const [name] of FACTS) facts.append(make("div", "", make("dt", "", name), make("dd")));
  return make("article", "node",
    make("header", "", make("h3", "cut"), make("span", "role", make("span", "sign"), make("span"))),
    make("p", "where cut"), createLogBar(), facts, make("p", "note"));
}

export function updateNode(card, node, scale, nowMs) {
  const [header, where, bar, facts, note] = card.children;
  const word = node.state !== "up" ? node.state.toUpperCase() : node.role ?? (node.isLedgermq === false ? "STOCK" : "UNKNOWN");
  setAttribute(card, "data-role", word);
  setText(header.children[0], node.id ?? "unnamed");
  setText(header.children[1].children[0], SIGNS[word] ?? SIGNS.UNKNOWN);
  header.children[1].children[0].setAttribute("aria-hidden", "true");
  setText(header.children[1].children[1], word.toLowerCase());
  setText(where, whereabouts(node, nowMs));
  bar.hidden = facts.hidden = word === "STOCK";
  updateLogBar(bar, node, scale);
  FACTS.forEach(([, read], row) => setValue(facts.children[row].children[1], read(node)));
  const said = remark(node, nowMs);
  note.hidden = said === "";
  setText(note, said);
}

function whereabouts(node, nowMs) {
  const parts = [node.remotingAddress ?? "address unknown"];
  if (node.pid !== null) parts.push(`pid ${node.pid}`);
  if (node.startedAtMs !== null) parts.push(`up ${span(nowMs - node.startedAtMs)}`);
  return parts.join(" · ");
}

function remark(node, nowMs) {
  if (node.state !== "up") {
    const last = node.lastKnown;
    const seen = last === null ? ""
      : ` Last seen ${span(nowMs - last.atMs)} ago (${clock(last.atMs, nowMs)}) as ${(last.role ?? "unknown").toLowerCase()}`
        + ` of term ${count(last.term) ?? "unknown"}, end ${place(last.log.endIndex) ?? "unknown"}.`;
    return `${sentence(node.problem ?? "no answer")}${seen}`;
  }
  if (node.isLedgermq === false) return "A stock RocketMQ broker: it answers, and tells nothing of replication.";
  if (node.push?.isThrottled) return "It is far behind and gets what the producers leave free, so that they do not wait for it.";
  if (node.impairment) return sentence(`repairing: ${node.impairment}`);
  if (node.push?.isConnected === false) return "The leader has no connection to this node.";
  const state = node.push?.state ?? "APPEND";
  if (state !== "APPEND" && state !== "COMMIT") return `The leader is bringing its log in line (${state.toLowerCase()}).`;
  return "";
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
