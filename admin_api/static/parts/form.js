// Forms from a list of fields, each with a label of its own.

import { make, setAttribute } from "/static/dom.js";
import { inputTime } from "/static/format.js";

let made = 0;

/**
 * fields: [{ name, title, type: text|number|select|check|time|area|search, value, options, hint, required, min, max,
 * wide }]. Empty text is left out of the values; numbers are numbers, times Unix ms, checks booleans.
 */
export function createForm(fields, { label = null, inline = false } = {}) {
  const element = make("form", inline ? "form inline" : "form");
  if (label !== null) setAttribute(element, "aria-label", label);
  const controls = new Map();
  for (const field of fields) {
    const control = createControl(field);
    controls.set(field.name, { control, field });
    element.append(wrap(control, field));
  }
  if (!inline) {
    const enter = make("button", "visually-hidden", "Send");  // so that Enter in a field sends the form
    enter.type = "submit";
    enter.tabIndex = -1;
    element.append(enter);
  }
  return {
    element,
    values: () => readValues(controls),
    control: (name) => controls.get(name).control,
  };
}

function readValues(controls) {
  const values = {};
  for (const [name, { control, field }] of controls) {
    const value = readValue(control, field);
    if (value !== null) values[name] = value;
  }
  return values;
}

function readValue(control, { type }) {
  if (type === "check") return control.checked;
  const text = type === "area" ? control.value : control.value.trim();
  if (text === "") return null;
  if (type === "number") return Number(text);
  return type === "time" ? inputTime(text) : text;
}

function createControl(field) {
  if (field.type === "select") return createSelect(field);
  const control = document.createElement(field.type === "area" ? "textarea" : "input");
  if (field.type === "check") {
    control.type = "checkbox";
    control.checked = field.value === true;
  } else {
    if (field.type !== "area") control.type = { time: "datetime-local", number: "number", search: "search", password: "password" }[field.type] ?? "text";
    if (field.type === "time") control.step = "1";
    control.value = field.value ?? "";
    control.spellcheck = false;
    control.autocomplete = "off";
  }
  for (const name of ["min", "max", "pattern", "placeholder"]) {
    if (field[name] !== undefined) control.setAttribute(name, String(field[name]));
  }
  return control;
}

/** options: texts, or [value, text] pairs. */
function createSelect(field) {
  const control = make("select");
  for (const option of field.options) {
    const [value, text] = Array.isArray(option) ? option : [option, option];
    const shown = make("option", "", text);
    shown.value = value;
    control.append(shown);
  }
  if (field.value !== undefined) control.value = field.value;
  return control;
}

function wrap(control, field) {
  made += 1;
  control.id = `field-${made}`;
  control.name = field.name;
  control.required = field.required === true;
  control.disabled = field.disabled === true;
  const label = make("label", "", field.title);
  label.htmlFor = control.id;
  const parts = field.type === "check" ? [control, label] : [label, control];
  if (field.hint) {
    const hint = make("small", "hint", field.hint);
    hint.id = `${control.id}-hint`;
    control.setAttribute("aria-describedby", hint.id);
    parts.push(hint);
  }
  return make("div", `field ${field.type ?? "text"}${field.wide ? " wide" : ""}`, ...parts);
}
