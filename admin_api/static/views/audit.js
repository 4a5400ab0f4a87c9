// Who changed what.

import { make } from "/static/dom.js";
import { clock, counted } from "/static/format.js";
import { createList } from "/static/parts/list.js";
import { cell } from "/static/parts/table.js";

const REFRESH_MS = 10_000;
const OUTCOMES = { applied: "✓ done", partial: "◐ done in part", refused: "– refused", failed: "✕ failed", begun: "? end unknown" };

const COLUMNS = [
  { title: "When", isPlain: true, read: (row) => clock(row.atMs, Date.now()) },
  { title: "Who", read: (row) => `${row.actor} (${row.role}) from ${row.remote}` },
  { title: "What", read: (row) => row.action },
  { title: "Of", read: (row) => row.target },
  { title: "Outcome", isPlain: true, read: (row) => OUTCOMES[row.outcome] ?? row.outcome },
  { title: "Effects", isText: true, read: (row) => cell(`${row.id}${row.outcome}`, () => effectsOf(row)) },
];

function effectsOf(row) {
  const lines = row.effects.map(({ subject, before, after }) => make("li", "", `${subject}: ${before ?? "–"} → ${after ?? "–"}`));
  const notes = [row.problem, ...row.warnings].filter(Boolean).map((note) => make("li", "", note));
  if (lines.length + notes.length === 0) return make("span", "", "–");
  return make("details", "", make("summary", "", counted(row.effectsTotal, "effect")), make("ul", "", ...notes, ...lines));
}

export function createView() {
  const list = createList({
    path: "/api/v1/audit",
    pageSize: 50,
    intro: "Changes made, refused or failed through this service, newest first.",
    table: { label: "Changes", columns: COLUMNS, keyOf: (row) => row.id, empty: "Nothing was changed through this service yet." },
  });
  return { title: "Audit", element: list.element, refresh: list.refresh, refreshMs: REFRESH_MS };
}
