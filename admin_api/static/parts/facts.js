// Names and values, as a description list.

import { make, reconcile, setText, setValue } from "/static/dom.js";

/** show([[name, text|null], …]). */
export function createFacts(className = "facts wide") {
  const element = make("dl", className);
  return {
    element,
    show(pairs) {
      reconcile(element, pairs, ([name]) => name, () => make("div", "", make("dt"), make("dd")), (line, [name, value]) => {
        setText(line.children[0], name);
        setValue(line.children[1], value);
      });
    },
  };
}
