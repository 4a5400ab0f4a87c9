// Who changed what.

import { List } from "/static/components.js";
import { clock, counted } from "/static/format.js";
import { html } from "/static/markup.js";

const REFRESH_MS = 10_000;
const OUTCOMES = { applied: "✓ done", partial: "◐ done in part", refused: "– refused", failed: "✕ failed", begun: "? end unknown" };

const TABLE = {
  label: "Changes",
  keyOf: (row) => row.id,
  empty: "Nothing was changed through this service yet.",
  columns: [
    { title: "When", isPlain: true, read: (row) => clock(row.atMs, Date.now()) },
    { title: "Who", read: (row) => `${row.actor} (${row.role}) from ${row.remote}` },
    { title: "What", read: (row) => row.action },
    { title: "Of", read: (row) => row.target },
    { title: "Outcome", isPlain: true, read: (row) => OUTCOMES[row.outcome] ?? row.outcome },
    { title: "Effects", isText: true, view: (row) => html`<${Effects} row=${row} />` },
  ],
};

function Effects({ row }) {
  const notes = [row.problem, ...row.warnings].filter(Boolean);
  const effects = row.effects.map(({ subject, before, after }) => `${subject}: ${before ?? "–"} → ${after ?? "–"}`);
  if (notes.length + effects.length === 0) return html`<span>–</span>`;
  return html`
    <details>
      <summary>${counted(row.effectsTotal, "effect")}</summary>
      <ul>${[...notes, ...effects].map((text) => html`<li>${text}</li>`)}</ul>
    </details>`;
}

export function AuditPage() {
  const intro = "Changes made, refused or failed through this service, newest first.";
  return html`<${List} path="/api/v1/audit" everyMs=${REFRESH_MS} pageSize=${50} intro=${intro} table=${TABLE} />`;
}
