// Shows /openapi.json without help from elsewhere: each operation with its answers, examples and fields.

import { make } from "/static/dom.js";

const oneLine = (text) => (text ?? "").replaceAll("\n", " ");

const main = document.getElementById("operations");

function schemaOf(document_, schema) {
  const name = schema?.$ref?.split("/").at(-1);
  return name ? [name, document_.components.schemas[name]] : [null, schema];
}

function exampleOf(content) {
  const example = content.example;
  if (example === undefined) return [];
  return [make("pre", "", typeof example === "string" ? example : JSON.stringify(example, null, 2))];
}

function fieldsOf(document_, schema, done = new Set()) {
  const [name, whole] = schemaOf(document_, schema);
  if (!whole?.properties || done.has(name)) return [];
  done.add(name);
  const rows = Object.entries(whole.properties).map(([field, type]) =>
    make("tr", "", make("td", "", field), make("td", "", typeText(type)), make("td", "", oneLine(type.description))));
  const table = make("div", "scroll", make("table", "", make("tbody", "", ...rows)));
  const inner = Object.values(whole.properties).flatMap((type) => refsOf(type));
  return [make("details", "", make("summary", "", `${name}`), make("p", "", oneLine(whole.description)), table),
    ...inner.flatMap((ref) => fieldsOf(document_, ref, done))];
}

function refsOf(type) {
  if (type.$ref) return [type];
  return [...(type.anyOf ?? []), ...(type.items ? [type.items] : [])].flatMap(refsOf);
}

function typeText(type) {
  if (type.$ref) return type.$ref.split("/").at(-1);
  if (type.anyOf) return type.anyOf.map(typeText).join(" or ");
  if (type.type === "array") return `list of ${typeText(type.items ?? {})}`;
  return type.type ?? "any";
}

function answer(document_, status, response) {
  const parts = Object.entries(response.content ?? {}).flatMap(([media, content]) =>
    [make("p", "where", media), ...exampleOf(content), ...fieldsOf(document_, content.schema)]);
  return make("details", "", make("summary", "", `${status}: ${oneLine(response.description)}`), ...parts);
}

function operation(document_, path, method, described) {
  return make("article", "operation", make("h2", "", `${method.toUpperCase()} ${path}`),
    make("p", "", make("strong", "", described.summary ?? "")), make("p", "", oneLine(described.description)),
    ...Object.entries(described.responses).map(([status, response]) => answer(document_, status, response)));
}

const document_ = await (await fetch("/openapi.json")).json();
main.append(make("p", "namesrv", document_.info.description.split("\n")[0]));
for (const [path, methods] of Object.entries(document_.paths)) {
  for (const [method, described] of Object.entries(methods)) main.append(operation(document_, path, method, described));
}
