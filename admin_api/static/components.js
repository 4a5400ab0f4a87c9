// What the pages are made of: buttons, panels, notices, tables, forms, lists.

import { withQuery } from "/static/api.js";
import { pick, useAnswers } from "/static/data.js";
import { count, inputTime } from "/static/format.js";
import { html } from "/static/markup.js";
import { useLayoutEffect, useMemo, useRef, useState } from "/static/vendor/preact/hooks.mjs";

const PAGE_SIZE = 100;
const TYPING_MS = 300;
export const UNKNOWN = "Unknown: the nodes that know it do not answer.";
let made = 0;

/** `kind`: "" for an ordinary one, "strong" for what one came to do, "danger" for what cannot be taken back. */
export function Button({ kind = "", children, ...attributes }) {
  return html`<button type="button" class=${`button ${kind}`.trim()} ...${attributes}>${children}</button>`;
}

export function Panel({ title, children }) {
  return html`<section class="panel"><h2>${title}</h2>${children}</section>`;
}

/** A bar with what can be done on a page. */
export function Actions({ children }) {
  return html`<div class="bar"><div class="actions">${children}</div></div>`;
}

/** notice: { text, items } or null. It stays in the document, so that a reader of the screen tells when it fills. */
export function Notice({ notice }) {
  return html`
    <div class="notice" role="status" hidden=${notice === null}>
      <span class="sign" aria-hidden="true">⚠</span>
      <div>
        <strong>${notice?.text}</strong>
        <ul>${(notice?.items ?? []).map((item) => html`<li key=${item}>${item}</li>`)}</ul>
      </div>
    </div>`;
}

/** An element that holds a value; null is the word "unknown", set apart from values. */
function valued(tag, text, className = "") {
  const name = `${className}${text === null ? " unknown" : ""}`.trim();
  return html`<${tag} class=${name || null}>${text ?? "unknown"}<//>`;
}

/** Names and values: [[name, text|null], …]. */
export function Facts({ facts, className = "facts wide" }) {
  return html`
    <dl class=${className}>
      ${(facts ?? []).map(([name, text]) => html`<div key=${name}><dt>${name}</dt>${valued("dd", text)}</div>`)}
    </dl>`;
}

/** A small table: heads are texts, rows lists of texts. */
export function PlainTable({ heads, rows }) {
  return html`
    <div class="scroll">
      <table>
        <thead><tr>${heads.map((head) => html`<th scope="col">${head}</th>`)}</tr></thead>
        <tbody>${rows.map((row) => html`<tr>${row.map((text) => valued("td", text))}</tr>`)}</tbody>
      </table>
    </div>`;
}

/**
 * A table that is sorted by its heads and becomes cards on a narrow screen.
 * columns: [{ title, read(row) -> text|null, link(row) -> address, view(row) -> markup, sort(row) -> number|string|null,
 * isNumber, isPlain, isText }]; a `view` stands in place of `read`. What is plain is short and stays on one line. A text may
 * be long and is folded; of any other value a long word is cut, so that one name does not take the room of the other columns.
 * rows: undefined while they are read, null when no node could answer.
 * sort: [column number, "ascending"|"descending"] or null to keep the order given.
 */
export function Table({ label, columns, rows, keyOf, empty = "None.", sort = null }) {
  const [order, setOrder] = useState(sort);
  const lines = useMemo(() => {
    const shown = order === null || !rows ? rows : sorted(rows, columns[order[0]].sort, order[1]);
    return (shown ?? []).map((row) => html`<${Row} key=${keyOf(row)} row=${row} columns=${columns} />`);
  }, [rows, columns, order]);
  if (lines.length === 0) {
    const text = rows === undefined ? "Loading…" : rows === null ? UNKNOWN : empty;
    return html`<div class="table"><p class="empty">${text}</p></div>`;
  }

  function sortBy(place) {
    const isSame = order !== null && order[0] === place;
    const first = columns[place].isNumber ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    setOrder([place, isSame && order[1] === first ? other : first]);
  }

  return html`
    <div class="table"><div class="scroll-x">
      <table class="stack" role="table">
        <caption class="visually-hidden">${label}</caption>
        <thead role="rowgroup"><tr role="row">
          ${columns.map((column, place) => html`
            <th scope="col" role="columnheader" class=${column.isNumber ? "number" : null}
              aria-sort=${order !== null && order[0] === place ? order[1] : "none"}>
              ${column.sort ? html`<button type="button" class="sort" onClick=${() => sortBy(place)}>${column.title}</button>` : column.title}
            </th>`)}
        </tr></thead>
        <tbody role="rowgroup">${lines}</tbody>
      </table>
    </div></div>`;
}

/** Unknown values come last, in either direction. */
function sorted(rows, read, direction) {
  const sign = direction === "ascending" ? 1 : -1;
  return [...rows].sort((a, b) => {
    const [left, right] = [read(a), read(b)];
    if (left === null || right === null) return (left === null) - (right === null);
    if (typeof left === "string") return sign * left.localeCompare(right, "en", { numeric: true });
    return sign * (left - right);
  });
}

/** Drawn again only when a value differs, so that thousands of rows cost little. */
function Row({ columns, row }) {
  const values = columns.map((column) => (column.view ? column.view(row) : column.read(row)));
  const cells = () => columns.map((column, place) => html`
    <td role="cell" class=${kindOf(column)} data-label=${column.title}>${content(column, row, values[place])}</td>`);
  return useMemo(() => html`<tr role="row">${cells()}</tr>`, values);
}

const kindOf = (column) => (column.isNumber ? "number" : column.isPlain ? "plain" : column.isText ? "text" : null);

function content(column, row, value) {
  const className = column.isText ? "" : "cut";
  if (column.link) return html`<div class=${className}><a href=${column.link(row)}>${value}</a></div>`;
  return column.view ? html`<div class=${className}>${value}</div>` : valued("div", value, className);
}

/**
 * fields: [{ name, title, type: text|number|select|check|checks|time|area|search|password|new-password, value, options, hint,
 * required, min, max, pattern, sameAs, isShown(values) }]. `onSubmit(values)`, `onInput(values)`: empty text is left out of the
 * values; numbers are numbers, times Unix ms, a check is a boolean, checks the list of those that are set. `sameAs`: the name
 * of the field whose value must be typed once more. What is typed is the browser's: no update changes it.
 */
export function Form({ fields, id = null, label = null, isInline = false, onSubmit = () => {}, onInput = () => {} }) {
  const frame = useRef(null);
  const [values, setValues] = useState(() => Object.fromEntries(fields.map((field) => [field.name, field.value])));
  const submit = (event) => {
    event.preventDefault();
    onSubmit(readValues(frame.current, fields));
  };
  const change = () => {
    requireSame(frame.current, fields);
    const now = readValues(frame.current, fields);
    setValues(now);
    onInput(now);
  };
  return html`
    <form ref=${frame} ...${id === null ? {} : { id }} aria-label=${label} class=${isInline ? "form inline" : "form"} onSubmit=${submit} onInput=${change}>
      ${fields.map((field) => (field.type === "checks"
        ? html`<${Checks} key=${field.name} field=${field} />`
        : html`<${Field} key=${field.name} field=${field} isShown=${field.isShown?.(values) ?? true} />`))}
    </form>`;
}

/** The browser says what is wrong before it sends the form. */
function requireSame(form, fields) {
  for (const { name, sameAs } of fields.filter((field) => field.sameAs)) {
    const [typed, first] = [name, sameAs].map((each) => form.elements.namedItem(each));
    typed.setCustomValidity(typed.value === first.value ? "" : "This is not the same as above.");
  }
}

function readValues(form, fields) {
  const values = fields.map((field) => [
    field.name, field.type === "checks" ? checkedOf(form, field) : readValue(form.elements.namedItem(field.name), field.type),
  ]);
  return Object.fromEntries(values.filter(([, value]) => value !== null));
}

function readValue(control, type) {
  if (type === "check") return control.checked;
  const text = type === "area" || type === "new-password" ? control.value : control.value.trim();
  if (text === "") return null;
  if (type === "number") return Number(text);
  return type === "time" ? inputTime(text) : text;
}

const checkedOf = (form, { name, options }) => options.filter((option) => form.elements.namedItem(`${name}-${option}`).checked);

/** Several checks of one question. `required`: one of them at least. */
function Checks({ field }) {
  const frame = useRef(null);
  const check = () => {
    const boxes = [...frame.current.querySelectorAll("input")];
    const isMissing = field.required === true && !boxes.some((box) => box.checked);
    boxes[0].setCustomValidity(isMissing ? "Choose at least one." : "");
  };
  useLayoutEffect(check, []);
  return html`
    <fieldset class="field checks" ref=${frame} onInput=${check}>
      <legend>${field.title}</legend>
      ${field.options.map((option) => html`
        <label><input type="checkbox" name=${`${field.name}-${option}`} defaultChecked=${field.value.includes(option)} />${option}</label>`)}
    </fieldset>`;
}

function Field({ field, isShown }) {
  const [id] = useState(() => `field-${made += 1}`);
  const hint = field.hint && html`<small class="hint" id=${`${id}-hint`}>${field.hint}</small>`;
  const label = html`<label for=${id}>${field.title}</label>`;
  const control = html`
    <${Control} field=${field} id=${id} name=${field.name} required=${isShown && field.required === true}
      aria-describedby=${hint ? `${id}-hint` : null} />`;
  return html`
    <div class=${`field ${field.type ?? "text"}`} hidden=${!isShown}>
      ${field.type === "check" ? [control, label] : [label, control]}
      ${hint}
    </div>`;
}

const INPUT_TYPES = { check: "checkbox", time: "datetime-local", "new-password": "password" };

/** A select's options are texts, or [value, text] pairs. */
function Control({ field, ...attributes }) {
  if (field.type === "select") {
    const pairs = field.options.map((option) => (Array.isArray(option) ? option : [option, option]));
    return html`
      <select ...${attributes}>
        ${pairs.map(([value, text]) => html`<option value=${value} selected=${value === field.value}>${text}</option>`)}
      </select>`;
  }
  if (field.type === "check") return html`<input type="checkbox" defaultChecked=${field.value === true} ...${attributes} />`;
  const autocomplete = field.type === "new-password" ? "new-password" : "off";
  const plain = { spellcheck: false, autocomplete, defaultValue: field.value ?? "", ...attributes };
  if (field.type === "area") return html`<textarea ...${plain} />`;
  const bounds = Object.fromEntries(["min", "max", "pattern"].filter((name) => name in field).map((name) => [name, field[name]]));
  if (field.type === "time") bounds.step = "1";
  return html`<input type=${INPUT_TYPES[field.type] ?? field.type ?? "text"} ...${bounds} ...${plain} />`;
}

/** Leads through the pages of a long list. Hidden while all fits on one. */
function Pager({ page, pageSize, total, onPage }) {
  const pages = total === null ? null : Math.max(1, Math.ceil(total / pageSize));
  return html`
    <nav class="pager" aria-label="Pages" hidden=${pages === 1 && page === 1}>
      <${Button} disabled=${page <= 1} onClick=${() => onPage(page - 1)}>‹ Previous<//>
      <span class="where">Page ${count(page)} of ${count(pages) ?? "unknown"}, ${count(total) ?? "unknown"} in all</span>
      <${Button} disabled=${pages !== null && page >= pages} onClick=${() => onPage(page + 1)}>Next ›<//>
    </nav>`;
}

/**
 * A page that is a list read from the server. `filters`: fields of a form, whose values `parameters(values)` makes a query
 * of; `actions(refresh)`: markup; `table`: of a Table, without its rows.
 */
export function List({ path, everyMs, table, intro, filters, filterLabel, parameters = (values) => values, actions, pageSize = PAGE_SIZE }) {
  const [wanted, setWanted] = useState({ page: 1 });
  const typing = useRef(0);
  const { page, ...values } = wanted;
  const address = withQuery(path, { ...parameters(values), page, pageSize });
  const { answers: { list }, notice, refresh } = useAnswers({ list: address }, { everyMs });
  const start = (chosen) => {
    clearTimeout(typing.current);
    setWanted({ ...chosen, page: 1 });
    refresh();
  };
  const startSoon = (chosen) => {
    clearTimeout(typing.current);
    typing.current = setTimeout(() => start(chosen), TYPING_MS);
  };
  return html`
    <div class="list">
      ${intro && html`<p class="intro">${intro}</p>`}
      <div class="bar">
        ${filters && html`<${Form} fields=${filters} label=${filterLabel} isInline=${true} onSubmit=${start} onInput=${startSoon} />`}
        <div class="actions">${actions?.(refresh)}</div>
      </div>
      <${Notice} notice=${notice} />
      <${Table} ...${table} rows=${pick(list, (answer) => answer.items)} />
      ${list && html`<${Pager} ...${list} onPage=${(at) => setWanted({ ...wanted, page: at })} />`}
    </div>`;
}
