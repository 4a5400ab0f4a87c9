// What is wrong with the cluster, in sentences, and what to do.

import { Actions, Button, Notice } from "/static/components.js";
import { useAnswers } from "/static/data.js";
import { clock, counted } from "/static/format.js";
import { html } from "/static/markup.js";

const SIGNS = { info: "ℹ", warning: "⚠", error: "✕" };

export function HealthChecksPage() {
  const { answers: { checks }, notice, refresh } = useAnswers({ checks: "/api/v1/doctor" });
  return html`
    <div class="one">
      <${Actions}><${Button} kind="strong" onClick=${refresh}>Look again<//><//>
      <${Notice} notice=${notice} />
      <p class="intro">${checks ? verdict(checks) : "Looking…"}</p>
      <ul class="findings">
        ${(checks?.findings ?? []).map((one) => html`<${Finding} key=${JSON.stringify(one)} finding=${one} />`)}
      </ul>
    </div>`;
}

/** "consumerGroups" as people write it. */
const words = (name) => name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);

function verdict({ findings, isWell, asOfMs, lookedAt }) {
  const seen = Object.entries(lookedAt).map(([what, number]) =>
    counted(number, words(what).replace(/s$/, "")) ?? `unknown ${words(what)}`);
  const found = findings.length === 0 ? "✓ Nothing is wrong"
    : `${isWell ? "✓ No error" : "✕ Not well"}, ${counted(findings.length, "finding")}`;
  return `${found} (${clock(asOfMs, Date.now())}; looked at ${seen.join(", ")}).`;
}

function Finding({ finding: { severity, subject, sentence, remedy } }) {
  return html`
    <li class="finding" data-severity=${severity}>
      <span class="sign" aria-hidden="true">${SIGNS[severity] ?? "⚠"}</span>
      <div>
        <p><strong>${`${severity}, ${subject}: `}</strong>${withCommands(sentence)}</p>
        <p>${withCommands(remedy)}</p>
      </div>
    </li>`;
}

/** What stands between backticks is what one types. */
const withCommands = (text) => text.split("`").map((part, place) => (place % 2 === 1 ? html`<code>${part}</code>` : part));
