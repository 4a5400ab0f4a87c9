// The event stream of the cluster, one for the page: whoever shows it subscribes. The head of the page says so when the
// stream is silent: an old picture is never shown as live.

import { follow } from "/static/api.js";
import { make, setAttribute, setText } from "/static/dom.js";
import { clock, span } from "/static/format.js";
import { sayError } from "/static/parts/notice.js";

const STALE_AFTER_MS = 4000;
const SILENCE_CHECK_MS = 1000;
const NEWS_KEPT_MS = 30_000;

const byId = (id) => document.getElementById(id);
const listeners = new Set();
const said = new Map();
let newest = null;
let heardAtMs = 0;
let isOpen = false;
let problem = null;

/** The last picture of the cluster, null before the first. */
export const currentCluster = () => newest;

/** Calls `listener(cluster)` now, if there is one, and with each new one; gives what ends that. */
export function subscribe(listener) {
  listeners.add(listener);
  if (newest !== null) listener(newest);
  return () => listeners.delete(listener);
}

export function startLive(signal) {
  setInterval(drawLive, SILENCE_CHECK_MS);
  return follow("/api/v1/cluster/events", {
    open() {
      isOpen = true;
      problem = null;
    },
    event(name, data) {
      if (name === "cluster") newest = JSON.parse(data);
      else if (name === "unchanged" && newest !== null) newest = { ...newest, ...JSON.parse(data) };
      else return;
      heardAtMs = Date.now();
      for (const listener of listeners) listener(newest);
      tellNews();
      drawLive();
    },
    lost(error) {
      isOpen = false;
      problem = error;
      drawLive();
    },
  }, signal);
}

/** Speaks changes of leader and of up and down, for those who do not see the page. */
function tellNews() {
  const facts = newest.groups.flatMap((group) => [
    [`${group.group} leader`, group.leaderId === null ? `${group.group} has no leader` : `${group.leaderId} leads ${group.group} in term ${group.term}`],
    ...group.nodes.filter((node) => node.id !== null).map((node) => [`${group.group} ${node.id}`, `${node.id} is ${node.state}`]),
  ]);
  const news = facts.filter(([key, text]) => said.has(key) && said.get(key) !== text).map(([, text]) => text);
  for (const [key, text] of facts) said.set(key, text);
  if (news.length === 0) return;
  const line = make("p", "", `${news.join(". ")}.`);
  byId("news").append(line);
  setTimeout(() => line.remove(), NEWS_KEPT_MS);
}

function drawLive() {
  const silentMs = Date.now() - heardAtMs;
  const isLive = isOpen && newest !== null && silentMs < STALE_AFTER_MS;
  const state = isLive ? "live" : newest === null ? "waiting" : "stale";
  setAttribute(byId("live"), "data-state", state);
  document.body.classList.toggle("is-stale", state === "stale");
  setText(byId("live-text"), {
    live: `live, ${newest === null ? "" : clock(newest.asOfMs, newest.asOfMs)}`,
    waiting: problem === null ? "connecting…" : sayError(problem),
    stale: `no news for ${span(silentMs)}, trying again`,
  }[state]);
}

/** What the title of the window says of the cluster. */
export function clusterWord() {
  if (newest === null) return "connecting";
  const unable = newest.groups.filter((group) => group.state !== "writable");
  if (newest.groups.length === 0) return "no brokers";
  return unable.length === 0 ? "writable" : `${unable[0].group} ${unable[0].state}`;
}
