// A table that is sorted by its heads, keeps focus through updates, and becomes cards on a narrow screen.

import { make, reconcile, setAttribute, setText, setValue } from "/static/dom.js";

export const UNKNOWN = "Unknown: nobody who would know gives an answer.";

/**
 * columns: [{ title, read(row) -> text|null|Node, sort(row) -> number|string|null, isNumber, isPlain, isText }]. What is
 * plain is short and stays on one line. A text may be long and is folded; of any other value a long word is cut, so that
 * one name does not take the place of the other columns. A `read` that gives a Node is drawn anew each time, so it carries
 * a key of what it shows: { node, key }.
 * sort: [column number, "ascending"|"descending"] or null to keep the order given.
 */
export function createTable({ label, columns, keyOf, empty = "None.", sort = null }) {
  let rows = null;
  let order = sort;
  const heads = columns.map((column, place) => createHead(column, () => sortBy(place)));
  const body = make("tbody");
  const table = make("table", "stack", make("caption", "visually-hidden", label),
    make("thead", "", make("tr", "", ...heads)), body);
  for (const [selector, role] of [["table", "table"], ["thead, tbody", "rowgroup"], ["tr", "row"]]) giveRole(table, selector, role);
  const nothing = make("p", "empty", "Loading…");
  table.hidden = true;
  const element = make("div", "table", make("div", "scroll-x", table), nothing);

  function sortBy(place) {
    const isSame = order !== null && order[0] === place;
    const first = columns[place].isNumber ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    order = [place, isSame && order[1] === first ? other : first];
    draw();
  }

  function draw() {
    heads.forEach((head, place) => {
      setAttribute(head, "aria-sort", order !== null && order[0] === place ? order[1] : "none");
    });
    const shown = order === null ? rows : sorted(rows, columns[order[0]].sort, order[1]);
    reconcile(body, shown, keyOf, () => createRow(columns), (line, row) => updateRow(line, row, columns));
    table.hidden = rows.length === 0;
    nothing.hidden = rows.length > 0;
  }

  return {
    element,
    /** null: nobody could say what there is. */
    show(newRows) {
      rows = newRows ?? [];
      setText(nothing, newRows === null ? UNKNOWN : empty);
      draw();
    },
    /** There was no answer: what was shown before stays, but not that it is being read. */
    miss() {
      if (rows === null) setText(nothing, UNKNOWN);
    },
  };
}

function giveRole(table, selector, role) {
  for (const element of table.matches(selector) ? [table] : table.querySelectorAll(selector)) element.setAttribute("role", role);
}

function createHead(column, onSort) {
  const head = make("th", column.isNumber ? "number" : "");
  head.scope = "col";
  head.setAttribute("role", "columnheader");
  if (!column.sort) {
    setText(head, column.title);
    return head;
  }
  const control = make("button", "sort", column.title);
  control.type = "button";
  control.addEventListener("click", onSort);
  head.append(control);
  return head;
}

/** What nobody knows comes last, whichever way round. */
function sorted(rows, read, direction) {
  const sign = direction === "ascending" ? 1 : -1;
  return [...rows].sort((a, b) => {
    const [left, right] = [read(a), read(b)];
    if (left === null || right === null) return (left === null) - (right === null);
    if (typeof left === "string") return sign * left.localeCompare(right, "en", { numeric: true });
    return sign * (left - right);
  });
}

function createRow(columns) {
  const cells = columns.map((column) => {
    const kind = column.isNumber ? "number" : column.isPlain ? "plain" : column.isText ? "text" : "";
    const cell = make("td", kind, make("div", column.isText ? "" : "cut"));
    cell.dataset.label = column.title;
    cell.setAttribute("role", "cell");
    return cell;
  });
  const line = make("tr", "", ...cells);
  line.setAttribute("role", "row");
  return line;
}

function updateRow(line, row, columns) {
  columns.forEach((column, place) => {
    const cell = line.children[place].firstElementChild;
    const value = column.read(row);
    if (value === null || typeof value === "string") {
      if (cell.dataset.drawn !== undefined) cell.replaceChildren();
      delete cell.dataset.drawn;
      setValue(cell, value);
    } else if (cell.dataset.drawn !== value.key) {
      cell.dataset.drawn = value.key;
      cell.classList.remove("unknown");
      cell.replaceChildren(value.node);
    }
  });
}

/** A cell with a node in it: `key` says what it shows, so that it is drawn anew only when that differs. */
export const cell = (key, create) => ({ key: String(key), get node() { return create(); } });
