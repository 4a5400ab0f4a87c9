// Access control: whether brokers check their clients, the users, their policies; and one user. A password is typed into a
// form and sent in the body of its request: nothing keeps or shows it.

import { withQuery } from "/static/api.js";
import { Actions, Button, Facts, List, Notice, Panel, Table } from "/static/components.js";
import { pick, useAnswers } from "/static/data.js";
import { askForm, makeChange } from "/static/dialogs.js";
import { count } from "/static/format.js";
import { html } from "/static/markup.js";

const REFRESH_MS = 10_000;
const PAGE_SIZE = 50;
const MODES = {
  off: "✕ nothing: every client may do everything",
  accounts: "✓ accounts of plain_acl.yml",
  authentication: "✓ signatures; every user may do everything",
  authorization: "✓ signatures and policies",
};
const STATUSES = { enable: "✓ enabled", disable: "✕ disabled" };
const ACTIONS = ["Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "All"];
const RESOURCE_HINT = "Topic:orders, Group:order*, Cluster:*, or * for everything";
const UNSIGNED = "This service signs none of its requests: a broker that checks users refuses them.";
const userPath = (name) => `/api/v1/users/${encodeURIComponent(name)}`;
const policyPath = (name) => `/api/v1/policies/${encodeURIComponent(name)}`;
const words = (text) => (text ?? "").split(/[\s,]+/).filter(Boolean);
const sayPlaces = (row) => [row.places.join(", "), ...(row.missingPlaces ?? []).map((place) => `✕ not on ${place}`)].join("; ");

const PLACES = [
  { title: "Broker", read: (row) => row.place },
  { title: "Checks", read: (row) => MODES[row.mode] },
  { title: "Users", isNumber: true, read: (row) => count(row.userCount) },
  { title: "Super users", isNumber: true, read: (row) => count(row.superUserCount) },
  { title: "While it runs", isText: true, read: (row) => row.remedy ?? "can be switched" },
];
const USERS = {
  label: "Users",
  keyOf: (row) => row.username,
  empty: "No user matches.",
  columns: [
    { title: "User", read: (row) => row.username, link: (row) => `#/access/${encodeURIComponent(row.username)}` },
    { title: "Type", read: (row) => row.userType ?? "differs" },
    { title: "Status", read: (row) => STATUSES[row.userStatus] ?? "differs" },
    { title: "On", read: sayPlaces },
  ],
};
const USER_FILTERS = [
  { name: "name", title: "Name contains", type: "search" },
  { name: "userType", title: "Type", type: "select", options: [["", "all"], "Normal", "Super"] },
  { name: "userStatus", title: "Status", type: "select", options: [["", "all"], ["enable", "enabled"], ["disable", "disabled"]] },
];
const POLICY_COLUMNS = [
  { title: "Resource", read: (row) => row.resource },
  { title: "Decision", read: (row) => (row.decision === "Deny" ? "✕ Deny" : "✓ Allow") },
  { title: "Actions", read: (row) => row.actions.join(", ") },
  { title: "From", read: (row) => row.sourceIps.join(", ") || "anywhere" },
  { title: "Type", read: (row) => row.policyType },
  { title: "On", read: sayPlaces },
];
const policyKey = (row) => JSON.stringify([row.username, row.policyType, row.resource, row.places]);
const POLICIES = {
  label: "Policies",
  keyOf: policyKey,
  empty: "No policy matches.",
  columns: [
    { title: "User", read: (row) => row.username, link: (row) => `#/access/${encodeURIComponent(row.username)}` },
    ...POLICY_COLUMNS,
  ],
};
const POLICY_FILTERS = [
  { name: "user", title: "User contains", type: "search" },
  { name: "resource", title: "Resource contains", type: "search" },
];

export function AccessPage() {
  const { answers: { state }, notice, refresh } = useAnswers({ state: "/api/v1/access" }, { everyMs: REFRESH_MS });
  const create = (refreshUsers) => html`
    <${Button} kind="strong" onClick=${() => createUser(() => { refreshUsers(); refresh(); })}>New user…<//>`;
  return html`
    <div class="one">
      <${Actions}><${Button} onClick=${() => switchAccess(state, refresh)}>Switch on or off…<//><//>
      <${Notice} notice=${notice} />
      <p class="intro">${state && !state.isSigning && UNSIGNED}</p>
      <${Panel} title="What brokers check">
        <${Table} label="Access control by broker" columns=${PLACES} keyOf=${(row) => row.place} empty="No broker is known."
          rows=${pick(state, (answer) => answer.places)} />
      <//>
      <${Panel} title="Users">
        <${List} path="/api/v1/users" everyMs=${REFRESH_MS} pageSize=${PAGE_SIZE} table=${USERS} actions=${create}
          filters=${USER_FILTERS} filterLabel="Filter users" />
      <//>
      <${Panel} title="Policies">
        <${List} path="/api/v1/policies" everyMs=${REFRESH_MS} pageSize=${PAGE_SIZE} table=${POLICIES}
          filters=${POLICY_FILTERS} filterLabel="Filter policies" />
      <//>
    </div>`;
}

async function switchAccess(state, onDone) {
  const title = "Switch access control";
  const modes = (state?.places ?? []).filter((place) => place.canSwitch).map((place) => place.mode);
  const body = await askForm(title, [
    {
      name: "authenticationEnabled", title: "Clients must sign as a user", type: "check",
      value: modes.some((mode) => mode === "authentication" || mode === "authorization"),
    },
    {
      name: "authorizationEnabled", title: "Policies must allow what they do", type: "check",
      value: modes.includes("authorization"), hint: "This asks for signatures, too.",
    },
  ]);
  if (body === null) return;
  if (await makeChange({ title, verb: "Switch", method: "PATCH", path: "/api/v1/access", body })) onDone();
}

const PASSWORD = [
  { name: "password", title: "Password", type: "new-password", required: true },
  { name: "again", title: "The same again", type: "new-password", required: true, sameAs: "password" },
];
const TYPE = { name: "userType", title: "Type", type: "select", options: [["Normal", "Normal: what its policies allow"], ["Super", "Super: everything"]] };

async function createUser(onDone) {
  const values = await askForm("New user", [
    { name: "username", title: "Name", required: true },
    ...PASSWORD,
    TYPE,
    { name: "isEnabled", title: "Enabled", type: "check", value: true },
  ]);
  if (values === null) return;
  const { username, password, userType, isEnabled } = values;
  const body = { username, password, userType, userStatus: isEnabled ? "enable" : "disable" };
  if (await makeChange({ title: `Create user ${username}`, verb: "Create", method: "POST", path: "/api/v1/users", body })) onDone();
}

export function UserPage({ subject: name }) {
  const { answers: { user }, notice, refresh } = useAnswers({ user: userPath(name) }, { everyMs: REFRESH_MS });
  const isDisabled = user?.userStatus === "disable";
  const columns = [
    ...POLICY_COLUMNS,
    { title: "Change", view: (row) => html`<${PolicyButtons} name=${name} row=${row} onDone=${refresh} />` },
  ];
  const update = (title, verb, body) => changeUser(name, title, verb, body, refresh);
  return html`
    <div class="one">
      <${Actions}>
        <${Button} kind="strong" onClick=${() => createPolicy(name, refresh)}>New policy…<//>
        <${Button} onClick=${() => changePassword(name, refresh)}>Change password…<//>
        <${Button} onClick=${() => (isDisabled
          ? update(`Enable ${name}`, "Enable", { userStatus: "enable" })
          : update(`Disable ${name}`, "Disable", { userStatus: "disable" }))}>${isDisabled ? "Enable…" : "Disable…"}<//>
        <${Button} onClick=${() => changeType(name, user, refresh)}>Type…<//>
        <a href="#/access">All users</a>
        <${Button} kind="danger" onClick=${() => deleteUser(name)}>Delete…<//>
      <//>
      <${Notice} notice=${notice} />
      <${Facts} facts=${user && factsOf(user)} />
      <${Panel} title="Policies">
        <${Table} label="Policies" columns=${columns} keyOf=${policyKey} rows=${pick(user, (answer) => answer.policies)}
          empty=${user?.userType === "Super" ? "None: a super user needs none." : "None: it may do nothing where policies are checked."} />
      <//>
    </div>`;
}

const factsOf = (user) => [
  ["Type", user.userType ?? "differs"],
  ["Status", STATUSES[user.userStatus] ?? "differs"],
  ["On", sayPlaces(user)],
];

async function changeUser(name, title, verb, body, onDone) {
  if (await makeChange({ title, verb, method: "PATCH", path: userPath(name), body })) onDone();
}

async function changePassword(name, onDone) {
  const title = `Change the password of ${name}`;
  const values = await askForm(title, PASSWORD);
  if (values !== null) await changeUser(name, title, "Change", { password: values.password }, onDone);
}

async function changeType(name, user, onDone) {
  const title = `Type of ${name}`;
  const body = await askForm(title, [{ ...TYPE, value: user?.userType }]);
  if (body !== null) await changeUser(name, title, "Change", body, onDone);
}

async function deleteUser(name) {
  const change = { title: `Delete user ${name}`, verb: "Delete", method: "DELETE", path: userPath(name) };
  if (await makeChange(change)) location.hash = "#/access";
}

const policyFields = (now) => [
  { name: "decision", title: "Decision", type: "select", options: ["Allow", "Deny"], value: now.decision },
  { name: "actions", title: "Actions", type: "checks", options: ACTIONS, value: now.actions, required: true },
  { name: "sourceIps", title: "From", value: now.sourceIps.join(", "), hint: "Addresses and networks such as 10.0.0.0/8; empty: from anywhere" },
];

async function createPolicy(name, onDone) {
  const title = `New policy of ${name}`;
  const values = await askForm(title, [
    { name: "resources", title: "Resources", required: true, hint: RESOURCE_HINT },
    ...policyFields({ decision: "Allow", actions: ["Pub", "Sub"], sourceIps: [] }),
    {
      name: "policyType", title: "Type", type: "select",
      options: ["Custom", ["Default", "Default: counts where no Custom one matches"]],
    },
  ]);
  if (values === null) return;
  const body = { ...values, resources: words(values.resources), sourceIps: words(values.sourceIps) };
  if (await makeChange({ title, verb: "Create", method: "POST", path: policyPath(name), body })) onDone();
}

function PolicyButtons({ name, row, onDone }) {
  const about = `the policy about ${row.resource}`;
  const edit = async () => {
    const title = `Change ${about}`;
    const values = await askForm(title, policyFields(row));
    if (values === null) return;
    const body = { ...values, resources: [row.resource], policyType: row.policyType, sourceIps: words(values.sourceIps) };
    if (await makeChange({ title, verb: "Change", method: "PUT", path: policyPath(name), body })) onDone();
  };
  const remove = async () => {
    const path = withQuery(policyPath(name), { resource: row.resource, policyType: row.policyType });
    if (await makeChange({ title: `Delete ${about}`, verb: "Delete", method: "DELETE", path })) onDone();
  };
  return html`
    <div class="buttons">
      <${Button} aria-label=${`Change ${about}`} onClick=${edit}>Change…<//>
      <${Button} kind="danger" aria-label=${`Delete ${about}`} onClick=${remove}>Delete…<//>
    </div>`;
}
