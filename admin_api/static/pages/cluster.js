// The cluster, live: every replication group with its state in a sentence, its nodes with their logs as bars, and the last
// hour.

import { ask } from "/static/api.js";
import { Button, Facts, PlainTable, Table } from "/static/components.js";
import { useLive } from "/static/data.js";
import { askForm, makeChange, showDialog, showError } from "/static/dialogs.js";
import { bytes, clock, count, duration, lag, place, span } from "/static/format.js";
import { html } from "/static/markup.js";
import { LastHour, useHistory } from "/static/pages/history.js";
import { Members } from "/static/pages/members.js";
import { useState } from "/static/vendor/preact/hooks.mjs";

const DURABILITY = {
  persisted: "an acknowledged message is on the disks of a majority",
  replicated: "an acknowledged message is in the memory of a majority",
};
const MODES = [["tail", "End of the log"], ["whole", "Whole log"]];
const LEGEND = [["committed", "committed"], ["persisted", "on its disk"], ["written", "written"], ["applied", "applied"]];
const SIGNS = { LEADER: "★", FOLLOWER: "●", CANDIDATE: "◌", DOWN: "✕", UNKNOWN: "?", STOCK: "■" };
const TAIL_ENTRIES_MIN = 40;
const CLIENTS_SHOWN = 200;
const LAGS = [
  { title: "Consumer group", read: (row) => row.consumerGroup },
  { title: "Topic", read: (row) => row.topic },
  { title: "Not consumed", isNumber: true, read: (row) => count(row.lag) },
];
const CLIENTS = [
  { title: "Client", read: (row) => row.clientId },
  { title: "Type", read: (row) => row.clientType },
  { title: "Library", read: (row) => `${row.language} ${row.version}` },
  { title: "Address", read: (row) => row.address },
  { title: "Groups", read: (row) => row.groups.join(", ") },
  { title: "Topics", read: (row) => row.topics.join(", ") + (row.topicCount > row.topics.length ? ", …" : "") },
  { title: "Namespace", read: (row) => row.namespace },
  { title: "Settings", isPlain: true, read: (row) => clock(row.settingsAtMs, Date.now()) },
];

export function ClusterPage() {
  const { cluster } = useLive();
  const history = useHistory();
  if (cluster === null) return html`<div class="cluster"><p class="empty">Waiting for the first answer…</p></div>`;
  const { namesrv, namesrvs, groups, grpcEndpoints, asOfMs } = cluster;
  return html`
    <div class="cluster">
      ${namesrvs.map((each) => html`
        <p class="namesrv cut" key=${each.address} data-state=${each.state}>${sayNamesrv(each, namesrv.state === "up")}</p>`)}
      ${groups.length === 0 && html`
        <p class="empty">${namesrv.state === "up" ? "No broker has registered yet." : "Nothing is known of any broker yet."}</p>`}
      <div class="groups" id="groups">
        ${groups.map((group) => html`
          <${Group} key=${group.brokerName} group=${group} nowMs=${asOfMs} samples=${history[group.brokerName]} />`)}
      </div>
      ${grpcEndpoints.map((endpoint) => html`
        <p class="namesrv cut" key=${endpoint.address} data-state=${endpoint.state}>
          ${sayEndpoint(endpoint)}
          ${endpoint.state === "up" && html` <${Button} onClick=${() => showClients(endpoint.address)}>Clients…<//>`}
        </p>`)}
    </div>`;
}

function sayNamesrv({ state, address, problem, unlisted }, isAnyUp) {
  if (state === "up") return `Name server ${address}` + (unlisted.length === 0 ? "" : `, which does not list ${unlisted.join(", ")}`);
  const meanwhile = isAnyUp ? "Others are asked" : "The nodes known before are asked directly";
  return `⚠ The name server gives no answer (${problem ?? address}). ${meanwhile}.`;
}

function sayEndpoint({ state, address, problem }) {
  return state === "up" ? `gRPC endpoint ${address}` : `⚠ The gRPC endpoint ${address} is not there: ${problem}.`;
}

async function showClients(address) {
  const title = `Clients of the gRPC endpoint ${address}`;
  try {
    const { items, total } = await ask(`/api/v1/grpc-endpoints/${encodeURIComponent(address)}/clients?pageSize=${CLIENTS_SHOWN}`);
    await showDialog(title, html`
      ${total > items.length && html`<p>${count(total)} clients, of which these ${count(items.length)} came first.</p>`}
      <${Table} label="Its clients" columns=${CLIENTS} keyOf=${(row) => row.clientId} rows=${items} />`);
  } catch (error) {
    await showError(title, error);
  }
}

function Group({ group, nowMs, samples }) {
  const [mode, setMode] = useState("tail");
  const isReplicated = group.nodes.some((node) => node.isLedgermq !== false);
  const ids = group.nodes.map((node) => node.id).filter((id) => id !== null);
  const scale = scaleOf(group.nodes, mode);
  return html`
    <section class="group" data-state=${group.state}>
      <div class="group-head">
        <h2 class="cut">${group.group}</h2>
        <p class="verdict"><strong>${group.state}</strong><span class="cut">${verdict(group)}</span></p>
        ${isReplicated && html`<${ModeSwitch} mode=${mode} onChange=${setMode} />`}
      </div>
      <p class="durability cut">${sayDurability(group)}</p>
      ${isReplicated && html`<${Legend} />`}
      <div class="nodes">
        ${group.nodes.map((node) => html`<${Node} key=${node.id ?? node.remotingAddress} node=${node} scale=${scale} nowMs=${nowMs} />`)}
      </div>
      ${isReplicated && html`
        <div class="actions">
          <${Button} onClick=${() => handOver(group)}>Hand leadership over…<//>
          <${Button} onClick=${() => preferLeader(group)}>Preferred leader…<//>
          <${Button} onClick=${() => acceptMessages(group)}>${group.acceptsMessages === false ? "Accept messages…" : "Drain…"}<//>
          ${group.acceptsMessages === false && html`<${Button} onClick=${() => showLeft(group)}>What is left…<//>`}
        </div>
        <${Members} group=${group} />`}
      <${LastHour} samples=${samples} ids=${ids} isReplicated=${isReplicated} />
      ${isReplicated && html`<${Terms} group=${group} nowMs=${nowMs} />`}
    </section>`;
}

function verdict(group) {
  const members = group.nodes.filter((node) => node.id !== null && (group.membership === null || node.member !== null));
  const upOf = (nodes) => `${nodes.filter((node) => node.state === "up").length} of ${nodes.length}`;
  if (members.length === 0) return `stock RocketMQ, ${upOf(group.nodes)} brokers up`;
  if (group.leaderId === null) return `no leader known, ${upOf(members)} nodes up`;
  const inSync = group.inSync === null ? "in sync: unknown" : `in sync: ${group.inSync.join(", ")} (${group.inSync.length} of ${members.length})`;
  const accepts = group.acceptsMessages === false ? ", accepts no messages" : "";
  return `${group.leaderId} leads in term ${count(group.term)}, ${upOf(members)} nodes up, ${inSync}${accepts}`;
}

function sayDurability({ cluster, durability }) {
  return [
    cluster === null ? null : `Cluster ${cluster}`,
    durability === null ? null : `${durability}: ${DURABILITY[durability] ?? "durability of its own"}`,
  ].filter(Boolean).join(" · ");
}

function ModeSwitch({ mode, onChange }) {
  return html`
    <div class="switch" role="group" aria-label="What the log bars show">
      ${MODES.map(([value, text]) => html`
        <button type="button" aria-pressed=${String(value === mode)} onClick=${() => onChange(value)}>${text}</button>`)}
    </div>`;
}

function Legend() {
  return html`
    <ul class="legend" aria-hidden="true">
      ${LEGEND.map(([kind, text]) => html`<li><span class=${`swatch ${kind}`} />${text}</li>`)}
    </ul>`;
}

/** What is worth opening: elections, watermarks and leader epochs by term. */
function Terms({ group, nowMs }) {
  const elections = [...(group.elections ?? [])].reverse();
  const epochs = [...(group.epochs ?? [])].reverse();
  const marks = group.watermarksByTerm ?? {};
  const terms = Object.keys(marks).sort((a, b) => Number(b) - Number(a));
  const ids = [...new Set(terms.flatMap((term) => Object.keys(marks[term])))].sort();
  const electionRows = elections.map((one) => [clock(one.atMs, nowMs), count(one.term), one.leaderId, one.reason ?? "–"]);
  const markRows = terms.map((term) => [count(Number(term)), ...ids.map((id) => place(marks[term][id] ?? null))]);
  const epochRows = epochs.map((epoch) => [count(epoch.term), count(epoch.firstIndex)]);
  return html`
    <div class="history">
      <section class="elections" hidden=${elections.length === 0}>
        <h3>Elections</h3>
        <${PlainTable} heads=${["Time", "Term", "Leader", "Reason"]} rows=${electionRows} />
      </section>
      <details open=${true} hidden=${terms.length === 0}>
        <summary>Watermarks by term</summary>
        <${PlainTable} heads=${["Term", ...ids]} rows=${markRows} />
      </details>
      <details hidden=${epochs.length === 0}>
        <summary>Leader epochs</summary>
        <${PlainTable} heads=${["Term", "First index"]} rows=${epochRows} />
      </details>
    </div>`;
}

/** To a member that is chosen, or to the one nearest to the leader. */
async function handOver(group) {
  const title = `Hand over the leadership of ${group.group}`;
  const others = group.nodes.filter((node) => node.id !== null && node.id !== group.leaderId);
  const options = [["", "the one nearest to the leader"], ...others.map((node) => [node.id, `${node.id} (${node.state})`])];
  const values = await askForm(title, [{ name: "nodeId", title: "New leader", type: "select", options }]);
  if (values === null) return;
  await makeChange({ title, verb: "Hand over", method: "POST", path: `${pathOf(group)}/transfer`, body: { nodeId: values.nodeId ?? null } });
}

/** Who is to lead whenever it can. */
async function preferLeader(group) {
  const title = `Preferred leader of ${group.group}`;
  const members = group.nodes.map((node) => node.id).filter((id) => id !== null);
  const options = [["", "none"], ...members];
  const values = await askForm(title, [{ name: "nodeId", title: "Preferred leader", type: "select", options }]);
  if (values === null) return;
  await makeChange({ title, verb: "Prefer", method: "PUT", path: `${pathOf(group)}/preferred-leader`, body: { nodeId: values.nodeId ?? null } });
}

/** Whether producers may choose its queues. */
async function acceptMessages(group) {
  const accepted = group.acceptsMessages === false;
  const [title, verb] = accepted ? [`Let ${group.group} accept messages`, "Accept"] : [`Drain ${group.group}`, "Drain"];
  await makeChange({ title, verb, method: "PUT", path: `${pathOf(group)}/accepts-messages`, body: { accepted } });
}

async function showLeft(group) {
  const title = `What is left in ${group.group}`;
  try {
    const left = await ask(`${pathOf(group)}/draining`);
    await showDialog(title, html`
      ${left.isDrained && html`<p>${left.refusesMessages ? "Nothing: it can be removed." : `Nothing. Before you remove it, have it refuse producers with old routes: ledgermq replication drain ${group.group} --wait`}</p>`}
      ${left.reasons.map((reason) => html`<p>${reason}</p>`)}
      ${left.lags.length > 0 && html`<${Table} label="Not consumed" columns=${LAGS} keyOf=${(row) => `${row.consumerGroup} ${row.topic}`} rows=${left.lags} />`}`);
  } catch (error) {
    await showError(title, error);
  }
}

function pathOf(group) {
  return `/api/v1/replication/${encodeURIComponent(group.group)}`;
}

function Node({ node, scale, nowMs }) {
  const word = node.state !== "up" ? node.state.toUpperCase() : node.role ?? (node.isLedgermq === false ? "STOCK" : "UNKNOWN");
  const said = remark(node, nowMs);
  return html`
    <article class="node" data-key=${node.id ?? node.remotingAddress} data-role=${word}>
      <header>
        <h3 class="cut">${node.id ?? "unnamed"}</h3>
        <span class="role">
          <span class="sign" aria-hidden="true">${SIGNS[word] ?? SIGNS.UNKNOWN}</span>
          <span>${word.toLowerCase()}</span>
        </span>
      </header>
      <p class="where cut">${whereabouts(node, nowMs)}</p>
      ${word !== "STOCK" && html`
        <${LogBar} node=${node} scale=${scale} />
        <${Facts} className="facts" facts=${factsOf(node)} />`}
      <p class="note" hidden=${said === ""}>${said}</p>
    </article>`;
}

function factsOf(node) {
  return [
    ["Lag", lag(node.lagEntries, node.lagBytes)],
    ["Behind by", duration(node.lagMs)],
    ["In sync", node.isInSync === null ? null : node.isInSync ? "✓ yes" : "✕ no"],
    ["Push", sayPush(node)],
    ["End", place(node.log.endIndex)],
    ["Persisted", place(node.log.persistedIndex)],
    ["Committed", place(node.log.committedIndex)],
    ["Applied", place(node.log.appliedIndex)],
    ["Begin", count(node.log.beginIndex)],
    ["Log size", bytes(node.log.endPosition)],
    ["Term", count(node.term)],
  ];
}

function sayPush({ role, push }) {
  if (role === "LEADER") return "–";
  if (push === null || push.state === null) return null;
  return `${push.state.toLowerCase()}${push.isThrottled ? ", throttled" : ""}`;
}

function whereabouts(node, nowMs) {
  const parts = [node.remotingAddress ?? "address unknown"];
  if (node.pid !== null) parts.push(`pid ${node.pid}`);
  if (node.startedAtMs !== null) parts.push(`up ${span(nowMs - node.startedAtMs)}`);
  return parts.join(" · ");
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;

function remark(node, nowMs) {
  if (node.newerGeneration !== null) return "Outdated: an operator went on without it, in generation"
    + ` ${count(node.newerGeneration)}. Stop it, save what only it has, and empty its store.`;
  if (node.state !== "up") return `${sentence(node.problem ?? "no answer")}${sayLastKnown(node.lastKnown, nowMs)}`;
  if (node.isLedgermq === false) return "A stock RocketMQ broker: it answers, and tells nothing of replication.";
  if (node.member?.role === "joining") return "It gets the log, and votes when it has nearly all of it.";
  if (node.member?.role === "learner") return "A learner: it gets the log and has no vote.";
  if (node.push?.isThrottled) return "It is far behind and gets what the producers leave free, so that they do not wait for it.";
  if (node.impairment) return sentence(`repairing: ${node.impairment}`);
  if (node.push?.isConnected === false) return "The leader has no connection to this node.";
  const state = node.push?.state ?? "APPEND";
  if (state !== "APPEND" && state !== "COMMIT") return `The leader is bringing its log in line (${state.toLowerCase()}).`;
  return "";
}

function sayLastKnown(last, nowMs) {
  if (last === null) return "";
  return ` Last seen ${span(nowMs - last.atMs)} ago (${clock(last.atMs, nowMs)}) as ${(last.role ?? "unknown").toLowerCase()}`
    + ` of term ${count(last.term) ?? "unknown"}, end ${place(last.log.endIndex) ?? "unknown"}.`;
}

/** The log marks that stand for a node: its own, or the last it gave before it fell silent. */
const marksOf = (node) => (node.log.endIndex === null && node.lastKnown ? node.lastKnown.log : node.log);

/** First and last index of the bars of one group; the same for all its nodes, so that they can be compared. */
function scaleOf(nodes, mode) {
  const logs = nodes.map(marksOf).filter((log) => log.endIndex !== null);
  if (logs.length === 0) return null;
  const last = Math.max(...logs.map((log) => log.endIndex));
  const begin = Math.min(...logs.map((log) => log.beginIndex ?? 0));
  if (mode === "whole") return { first: begin, last };
  const marks = logs.flatMap((log) => [log.endIndex, log.committedIndex, log.appliedIndex, log.persistedIndex]);
  const lowest = Math.min(...marks.filter((mark) => mark !== null));
  const length = Math.max(TAIL_ENTRIES_MIN, Math.ceil((last - lowest) * 1.25));
  return { first: Math.max(begin, last - length), last };
}

/** A node's log: what is committed, what is on its disk, what is only written, and where its readers are. */
function LogBar({ node, scale }) {
  const log = marksOf(node);
  const isRemembered = log !== node.log;
  const isKnown = scale !== null && log.endIndex !== null;
  const className = ["logbar", isKnown ? null : "no-log", isRemembered ? "remembered" : null].filter(Boolean).join(" ");
  return html`
    <div class=${className}>
      <div class="track" role="img" aria-label=${isKnown ? spoken(log, isRemembered) : "The log of this node is unknown"}>
        ${isKnown && html`<${LogParts} log=${log} scale=${scale} />`}
      </div>
      <div class="axis"><span>${isKnown && count(scale.first)}</span><span>${isKnown && count(scale.last)}</span></div>
    </div>`;
}

function LogParts({ log, scale }) {
  const begin = Math.max(log.beginIndex ?? scale.first, scale.first);
  const from = percent(begin - 1, scale);
  const parts = [["written", log.endIndex], ["persisted", log.persistedIndex], ["committed", log.committedIndex]];
  const style = (end) => ({ left: `${from}%`, width: `${Math.max(0, percent(end ?? 0, scale) - from)}%` });
  return html`
    ${parts.map(([kind, end]) => html`
      <span class=${`part ${kind}`} key=${kind} hidden=${end === null || end < begin} style=${style(end)} />`)}
    <span class="mark applied" hidden=${log.appliedIndex === null} style=${{ left: `${percent(log.appliedIndex ?? 0, scale)}%` }} />`;
}

function percent(index, scale) {
  const length = scale.last - scale.first + 1;
  return Math.min(100, Math.max(0, ((index + 1 - scale.first) / length) * 100));
}

function spoken(log, isRemembered) {
  const of = (value) => (value === null ? "unknown" : count(value));
  return `${isRemembered ? "Last known log" : "Log"} from ${of(log.beginIndex)} to ${of(log.endIndex)}, `
    + `committed ${of(log.committedIndex)}, persisted ${of(log.persistedIndex)}, applied ${of(log.appliedIndex)}`;
}
