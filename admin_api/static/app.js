// The shell: which view the address names, its title, its life. Addresses are #/view/name.

import { hasToken, setTokenPrompt, signOut } from "/static/api.js";
import { button, link, make, setAttribute, setText } from "/static/dom.js";
import { visible } from "/static/marks.js";
import { clusterWord, startLive, subscribe } from "/static/live.js";
import { sayError } from "/static/parts/notice.js";
import { askToken } from "/static/parts/token.js";

/** Address, the words in the bar of views, the module that draws it, and the one for a single thing of its kind. */
const VIEWS = [
  ["cluster", "Cluster", "cluster", null],
  ["topics", "Topics", "topics", "topic"],
  ["groups", "Groups", "groups", "group"],
  ["messages", "Messages", "messages", "message"],
  ["dlq", "DLQ", "dlq", "dlq_group"],
  ["nodes", "Nodes", "nodes", "node"],
  ["audit", "Audit", "audit", null],
  ["doctor", "Doctor", "doctor", null],
];

const main = document.getElementById("main");
let ending = null;
let pageTitle = "LedgerMQ";

function place() {
  const [name = "", ...rest] = location.hash.replace(/^#\/?/, "").split("?")[0].split("/");
  const view = VIEWS.find(([address]) => address === name) ?? VIEWS[0];
  const subject = rest.join("/");
  const isOne = subject !== "" && view[3] !== null;
  return {
    name: view[0],
    module: isOne ? view[3] : view[2],
    subject: isOne ? decodeURIComponent(subject) : null,
    query: new URLSearchParams(location.hash.split("?")[1] ?? ""),
  };
}

async function show(isFirst) {
  const { name, module, subject, query } = place();
  ending?.abort();
  const end = new AbortController();
  ending = end;
  markCurrent(name);
  try {
    const { createView } = await import(`/static/views/${module}.js`);
    if (end.signal.aborted) return;
    mount(createView(subject, query), end.signal, isFirst);
  } catch (error) {
    main.replaceChildren(make("p", "empty", sayError(error)));
    throw error;
  }
}

/** view: { title, element, refresh(signal)?, refreshMs?, close()? }. It is read again while it is looked at. */
function mount(view, signal, isFirst) {
  const heading = make("h1", "", view.title);
  heading.tabIndex = -1;
  main.replaceChildren(heading, view.element);
  if (!isFirst) heading.focus();
  pageTitle = view.title;
  nameWindow();
  let timer = 0;
  const read = async () => {
    if (document.visibilityState === "visible") await view.refresh(signal);
    if (view.refreshMs && !signal.aborted) timer = setTimeout(read, view.refreshMs);
  };
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    view.close?.();
  });
  if (view.refresh) read();
}

function markCurrent(name) {
  for (const one of document.querySelectorAll("#views a")) {
    if (one.dataset.view === name) setAttribute(one, "aria-current", "page");
    else one.removeAttribute("aria-current");
  }
}

function nameWindow() {
  const title = visible(`${pageTitle} · LedgerMQ: ${clusterWord()}`);
  if (document.title !== title) document.title = title;
}

/** So that a click shows its view at once, and also when nothing can be loaded any more. */
function preload() {
  for (const module of VIEWS.flatMap(([, , ...modules]) => modules)) {
    if (module !== null) import(`/static/views/${module}.js`).catch(() => {});
  }
}

function start() {
  document.getElementById("views").append(...VIEWS.map(([address, words]) => {
    const one = link(words, `#/${address}`);
    one.dataset.view = address;
    return one;
  }));
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  const door = button("Sign out", signOut);
  door.hidden = !hasToken();
  document.querySelector(".more").append(door);
  setTokenPrompt(async (wasRefused) => {
    const token = await askToken(wasRefused);
    door.hidden = false;
    setText(door, token === null ? "Sign in" : "Sign out");
    return token;
  });
  addEventListener("hashchange", () => show(false));
  subscribe(nameWindow);
  startLive(new AbortController().signal);
  show(true).finally(preload);
}

start();
