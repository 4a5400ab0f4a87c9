// Dialogs over the native <dialog>: it keeps the focus inside, Escape closes it, and the focus goes back where it was.
// One that is open when the address changes belongs to the page before, and is left as by Escape.
// Every change goes the same way: its preview is read, then confirmed, then its outcome is read. What is confirmed is what
// was shown: the server refuses when the situation changed meanwhile, and the new preview is shown instead.

import { ApiError, ask, withQuery } from "/static/api.js";
import { Button, Form, PlainTable } from "/static/components.js";
import { sayError } from "/static/data.js";
import { counted } from "/static/format.js";
import { html } from "/static/markup.js";
import { useLayoutEffect, useRef, useState } from "/static/vendor/preact/hooks.mjs";
import { render } from "/static/vendor/preact/preact.mjs";

const UNCONFIRMED = [409, 428];
const ROWS_SHOWN = 200;
let made = 0;

/**
 * Opens a dialog with `content(close)` in it, { body, actions }; `close(value)` ends it. Resolves with that value, or with
 * null when it was left by Escape. It has a root of its own, so that no update of the page can take it away.
 */
function openDialog(title, content) {
  return new Promise((resolve) => {
    const place = document.body.appendChild(document.createElement("div"));
    let result = null;
    const close = (value) => {
      result = value;
      place.querySelector("dialog").close();
    };
    const onClose = () => {
      render(null, place);
      place.remove();
      resolve(result);
    };
    render(html`<${Dialog} title=${title} onClose=${onClose} ...${content(close)} />`, place);
  });
}

function Dialog({ title, body, actions, onClose }) {
  const frame = useRef(null);
  const [id] = useState(() => `dialog-title-${made += 1}`);
  useLayoutEffect(() => {
    const leave = () => frame.current.close();
    frame.current.showModal();
    addEventListener("hashchange", leave);
    return () => removeEventListener("hashchange", leave);
  }, []);
  return html`
    <dialog ref=${frame} aria-labelledby=${id} onClose=${onClose}>
      <h2 id=${id}>${title}</h2>
      ${body}
      <div class="actions">${actions}</div>
    </dialog>`;
}

/** A dialog with a form. Enter sends it; resolves with its values, or null. */
export function askForm(title, fields, { verb = "Show what happens", note = null } = {}) {
  const id = `dialog-form-${made += 1}`;
  return openDialog(title, (close) => ({
    body: html`${note && html`<p>${note}</p>`}<${Form} id=${id} fields=${fields} onSubmit=${close} />`,
    actions: html`
      <${Button} onClick=${() => close(null)}>Cancel<//>
      <button type="submit" form=${id} class="button strong">${verb}</button>`,
  }));
}

/** Something to be read, with one way out. */
export function showDialog(title, body) {
  const actions = (close) => html`<${Button} kind="strong" onClick=${() => close(null)}>Close<//>`;
  return openDialog(title, (close) => ({ body, actions: actions(close) }));
}

export const showError = (title, error) => showDialog(title, html`<p class="failed">✕ ${sayError(error)}</p>`);

/**
 * change: { title, verb, method, path, body, typed }. Resolves with true when something was changed. `typed`: a word that
 * must be typed before it can be done, for what costs most; null or left out: none.
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
  const kind = preview.isDestructive === false ? "strong" : "danger";
  const form = change.typed ? `dialog-form-${made += 1}` : null;
  const fields = [{ name: "typed", title: `Type ${change.typed} to confirm`, required: true, pattern: escaped(change.typed) }];
  return openDialog(change.title, (close) => ({
    body: html`
      <p class="target">${preview.target}</p>
      ${isNew && html`<${Warning}>The situation changed since you looked. This is what would happen now.<//>`}
      ${(preview.warnings ?? []).map((text) => html`<${Warning}>${text}<//>`)}
      <${Effects} effects=${preview.effects ?? []} />
      ${form && html`<${Form} id=${form} fields=${fields} onSubmit=${() => close(true)} />`}`,
    actions: html`
      <${Button} autofocus=${true} onClick=${() => close(null)}>Cancel<//>
      ${form
        ? html`<button type="submit" form=${form} class=${`button ${kind}`}>${change.verb}</button>`
        : html`<${Button} kind=${kind} onClick=${() => close(true)}>${change.verb}<//>`}`,
  }));
}

/** A word as a pattern of an input that takes only it. */
const escaped = (word) => (word ?? "").replace(/[\\^$.*+?()[\]{}|/]/g, (sign) => `\\${sign}`);

function Warning({ children }) {
  return html`<p class="warning"><span class="sign" aria-hidden="true">⚠ </span>${children}</p>`;
}

function Effects({ effects }) {
  if (effects.length === 0) return html`<p>Nothing would change.</p>`;
  const rest = effects.length - ROWS_SHOWN;
  const rows = effects.slice(0, ROWS_SHOWN).map(({ subject, before, after }) => [subject, before ?? "–", after ?? "–"]);
  return html`
    <h3>What will happen</h3>
    <${PlainTable} heads=${["What", "Now", "Then"]} rows=${rows} />
    ${rest > 0 && html`<p>And ${counted(rest, "more")}.</p>`}`;
}

function showOutcome(change, result) {
  const outcomes = result.outcomes ?? [];
  const failed = outcomes.filter((outcome) => !outcome.ok);
  const verdict = failed.length === 0 ? "✓ Done." : `✕ ${counted(failed.length, "part")} of ${outcomes.length} failed.`;
  const rows = outcomes.slice(0, ROWS_SHOWN).map(({ subject, ok, problem }) => [
    subject, ok ? "✓ done" : "✕ failed", problem?.replace(/\s+/g, " ") ?? (ok ? "–" : null),
  ]);
  return showDialog(change.title, html`
    <p class=${failed.length === 0 ? "done" : "failed"}>${verdict}</p>
    <${PlainTable} heads=${["What", "Outcome", "Remark"]} rows=${rows} />`);
}
