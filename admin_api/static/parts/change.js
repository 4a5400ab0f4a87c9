// Every change goes the same way: its preview is read, then confirmed, then its outcome is read. What is confirmed is
// what was shown: the server refuses when the situation changed meanwhile, and the new preview is shown instead.

import { ApiError, ask, withQuery } from "/static/api.js";
import { button, make, valued } from "/static/dom.js";
import { counted } from "/static/format.js";
import { openDialog } from "/static/parts/dialog.js";
import { sayError } from "/static/parts/notice.js";

const UNCONFIRMED = [409, 428];
const ROWS_SHOWN = 200;

/**
 * change: { title, verb, method, path, body }. Resolves with true when something was changed.
 */
export async function makeChange(change) {
  let preview = await attempt(change, { dryRun: true });
  let isNew = false;
  while (preview !== null) {
    const isConfirmed = await confirmChange(change, preview, isNew);
    if (!isConfirmed) return false;
    const result = await attempt(change, { dryRun: false, confirmation: preview.confirmation });
    if (result === null) return false;
    if (!result.hasConflict) {
      await showOutcome(change, result);
      return true;
    }
    preview = result;
    isNew = true;
  }
  return false;
}

/** The result; one whose `hasConflict` is the preview of now. null when it failed, which was shown. */
async function attempt(change, parameters) {
  try {
    return await ask(withQuery(change.path, parameters), { method: change.method, body: change.body });
  } catch (error) {
    const result = error instanceof ApiError ? error.problem.result ?? null : null;
    if (result === null) await showError(change.title, error);
    else if (UNCONFIRMED.includes(error.status)) return { ...result, hasConflict: true };
    else await showOutcome(change, result);
    return null;
  }
}

function confirmChange(change, preview, isNew) {
  return openDialog(change.title, (close) => {
    const cancel = button("Cancel", () => close(null));
    cancel.autofocus = true;
    const kind = preview.isDestructive === false ? "strong" : "danger";
    const body = [make("p", "target", preview.target)];
    if (isNew) body.push(warning("The situation changed since you looked. This is what would happen now."));
    body.push(...(preview.warnings ?? []).map(warning), ...effectsTable(preview.effects ?? []));
    return { body, actions: [cancel, button(change.verb, () => close(true), kind)] };
  }, "change");
}

function warning(text) {
  const sign = make("span", "sign", "⚠ ");
  sign.setAttribute("aria-hidden", "true");
  return make("p", "warning", sign, text);
}

function effectsTable(effects) {
  if (effects.length === 0) return [make("p", "", "Nothing would change.")];
  const line = ({ subject, before, after }) => make("tr", "",
    make("td", "", subject), make("td", "", before ?? "–"), make("td", "", after ?? "–"));
  const rest = effects.length - ROWS_SHOWN;
  return [
    make("h3", "", "What will happen"),
    make("div", "scroll", make("table", "", heads(["What", "Now", "Then"]), make("tbody", "", ...effects.slice(0, ROWS_SHOWN).map(line)))),
    ...(rest > 0 ? [make("p", "", `And ${counted(rest, "more")}.`)] : []),
  ];
}

function heads(names) {
  return make("thead", "", make("tr", "", ...names.map((name) => {
    const head = make("th", "", name);
    head.scope = "col";
    return head;
  })));
}

function showOutcome(change, result) {
  const outcomes = result.outcomes ?? [];
  const failed = outcomes.filter((outcome) => !outcome.ok);
  const verdict = failed.length === 0 ? "✓ Done." : `✕ ${counted(failed.length, "part")} of ${outcomes.length} failed.`;
  const line = ({ subject, ok, problem }) => make("tr", "",
    make("td", "", subject), make("td", "", ok ? "✓ done" : "✕ failed"), valued("td", problem?.replace(/\s+/g, " ") ?? (ok ? "–" : null)));
  return openDialog(change.title, (close) => ({
    body: [
      make("p", failed.length === 0 ? "done" : "failed", verdict),
      make("div", "scroll", make("table", "", heads(["What", "Outcome", "Remark"]), make("tbody", "", ...outcomes.slice(0, ROWS_SHOWN).map(line)))),
    ],
    actions: [button("Close", () => close(true), "strong")],
  }), "outcome");
}

export function showError(title, error) {
  return openDialog(title, (close) => ({
    body: [make("p", "failed", `✕ ${sayError(error)}`)],
    actions: [button("Close", () => close(null), "strong")],
  }), "outcome");
}
