// Shows /openapi.json without help from elsewhere: each operation with its answers, examples and fields.

import { html } from "/static/markup.js";
import { render } from "/static/vendor/preact/preact.mjs";

const described = await (await fetch("/openapi.json")).json();

const oneLine = (text) => (text ?? "").replaceAll("\n", " ");

function Operation({ path, method, operation }) {
  return html`
    <article class="operation">
      <h2>${method.toUpperCase()} ${path}</h2>
      <p><strong>${operation.summary}</strong></p>
      <p>${oneLine(operation.description)}</p>
      ${Object.entries(operation.responses).map(([status, response]) => html`<${Answer} status=${status} response=${response} />`)}
    </article>`;
}

function Answer({ status, response }) {
  return html`
    <details>
      <summary>${status}: ${oneLine(response.description)}</summary>
      ${Object.entries(response.content ?? {}).map(([media, { example, schema }]) => html`
        <p class="where">${media}</p>
        ${example !== undefined && html`<pre>${typeof example === "string" ? example : JSON.stringify(example, null, 2)}</pre>`}
        ${schemasIn(schema).map((name) => html`<${Schema} name=${name} />`)}`)}
    </details>`;
}

function Schema({ name }) {
  const { description, properties } = described.components.schemas[name];
  return html`
    <details>
      <summary>${name}</summary>
      <p>${oneLine(description)}</p>
      <div class="scroll"><table><tbody>
        ${Object.entries(properties).map(([field, type]) => html`
          <tr><td>${field}</td><td>${typeText(type)}</td><td>${oneLine(type.description)}</td></tr>`)}
      </tbody></table></div>
    </details>`;
}

/** The names of the objects that a schema is made of, each once, the whole before its parts. */
function schemasIn(schema, done = new Set()) {
  for (const name of namesIn(schema ?? {})) {
    const { properties } = described.components.schemas[name];
    if (!properties || done.has(name)) continue;
    done.add(name);
    for (const type of Object.values(properties)) schemasIn(type, done);
  }
  return [...done];
}

function namesIn(type) {
  if (type.$ref) return [type.$ref.split("/").at(-1)];
  return [...(type.anyOf ?? []), ...(type.items ? [type.items] : [])].flatMap(namesIn);
}

function typeText(type) {
  if (type.$ref) return namesIn(type)[0];
  if (type.anyOf) return type.anyOf.map(typeText).join(" or ");
  if (type.type === "array") return `list of ${typeText(type.items ?? {})}`;
  return type.type ?? "any";
}

const operations = Object.entries(described.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => html`<${Operation} path=${path} method=${method} operation=${operation} />`));
render(html`<p class="namesrv">${described.info.description.split("\n")[0]}</p>${operations}`, document.getElementById("operations"));
