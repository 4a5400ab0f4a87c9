// Leads through the pages of a long list.

import { button, make, setText } from "/static/dom.js";
import { count } from "/static/format.js";

/** `onPage(number)` when another page is wanted. Hidden while all fits on one. */
export function createPager(onPage) {
  let at = 1;
  const before = button("‹ Previous", () => onPage(at - 1));
  const after = button("Next ›", () => onPage(at + 1));
  const where = make("span", "where");
  const element = make("nav", "pager", before, where, after);
  element.setAttribute("aria-label", "Pages");
  element.hidden = true;
  return {
    element,
    show({ page, pageSize, total }) {
      at = page;
      const pages = total === null ? null : Math.max(1, Math.ceil(total / pageSize));
      element.hidden = pages === 1 && page === 1;
      before.disabled = page <= 1;
      after.disabled = pages !== null && page >= pages;
      setText(where, `Page ${count(page)} of ${count(pages) ?? "unknown"}, ${count(total) ?? "unknown"} in all`);
    },
  };
}
