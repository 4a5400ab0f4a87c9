// The dead letters of every group; and those of one: looked at, sent again one or many, saved.

import { download, withQuery } from "/static/api.js";
import { Actions, Button, List, Notice, Table } from "/static/components.js";
import { usePieces } from "/static/data.js";
import { askForm, makeChange, showError } from "/static/dialogs.js";
import { clock, count, span } from "/static/format.js";
import { html, visible } from "/static/markup.js";
import { MESSAGE_COLUMNS } from "/static/pages/messages.js";
import { useEffect, useState } from "/static/vendor/preact/hooks.mjs";

const REFRESH_MS = 10_000;

const orDash = (read) => (row) => (row.count === 0 ? "–" : read(row));
const FILTERS = [{ name: "name", title: "Group contains", type: "search" }];
const GROUPS = {
  label: "Dead letters by group",
  keyOf: (row) => row.group,
  empty: "No group has dead letters.",
  sort: [1, "descending"],
  columns: [
    { title: "Group", read: (row) => row.group, link: (row) => `#/dlq/${encodeURIComponent(row.group)}`, sort: (row) => row.group },
    { title: "Dead letters", isNumber: true, read: sayCount, sort: (row) => row.count },
    { title: "Oldest", isPlain: true, read: orDash((row) => clock(row.oldestAtMs, Date.now())), sort: (row) => row.oldestAtMs },
    { title: "Age of the oldest", read: orDash((row) => span(row.oldestAtMs === null ? null : Date.now() - row.oldestAtMs)) },
    { title: "Newest", isPlain: true, read: orDash((row) => clock(row.newestAtMs, Date.now())), sort: (row) => row.newestAtMs },
  ],
};

function sayCount(row) {
  return row.isPartial && row.count !== null ? `at least ${count(row.count)}` : count(row.count);
}

export function DeadLettersPage() {
  return html`
    <${List} path="/api/v1/dlq" everyMs=${REFRESH_MS} filters=${FILTERS} filterLabel="Filter groups" table=${GROUPS}
      intro="Messages that a group could not consume, after all its retries." />`;
}

export function GroupDeadLettersPage({ subject: group }) {
  const path = `/api/v1/dlq/${encodeURIComponent(group)}`;
  const { items, cursor, notice, start, more } = usePieces();
  const [chosen, setChosen] = useState(new Set());
  const read = () => start(`${path}/messages`);
  useEffect(read, []);
  const sendAgain = async (ids) => {
    if (!await askSendAgain(path, group, ids)) return;
    setChosen(new Set());
    read();
  };
  const choose = (id, isChosen) => setChosen((ids) => new Set(isChosen ? [...ids, id] : [...ids].filter((one) => one !== id)));
  const columns = [
    { title: "Chosen", view: (row) => html`<${Chooser} row=${row} isChosen=${chosen.has(row.id)} onChoose=${choose} />` },
    ...MESSAGE_COLUMNS,
    { title: "First topic", read: (row) => row.originalTopic },
    { title: "Age", read: (row) => span(row.ageMs) },
  ];
  return html`
    <div class="one">
      <${Actions}>
        <${Button} kind="strong" disabled=${chosen.size === 0} onClick=${() => sendAgain([...chosen])}>
          ${chosen.size === 0 ? "Send the chosen again…" : `Send ${count(chosen.size)} again…`}
        <//>
        <${Button} onClick=${() => sendAgain([])}>Send all again…<//>
        <${Button} onClick=${() => save(path, group, "jsonl")}>Save as JSON lines<//>
        <${Button} onClick=${() => save(path, group, "csv")}>Save as CSV<//>
      <//>
      <${Notice} notice=${notice} />
      <${Table} label="Dead letters" columns=${columns} keyOf=${(row) => row.id} rows=${items} empty="No dead letters." />
      ${cursor !== null && html`<${Button} onClick=${more}>More<//>`}
    </div>`;
}

function Chooser({ row, isChosen, onChoose }) {
  return html`
    <input type="checkbox" checked=${isChosen} aria-label=${`Choose ${row.uniqueKey ?? row.id}`}
      onChange=${(event) => onChoose(row.id, event.target.checked)} />`;
}

/** Those with the ids, or the oldest when there are none. */
async function askSendAgain(path, group, ids) {
  const title = ids.length === 0 ? `Send the dead letters of ${group} again` : `Send ${count(ids.length)} dead letters of ${group} again`;
  const targets = [["group", "this group only"], ["topic", "their first topic, for all its groups"]];
  const values = await askForm(title, [{ name: "target", title: "To", type: "select", options: targets }]);
  if (values === null) return false;
  return makeChange({ title, verb: "Send again", method: "POST", path: `${path}/resend`, body: { target: values.target, ids } });
}

async function save(path, group, format) {
  try {
    const file = URL.createObjectURL(await download(withQuery(`${path}/export`, { format })));
    const link = document.createElement("a");
    link.href = file;
    link.download = `dlq-${visible(group)}.${format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(file), 10_000);
  } catch (error) {
    await showError("Save", error);
  }
}
