// The members of a group on the cluster's page: who votes, how many bytes of the log a joining one has, and changes of them.

import { Button, Table } from "/static/components.js";
import { askForm, makeChange } from "/static/dialogs.js";
import { bytes, span } from "/static/format.js";
import { html } from "/static/markup.js";
import { useLayoutEffect, useRef } from "/static/vendor/preact/hooks.mjs";

const ROLES = { voter: "votes", learner: "learner: gets the log, no vote", joining: "joining: votes when it has the log" };
const ID = "[A-Za-z][0-9]{1,9}";
const LEVEL = 3;
const FORCE = {
  name: "force", title: "Force", type: "check", value: false,
  hint: "Also where fewer than a majority of the voters keep up afterwards: what that may cost is shown before anything is done.",
};
const NEW_ID = { name: "id", title: "Id", required: true, pattern: ID, hint: "One letter and a number, such as n3." };
const ADDRESS = { name: "address", title: "Address for replication", required: true, hint: "Such as 10.0.0.4:10914." };

/** Nothing where the nodes are of a release whose members are fixed. */
export function Members({ group }) {
  const { membership, nodes } = group;
  const frame = useRef(null);
  const members = nodes.filter((node) => node.member !== null);
  const isJoining = membership !== null && members.some((node) => node.member.role === "joining");
  // Opened once: it must not close under the hand of its reader when nothing joins any more.
  useLayoutEffect(() => {
    if (isJoining) frame.current.open = true;
  }, [isJoining]);
  if (membership === null) return null;
  const strangers = nodes.filter((node) => node.id !== null && node.member === null && node.newerGeneration === null)
    .map((node) => node.id);
  return html`
    <details class="members" ref=${frame}>
      <summary>${sayMembers(group, members)}</summary>
      ${strangers.length > 0 && html`<p class="note">${strangers.join(", ")}: runs and is no member.</p>`}
      <${Table} label=${`Members of ${group.group}`} columns=${columnsOf(group)} rows=${members} keyOf=${(node) => node.id} />
      <div class="actions">
        ${membership.formatLevel < LEVEL
          ? html`<p class="note">Members can change after <code>ledgermq upgrade-finish</code>.</p>`
          : html`<${Button} onClick=${() => add(group)}>Add a member…<//>`}
      </div>
    </details>`;
}

function sayMembers({ membership }, members) {
  const voters = members.filter((node) => node.member.role === "voter").length;
  const others = members.length - voters;
  const joining = members.filter((node) => node.member.role === "joining").map((node) => `${node.id} joins`);
  return [
    `Members: ${voters} ${voters === 1 ? "votes" : "vote"}`,
    others > 0 && `${others} without a vote`,
    ...joining,
    membership.isCommitted ? null : "a change is not stored by a majority yet",
    membership.formatLevel < LEVEL ? "fixed by dLegerPeers" : null,
  ].filter(Boolean).join(", ");
}

const columnsOf = (group) => [
  { title: "Member", isPlain: true, read: (node) => node.id },
  { title: "Role", isText: true, read: sayRole },
  { title: "State", isPlain: true, read: (node) => node.state },
  { title: "Replication", read: (node) => node.member.replicationAddress },
  { title: "Log", view: (node) => html`<${Progress} node=${node} group=${group} />` },
  { title: "Change", view: (node) => group.membership.formatLevel >= LEVEL && html`<${MemberActions} group=${group} node=${node} />` },
];

function sayRole({ member }) {
  const said = ROLES[member.role] ?? member.role;
  return member.replaces === null ? said : `${said}, then replaces ${member.replaces}`;
}

function Progress({ node, group }) {
  const { progress } = node.member;
  if (node.id === group.leaderId) return html`<span>leads</span>`;
  if (progress === null) return html`<span class="unknown">unknown</span>`;
  const missing = progress.totalBytes - progress.receivedBytes;
  if (missing <= 0) return html`<span>${bytes(progress.totalBytes)}: all</span>`;
  return html`
    <progress max=${progress.totalBytes} value=${progress.receivedBytes} aria-label=${`Log of ${node.id}`} />
    <span>${sayProgress(progress, missing)}</span>`;
}

function sayProgress({ totalBytes, receivedBytes, bytesPerS }, missing) {
  const rate = bytesPerS === null ? null : `${bytes(bytesPerS)}/s`;
  const left = bytesPerS ? `${span((missing / bytesPerS) * 1000)} left` : null;
  return [`${bytes(receivedBytes)} of ${bytes(totalBytes)}`, rate, left].filter(Boolean).join(", ");
}

function MemberActions({ group, node }) {
  const { id, member } = node;
  const isVoter = member.role === "voter";
  return html`
    <span class="buttons">
      ${isVoter && html`<${Button} aria-label=${`Replace ${id}`} onClick=${() => replace(group, id)}>Replace…<//>`}
      ${isVoter && html`<${Button} aria-label=${`Take the vote of ${id}`} onClick=${() => setRole(group, id, "learner")}>Take its vote…<//>`}
      ${member.role === "learner" && html`
        <${Button} aria-label=${`Let ${id} vote`} onClick=${() => setRole(group, id, "voter")}>Let it vote…<//>`}
      <${Button} aria-label=${`Change the address of ${id}`} onClick=${() => move(group, node)}>Address…<//>
      <${Button} aria-label=${`Remove ${id}`} onClick=${() => remove(group, id)}>Remove…<//>
    </span>`;
}

const membersPath = (group) => `/api/v1/replication/${encodeURIComponent(group.group)}/members`;
const memberPath = (group, id) => `${membersPath(group)}/${encodeURIComponent(id)}`;

/** What is forced needs the member's id to be typed. */
const change = (values, id, rest) => makeChange({ ...rest, typed: values.force ? id : null });

async function add(group) {
  const title = `Add a member to ${group.group}`;
  const options = [["voter", "voter: votes when it has nearly the whole log"], ["learner", "learner: only gets the log"]];
  const role = { name: "role", title: "Role", type: "select", options, value: "voter" };
  const note = "Its node starts with an empty store, dLegerJoin = true, and itself and some members in dLegerPeers.";
  const values = await askForm(title, [NEW_ID, ADDRESS, role], { note });
  if (values !== null) await change(values, values.id, { title, verb: "Add", method: "POST", path: membersPath(group), body: values });
}

async function replace(group, id) {
  const title = `Replace ${id} of ${group.group}`;
  const values = await askForm(title, [NEW_ID, ADDRESS, FORCE], { note: "The new member joins; when it votes, the old one is removed." });
  if (values === null) return;
  await change(values, id, { title, verb: "Replace", method: "POST", path: `${memberPath(group, id)}/replace`, body: values });
}

async function remove(group, id) {
  const title = `Remove ${id} from ${group.group}`;
  const values = await askForm(title, [FORCE], { note: "Its files stay on its disk." });
  if (values === null) return;
  const path = `${memberPath(group, id)}?force=${values.force}`;
  await change(values, id, { title, verb: "Remove", method: "DELETE", path });
}

async function move(group, { id, member }) {
  const title = `Change the address of ${id} of ${group.group}`;
  const values = await askForm(title, [{ ...ADDRESS, value: member.replicationAddress }, FORCE]);
  if (values === null) return;
  await change(values, id, { title, verb: "Change", method: "PUT", path: `${memberPath(group, id)}/address`, body: values });
}

async function setRole(group, id, role) {
  const isVoter = role === "voter";
  const title = isVoter ? `Let ${id} of ${group.group} vote` : `Take the vote of ${id} of ${group.group}`;
  const values = await askForm(title, isVoter ? [] : [FORCE]);
  if (values === null) return;
  const verb = isVoter ? "Let it vote" : "Take its vote";
  await change(values, id, { title, verb, method: "PUT", path: `${memberPath(group, id)}/role`, body: { ...values, role } });
}
