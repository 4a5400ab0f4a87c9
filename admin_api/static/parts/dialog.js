// Dialogs over the native <dialog>: it keeps the focus inside, Escape closes it, and the focus goes back where it was.
// One that is open when the address changes belongs to the view before, and is left as by Escape.

import { button, make } from "/static/dom.js";

let made = 0;

/**
 * Opens a dialog. `build(close)` gives { body: nodes, actions: buttons }; `close(value)` ends it.
 * Resolves with that value, or with null when it was left by Escape or Cancel.
 */
export function openDialog(title, build, className = "") {
  return new Promise((resolve) => {
    let result = null;
    const dialog = make("dialog", className);
    const close = (value) => {
      result = value;
      dialog.close();
    };
    const heading = make("h2", "", title);
    made += 1;
    heading.id = `dialog-title-${made}`;
    dialog.setAttribute("aria-labelledby", heading.id);
    const { body, actions } = build(close);
    dialog.append(heading, ...body, make("div", "actions", ...actions));
    const leave = () => close(null);
    addEventListener("hashchange", leave);
    dialog.addEventListener("close", () => {
      removeEventListener("hashchange", leave);
      dialog.remove();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A dialog with a form: `form` from parts/form.js. Enter sends it, Escape leaves it; resolves with its values or null. */
export function askForm(title, form, verb, { note = null } = {}) {
  return openDialog(title, (close) => {
    form.element.addEventListener("submit", (event) => {
      event.preventDefault();
      close(form.values());
    });
    const send = button(verb, () => form.element.requestSubmit(), "strong");
    return {
      body: [...(note === null ? [] : [make("p", "", note)]), form.element],
      actions: [button("Cancel", () => close(null)), send],
    };
  });
}

/** Something to be read, with one way out. */
export function showDialog(title, nodes) {
  return openDialog(title, (close) => ({ body: nodes, actions: [button("Close", () => close(null), "strong")] }));
}
