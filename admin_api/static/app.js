// Follows the event stream and draws each view. It says so when the stream is silent: an old picture is never shown as live.

import { reconcile, setAttribute, setText } from "/static/dom.js";
import { clock, span } from "/static/format.js";
import { createGroup, updateGroup } from "/static/group.js";

const STALE_AFTER_MS = 4000;
const SILENCE_CHECK_MS = 1000;

const byId = (id) => document.getElementById(id);
const groups = byId("groups");
const said = new Map();
let newest = null;
let heardAtMs = 0;

function draw() {
  if (newest === null) return;
  const nowMs = newest.asOfMs;
  drawNamesrv(newest.namesrv);
  const empty = byId("empty");
  if (newest.groups.length > 0) empty?.remove();
  else if (empty) setText(empty, newest.namesrv.state === "up" ? "No broker has registered yet." : "Nothing is known of any broker yet.");
  if (newest.groups.length > 0) {
    reconcile(groups, newest.groups, (group) => group.brokerName, createGroup,
      (section, group) => updateGroup(section, group, nowMs));
  }
  drawTitle();
  tellNews();
}

function drawNamesrv(namesrv) {
  const line = byId("namesrv");
  setAttribute(line, "data-state", namesrv.state);
  setText(line, namesrv.state === "up"
    ? `Name server ${namesrv.address}`
    : `The name server gives no answer (${namesrv.problem ?? namesrv.address}). The nodes known before are asked directly.`);
}

function drawTitle() {
  const unable = newest.groups.filter((group) => group.state !== "writable");
  const word = newest.groups.length === 0 ? "no brokers" : unable.length === 0 ? "writable" : `${unable[0].group} ${unable[0].state}`;
  document.title = `LedgerMQ: ${word}`;
}

/** Speaks changes of leader and of up and down, for those who do not see the page. */
function tellNews() {
  const facts = newest.groups.flatMap((group) => [
    [`${group.group} leader`, group.leaderId === null ? `${group.group} has no leader` : `${group.leaderId} leads ${group.group} in term ${group.term}`],
    ...group.nodes.filter((node) => node.id !== null).map((node) => [`${group.group} ${node.id}`, `${node.id} is ${node.state}`]),
  ]);
  const news = facts.filter(([key, text]) => said.has(key) && said.get(key) !== text).map(([, text]) => text);
  for (const [key, text] of facts) said.set(key, text);
  if (news.length > 0) setText(byId("news"), `${news.join(". ")}.`);
}

function drawLive(isOpen) {
  const silentMs = Date.now() - heardAtMs;
  const isLive = isOpen && newest !== null && silentMs < STALE_AFTER_MS;
  const state = isLive ? "live" : newest === null ? "waiting" : "stale";
  setAttribute(byId("live"), "data-state", state);
  document.body.classList.toggle("is-stale", state === "stale");
  setText(byId("live-text"), {
    live: `live, ${newest === null ? "" : clock(newest.asOfMs, newest.asOfMs)}`,
    waiting: "connecting…",
    stale: `no news for ${span(silentMs)}, trying again`,
  }[state]);
}

const stream = new EventSource("/api/v1/cluster/events");
const isOpen = () => stream.readyState === EventSource.OPEN;
stream.addEventListener("cluster", (event) => {
  newest = JSON.parse(event.data);
  heardAtMs = Date.now();
  draw();
  drawLive(true);
});
stream.addEventListener("error", () => drawLive(false));
groups.addEventListener("redraw", draw);
setInterval(() => drawLive(isOpen()), SILENCE_CHECK_MS);
