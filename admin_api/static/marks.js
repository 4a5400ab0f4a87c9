// Text from outside as it can be seen. The one owner of this rule on the page; that of Python is telemetry/escapes.py.
// A character that has others shown in another order (U+202E and its relatives), speaks to a program, or has no width or
// is left blank, is shown as a mark: ‹U+202E›. What is written from right to left stands by itself, so that it does not
// move what stands beside it. Names too long for a table are cut in the middle by the style sheet: they are whole in the
// document, in one piece, so for a reader of the screen, for the search of the browser and for copying.

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

const markOf = (char) => `‹U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`;

/** One line: what ends a line is a sign. */
export const visible = (text) => text.replace(/\r\n|\n|\r/g, "↵").replace(UNSEEN, markOf);

/** Several lines, with the tabs in them, as bodies and stacks have them. */
export const visibleLines = (text) => text.replace(UNSEEN, (char, ...rest) => {
  const [at, whole] = rest.slice(-2);
  const isLayout = char === "\n" || char === "\t" || (char === "\r" && whole[at + 1] === "\n");
  return isLayout ? char : markOf(char);
});

/** Visible text as nodes; `cut`: what becomes of a long name, "focus" (it can be focused itself), "plain" or "none". */
export function nodesOf(text, cut) {
  return cut === "none" ? isolated(text) : split(text, LONG, (name) => [longName(name, cut)], isolated);
}

const isolated = (text) => split(text, RIGHT_TO_LEFT, (run) => [element("bdi", "", run)], (rest) => [rest]);

function longName(name, cut) {
  const made = element("span", "long", ...isolated(name));
  const end = [...name].slice(-TAIL_CHARS);
  made.dataset.tail = (end.some((char) => WIDE.test(char)) ? end.slice(-TAIL_CHARS / 2) : end).join("");
  made.title = name;
  if (cut === "focus") made.tabIndex = 0;
  return made;
}

/** Nodes of what the pattern finds, and of what is between. */
function split(text, pattern, nodesOfFound, nodesOfRest) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(pattern)) {
    if (found.index > end) nodes.push(...nodesOfRest(text.slice(end, found.index)));
    nodes.push(...nodesOfFound(found[0]));
    end = found.index + found[0].length;
  }
  if (end < text.length) nodes.push(...nodesOfRest(text.slice(end)));
  return nodes;
}

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}
