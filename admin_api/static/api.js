// Everything the page asks this server: JSON, changes, and the event stream. One place adds the token and reads errors.

const TOKEN_KEY = "ledgermq.token";
const RECONNECT_MS = 1000;
const TOO_MANY = 429;
const WAIT_S_MAX = 5;  // the longest Retry-After that is waited out, and
const TRIES_MAX = 4;   // how often one request is sent
let askForToken = null;
let asking = null;
let isDeclined = false;

/** An answer that is no success; the message is a sentence of the server's. */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `The server answered ${status}.`);
    this.status = status;
    this.problem = problem;
  }
}

/** `ask` shows the person a form and gives the token, or null when they would rather not. */
export function setTokenPrompt(ask) {
  askForToken = ask;
}

/** Forgets the token and all that was read with it, and asks for another. */
export function signOut() {
  sessionStorage.removeItem(TOKEN_KEY);
  location.reload();
}

export const hasToken = () => sessionStorage.getItem(TOKEN_KEY) !== null;

/** Several requests may be refused at once: the person is asked once. */
async function renewToken(refused) {
  if (sessionStorage.getItem(TOKEN_KEY) !== refused) return true;
  if (isDeclined) return false;  // asked again when the page is opened again, not with every request
  asking ??= askForToken(refused !== null).finally(() => { asking = null; });
  const token = await asking;
  isDeclined = token === null;
  if (token === null) return false;
  sessionStorage.setItem(TOKEN_KEY, token);
  return true;
}

/** Sends a request. One refused with 429 was not begun: it is sent again after the time that the answer names. */
async function send(path, options = {}) {
  for (let tries = 1; ; tries += 1) {
    const answer = await sendOnce(path, options);
    const seconds = Number(answer.headers.get("Retry-After") ?? NaN);
    const isSoon = answer.status === TOO_MANY && seconds >= 0 && seconds <= WAIT_S_MAX;
    if (!isSoon || tries === TRIES_MAX) return answer;
    await pause(seconds * 1000, options.signal);
  }
}

/** Ends early when it is aborted. */
export function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

async function sendOnce(path, { method = "GET", body, headers = {}, signal, accept = "application/json" } = {}) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const given = { Accept: accept, ...headers };
  if (token !== null) given.Authorization = `Bearer ${token}`;
  if (method !== "GET") given["X-LedgerMQ-Request"] = "1";
  if (body !== undefined) given["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method, signal, headers: given, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store",
  });
  if (answer.status === 401 && askForToken !== null && await renewToken(token)) {
    return sendOnce(path, { method, body, headers, signal, accept });
  }
  return answer;
}

/** The JSON of an answer. Raises ApiError, or TypeError when the server cannot be reached. */
export async function ask(path, options) {
  const answer = await send(path, options);
  if (!answer.ok) throw new ApiError(answer.status, await problemOf(answer));
  return answer.status === 204 ? null : answer.json();
}

/** The raw answer of something to be saved as a file. */
export async function download(path, options) {
  const answer = await send(path, { ...options, accept: "*/*" });
  if (!answer.ok) throw new ApiError(answer.status, await problemOf(answer));
  return answer.blob();
}

async function problemOf(answer) {
  try {
    const problem = await answer.json();
    return typeof problem === "object" && problem !== null ? problem : {};
  } catch {
    return {};
  }
}

/** `path` with those of the parameters that have a value. */
export function withQuery(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return text === "" ? path : `${path}${path.includes("?") ? "&" : "?"}${text}`;
}

/**
 * Server-sent events by fetch, since EventSource sends no Authorization header. Connects again for ever.
 * `on`: { event(name, data), open(), lost(error) }.
 */
export async function follow(path, on, signal) {
  while (!signal.aborted) {
    try {
      const answer = await send(path, { signal, accept: "text/event-stream" });
      if (!answer.ok) throw new ApiError(answer.status, await problemOf(answer));
      on.open();
      await readEvents(answer.body, on.event);
      on.lost(null);
    } catch (error) {
      if (signal.aborted) return;
      on.lost(error);
    }
    await pause(RECONNECT_MS, signal);
  }
}

async function readEvents(body, onEvent) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) readEvent(block, onEvent);
  }
}

function readEvent(block, onEvent) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  if (data.length > 0) onEvent(name, data.join("\n"));
}
