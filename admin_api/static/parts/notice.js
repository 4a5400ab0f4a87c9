// What is wrong with an answer: that there is none, or that a part of it is missing and who did not give it.

import { make, reconcile, setText } from "/static/dom.js";

export function createNotice() {
  const heading = make("strong");
  const list = make("ul");
  const element = make("div", "notice", make("span", "sign", "⚠"), make("div", "", heading, list));
  element.firstChild.setAttribute("aria-hidden", "true");
  element.setAttribute("role", "status");
  element.hidden = true;

  function show(text, items) {
    element.hidden = text === null;
    setText(heading, text ?? "");
    reconcile(list, items, (item) => item, () => make("li"), (line, item) => setText(line, item));
  }

  return {
    element,
    clear: () => show(null, []),
    /** Shows which brokers are missing from an answer, or hides itself. */
    ofAnswer(answer) {
      const problems = (answer.problems ?? []).map(sayProblem);
      if (answer.isPartial) show("This is a part only: not every broker answered.", problems);
      else show(problems.length > 0 ? "Not all could be read." : null, problems);
    },
    /** Nothing was answered; `problems` say why. */
    ofNothing(problems) {
      show("Nothing could be read.", problems.map(sayProblem));
    },
    /** What the view is about is not there (any more). */
    ofGone(text) {
      show(text, []);
    },
    ofError(error) {
      show(sayError(error), []);
    },
  };
}

/** RocketMQ's remarks have several lines. */
const oneLine = (text) => text.replace(/\s+/g, " ");

function sayProblem(problem) {
  if (typeof problem === "string") return oneLine(problem);
  const text = problem.problem ?? problem.detail ?? "no answer";
  return problem.address === undefined || text.includes(problem.address) ? oneLine(text) : oneLine(`${problem.address}: ${text}`);
}

export function sayError(error) {
  return error instanceof TypeError ? "The admin process cannot be reached." : oneLine(error.message);
}
