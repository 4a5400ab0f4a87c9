// The little of DOM work that is needed: make an element, and change only what differs, so that focus, selection and
// opened details survive each update. Data only ever becomes text, and only text that can be seen (marks.js).

import { nodesOf, visible, visibleLines } from "/static/marks.js";

/** Where a long name is cut: in cells and terms, in what is marked so, and in links, which have the focus themselves. */
const CUT = { TD: "focus", TH: "focus", DT: "focus", A: "plain", SUMMARY: "plain" };
const SPOKEN = ["aria-label", "title"];

const shownIn = (element, text) => (element.tagName === "PRE" ? visibleLines(text) : visible(text));

function textNodes(element, text) {
  const shown = shownIn(element, text);
  if (element.tagName === "PRE" || element.tagName === "OPTION") return [shown];
  return nodesOf(shown, CUT[element.tagName] ?? (element.classList.contains("cut") ? "focus" : "none"));
}

export function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children.flatMap((child) => (child === null ? [] : typeof child === "string" ? textNodes(element, child) : [child])));
  return element;
}

export function setText(element, text) {
  if (element.textContent !== shownIn(element, text)) element.replaceChildren(...textNodes(element, text));
}

export function setAttribute(element, name, value) {
  const shown = SPOKEN.includes(name) ? visible(value) : value;
  if (element.getAttribute(name) !== shown) element.setAttribute(name, shown);
}

/** Text, or the word "unknown" set apart from values. */
export function setValue(element, text) {
  element.classList.toggle("unknown", text === null);
  setText(element, text === null ? "unknown" : text);
}

/** An element that holds a value; null is "unknown". */
export function valued(tag, text) {
  const element = make(tag);
  setValue(element, text);
  return element;
}

/** `kind`: "" for an ordinary one, "strong" for what one came to do, "danger" for what cannot be taken back. */
export function button(text, onClick, kind = "") {
  const made = make("button", `button ${kind}`.trim(), text);
  made.type = "button";
  made.addEventListener("click", onClick);
  return made;
}

export function link(text, address) {
  const made = make("a", "", text);
  made.setAttribute("href", address);
  return made;
}

/** Brings the children of `parent` in line with `items`: one element a key, made once, updated each time, in order. */
export function reconcile(parent, items, keyOf, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let element = old.get(key);
    old.delete(key);
    if (!element) {
      element = create(item);
      element.dataset.key = key;
    }
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
    update(element, item);
  }
  for (const gone of old.values()) gone.remove();
}
