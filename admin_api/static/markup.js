// Markup of the page: `html` is htm over Preact, with one rule added: data only ever becomes text, and only text that can
// be seen. This is the only implementation of the rule on the page; that of Python is telemetry/escapes.py.
// A character that shows others in another order (U+202E and its relatives), speaks to a program, or has no width or is
// left blank, is shown as a mark: ‹U+202E›. Text written from right to left stands by itself, so that it does not move its
// neighbours. Names too long for a table are cut in the middle by the style sheet: they are whole in the document, in one
// piece, so for a reader of the screen, for the search of the browser and for copying.

import htm from "/static/vendor/htm/htm.mjs";
import { h } from "/static/vendor/preact/preact.mjs";

const JOINER = "(?<!\\p{Extended_Pictographic}\\ufe0f?|\\p{Emoji_Modifier})\\u200d|\\u200d(?!\\p{Extended_Pictographic})";
const BLANK = "\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180d\\u180f\\u2800\\u3164\\uffa0\\u{e0100}-\\u{e01ef}";
/** Signs of people and families are put together with U+200D, which then has its sense. */
const UNSEEN = new RegExp(`${JOINER}|(?!\\u200d)[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Zl}\\p{Zp}${BLANK}]`, "gu");
const LETTER = "[\\u0590-\\u08ff\\ufb1d-\\ufdff\\ufe70-\\ufefc\\u{10800}-\\u{10fff}\\u{1e800}-\\u{1efff}]";
/** From the first such letter to the last one that no letter or digit of another direction divides from it. */
const RIGHT_TO_LEFT = new RegExp(`${LETTER}(?:[^\\p{L}\\p{N}]*${LETTER})*`, "gu");
const LONG = /\S{37,}/gu;
/** Shown behind the cut, once more, by the style sheet alone: as many as have room there. */
const TAIL_CHARS = 8;
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\u{1f000}-\u{3ffff}]/u;
/** Where a long name is cut: in cells and terms, in what has the class "cut", and in links, which have the focus themselves. */
const CUT = { td: "focus", th: "focus", dt: "focus", a: "plain", summary: "plain" };
const SPOKEN = ["aria-label", "title"];

const markOf = (char) => `‹U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`;

/** One line: what ends a line is a sign. */
export const visible = (text) => text.replace(/\r\n|\n|\r/g, "↵").replace(UNSEEN, markOf);

/** Several lines, with the tabs in them, as bodies and stacks have them. */
export const visibleLines = (text) => text.replace(UNSEEN, (char, ...rest) => {
  const [at, whole] = rest.slice(-2);
  const isLayout = char === "\n" || char === "\t" || (char === "\r" && whole[at + 1] === "\n");
  return isLayout ? char : markOf(char);
});

/** html`<p title=${text}>${text}</p>`: a component stays as it is, an element gets text that can be seen. */
export const html = htm.bind((type, props, ...children) => {
  if (typeof type !== "string") return h(type, props, ...children);
  const attributes = { ...props };
  for (const name of SPOKEN) if (typeof attributes[name] === "string") attributes[name] = visible(attributes[name]);
  return h(type, attributes, ...shown(children, shower(type, attributes.class ?? "")));
});

/** How an element of this kind shows a text. */
function shower(type, className) {
  if (type === "pre") return visibleLines;
  if (type === "option") return visible;
  const cut = CUT[type] ?? (className.split(" ").includes("cut") ? "focus" : "none");
  return (text) => nodesOf(visible(text), cut);
}

/** Texts that stand side by side are one text; an array stays an array, so that its keys hold. */
function shown(children, show) {
  const parts = [];
  let text = null;
  const endText = () => {
    if (text !== null) parts.push(show(text));
    text = null;
  };
  for (const child of children) {
    if (typeof child === "string" || typeof child === "number") {
      text = `${text ?? ""}${child}`;
      continue;
    }
    endText();
    parts.push(Array.isArray(child) ? shown(child, show) : child);
  }
  endText();
  return parts;
}

/** Visible text as nodes; `cut`: what becomes of a long name, "focus" (it can be focused itself), "plain" or "none". */
function nodesOf(text, cut) {
  return cut === "none" ? isolated(text) : split(text, LONG, (name) => longName(name, cut), isolated);
}

const isolated = (text) => split(text, RIGHT_TO_LEFT, (run) => h("bdi", null, run), (rest) => rest);

function longName(name, cut) {
  const end = [...name].slice(-TAIL_CHARS);
  const tail = (end.some((char) => WIDE.test(char)) ? end.slice(-TAIL_CHARS / 2) : end).join("");
  const focus = cut === "focus" ? { tabindex: 0 } : {};
  return h("span", { class: "long", "data-tail": tail, title: name, ...focus }, isolated(name));
}

/** The nodes of what the pattern finds and of what is between. */
function split(text, pattern, nodeOfFound, nodesOfRest) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(pattern)) {
    if (found.index > end) nodes.push(nodesOfRest(text.slice(end, found.index)));
    nodes.push(nodeOfFound(found[0]));
    end = found.index + found[0].length;
  }
  if (nodes.length === 0) return nodesOfRest(text);
  if (end < text.length) nodes.push(nodesOfRest(text.slice(end)));
  return nodes;
}
