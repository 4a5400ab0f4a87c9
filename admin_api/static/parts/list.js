// A view that is a list read from the server: a notice, a bar of filters and actions, a table, pages.

import { ask, withQuery } from "/static/api.js";
import { make } from "/static/dom.js";
import { createForm } from "/static/parts/form.js";
import { createNotice } from "/static/parts/notice.js";
import { createPager } from "/static/parts/pager.js";
import { createTable } from "/static/parts/table.js";

const PAGE_SIZE = 100;

/**
 * list: { path, table, filters: fields of a form, parameters(values of the form) -> query, filterLabel, actions: nodes,
 * intro: text, pageSize }.
 * Gives { element, refresh(signal) } for a view.
 */
export function createList(list) {
  const notice = createNotice();
  const table = createTable(list.table);
  let page = 1;
  let refresh = async () => {};
  const pager = createPager((wanted) => {
    page = wanted;
    refresh();
  });
  const filters = createForm(list.filters ?? [], { label: list.filterLabel ?? "Filter", inline: true });
  filters.element.hidden = (list.filters ?? []).length === 0;
  const start = () => {
    page = 1;
    refresh();
  };
  filters.element.addEventListener("submit", (event) => {
    event.preventDefault();
    start();
  });
  filters.element.addEventListener("input", debounced(start));
  const element = make("div", "list",
    ...(list.intro ? [make("p", "intro", list.intro)] : []),
    make("div", "bar", filters.element, make("div", "actions", ...(list.actions ?? []))),
    notice.element, table.element, pager.element);
  refresh = async (signal) => {
    try {
      const chosen = list.parameters ? list.parameters(filters.values()) : filters.values();
      const parameters = { ...chosen, page, pageSize: list.pageSize ?? PAGE_SIZE };
      const answer = await ask(withQuery(list.path, parameters), { signal });
      notice.ofAnswer(answer);
      table.show(answer.items);
      pager.show(answer);
    } catch (error) {
      if (signal?.aborted) return;
      notice.ofError(error);
      table.miss();
    }
  };
  return { element, refresh: (signal) => refresh(signal), filters };
}

const TYPING_MS = 300;

function debounced(work) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, TYPING_MS);
  };
}
