// Asks for a token when the server wants one. It is kept for this tab only.

import { createForm } from "/static/parts/form.js";
import { askForm } from "/static/parts/dialog.js";

/** Resolves with the token, or null. `wasRefused`: there was one, and it was not taken. */
export async function askToken(wasRefused) {
  const form = createForm([{ name: "token", title: "Token", type: "password", required: true }]);
  const note = wasRefused ? "That token was not accepted." : "This server wants a token. It is forgotten when this tab is closed.";
  const values = await askForm("Sign in", form, "Sign in", { note });
  return values === null ? null : values.token ?? null;
}
