// What is wrong with the cluster, in sentences, and what to do.

import { ask } from "/static/api.js";
import { button, make, reconcile, setText } from "/static/dom.js";
import { clock, counted } from "/static/format.js";
import { createNotice } from "/static/parts/notice.js";

const SIGNS = { info: "ℹ", warning: "⚠", error: "✕" };

export function createView() {
  const notice = createNotice();
  const verdict = make("p", "intro", "Looking…");
  const findings = make("ul", "findings");
  const refresh = async (signal) => {
    try {
      const answer = await ask("/api/v1/doctor", { signal });
      notice.ofAnswer(answer);
      setText(verdict, say(answer));
      reconcile(findings, answer.findings, (one) => JSON.stringify(one), createFinding, () => {});
    } catch (error) {
      if (!signal?.aborted) notice.ofError(error);
    }
  };
  const element = make("div", "one", make("div", "bar", make("div", "actions", button("Look again", () => refresh(), "strong"))), notice.element, verdict, findings);
  return { title: "Doctor", element, refresh };
}

/** "consumerGroups" as people write it. */
const words = (name) => name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);

function say({ findings, isWell, asOfMs, lookedAt }) {
  const seen = Object.entries(lookedAt).map(([what, number]) => counted(number, words(what).replace(/s$/, "")) ?? `unknown ${words(what)}`).join(", ");
  const found = findings.length === 0 ? "✓ Nothing is wrong" : `${isWell ? "✓ No error" : "✕ Not well"}, ${counted(findings.length, "finding")}`;
  return `${found} (${clock(asOfMs, Date.now())}; looked at ${seen}).`;
}

/** What stands between backticks is what one types. */
const rich = (text) => text.split("`").map((part, place) => (place % 2 === 1 ? make("code", "", part) : part));

function createFinding(one) {
  const sign = make("span", "sign", SIGNS[one.severity] ?? "⚠");
  sign.setAttribute("aria-hidden", "true");
  const said = make("p", "", make("strong", "", `${one.severity}, ${one.subject}: `), ...rich(one.sentence));
  const made = make("li", "finding", sign, make("div", "", said, make("p", "", ...rich(one.remedy))));
  made.dataset.severity = one.severity;
  return made;
}
