// The dead letters of one group: looked at, sent again one or many, saved.

import { ask, download, withQuery } from "/static/api.js";
import { button, make, setAttribute } from "/static/dom.js";
import { count, span } from "/static/format.js";
import { visible } from "/static/marks.js";
import { makeChange, showError } from "/static/parts/change.js";
import { askForm } from "/static/parts/dialog.js";
import { createForm } from "/static/parts/form.js";
import { createNotice } from "/static/parts/notice.js";
import { cell, createTable } from "/static/parts/table.js";
import { MESSAGE_COLUMNS } from "/static/views/messages.js";

export function createView(group) {
  const path = `/api/v1/dlq/${encodeURIComponent(group)}`;
  const notice = createNotice();
  const chosen = new Set();
  const columns = [
    { title: "Chosen", read: (row) => cell(row.id, () => chooser(row, chosen, count_)) },
    ...MESSAGE_COLUMNS,
    { title: "First topic", read: (row) => row.originalTopic },
    { title: "Age", read: (row) => span(row.ageMs) },
  ];
  const table = createTable({ label: "Dead letters", columns, keyOf: (row) => row.id, empty: "No dead letters." });
  let items = [];
  let cursor = null;
  const more = button("More", () => read(cursor));
  const sendChosen = button("Send the chosen again…", () => resend(path, group, [...chosen]).then(done), "strong");

  function count_() {
    sendChosen.textContent = chosen.size === 0 ? "Send the chosen again…" : `Send ${count(chosen.size)} again…`;
    sendChosen.disabled = chosen.size === 0;
  }

  async function read(from, signal) {
    try {
      const answer = await ask(withQuery(`${path}/messages`, { cursor: from }), { signal });
      notice.ofAnswer(answer);
      items = from === null ? answer.items : [...items, ...answer.items];
      cursor = answer.nextCursor;
      table.show(items);
      more.hidden = cursor === null;
    } catch (error) {
      if (signal?.aborted) return;
      notice.ofError(error);
      table.miss();
    }
  }

  function done(isDone) {
    if (!isDone) return;
    chosen.clear();
    for (const box of table.element.querySelectorAll("input")) box.checked = false;
    count_();
    read(null);
  }

  count_();
  more.hidden = true;
  const element = make("div", "one",
    make("div", "bar", make("div", "actions",
      sendChosen,
      button("Send all again…", () => resend(path, group, []).then(done)),
      button("Save as JSON lines", () => save(path, group, "jsonl")),
      button("Save as CSV", () => save(path, group, "csv")))),
    notice.element, table.element, more);
  return { title: `Dead letters of ${group}`, element, refresh: (signal) => read(null, signal) };
}

function chooser(row, chosen, onChange) {
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = chosen.has(row.id);
  setAttribute(box, "aria-label", `Choose ${row.uniqueKey ?? row.id}`);
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(row.id);
    else chosen.delete(row.id);
    onChange();
  });
  return box;
}

/** Those with the ids, or the oldest when there are none. */
async function resend(path, group, ids) {
  const title = ids.length === 0 ? `Send the dead letters of ${group} again` : `Send ${count(ids.length)} dead letters of ${group} again`;
  const form = createForm([{
    name: "target", title: "To", type: "select", options: [["group", "this group only"], ["topic", "their first topic, for all its groups"]],
  }]);
  const values = await askForm(title, form, "Show what happens");
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
