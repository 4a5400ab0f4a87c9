// The shell: which page the address names, its title, and what stands above and below it. Addresses are #/page/name.

import { hasToken, setTokenPrompt, signOut } from "/static/api.js";
import { Button } from "/static/components.js";
import { sayError, startLive, useLive } from "/static/data.js";
import { askForm } from "/static/dialogs.js";
import { clock, span } from "/static/format.js";
import { html, visible } from "/static/markup.js";
import { AccessPage, UserPage } from "/static/pages/access.js";
import { AuditPage } from "/static/pages/audit.js";
import { ClusterPage } from "/static/pages/cluster.js";
import { DeadLettersPage, GroupDeadLettersPage } from "/static/pages/dead_letters.js";
import { GroupPage, GroupsPage } from "/static/pages/groups.js";
import { HealthChecksPage } from "/static/pages/health_checks.js";
import { MessagePage, MessagesPage } from "/static/pages/messages.js";
import { NodePage, NodesPage } from "/static/pages/nodes.js";
import { TopicPage, TopicsPage } from "/static/pages/topics.js";
import { useEffect, useErrorBoundary, useLayoutEffect, useRef, useState } from "/static/vendor/preact/hooks.mjs";
import { render } from "/static/vendor/preact/preact.mjs";

/** `words` stand in the bar of pages; `one` is the page of a single thing, which its address names. */
const PAGES = [
  { name: "cluster", words: "Cluster", title: "Cluster", page: ClusterPage },
  { name: "topics", words: "Topics", title: "Topics", page: TopicsPage, one: { title: (name) => `Topic ${name}`, page: TopicPage } },
  { name: "groups", words: "Groups", title: "Consumer groups", page: GroupsPage, one: { title: (name) => `Group ${name}`, page: GroupPage } },
  { name: "messages", words: "Messages", title: "Messages", page: MessagesPage, one: { title: () => "Message", page: MessagePage } },
  {
    name: "dlq", words: "DLQ", title: "Dead letters", page: DeadLettersPage,
    one: { title: (group) => `Dead letters of ${group}`, page: GroupDeadLettersPage },
  },
  { name: "nodes", words: "Nodes", title: "Nodes", page: NodesPage, one: { title: (address) => `Node ${address}`, page: NodePage } },
  { name: "access", words: "Access", title: "Access control", page: AccessPage, one: { title: (name) => `User ${name}`, page: UserPage } },
  { name: "audit", words: "Audit", title: "Audit", page: AuditPage },
  { name: "doctor", words: "Doctor", title: "Doctor", page: HealthChecksPage },
];
const STALE_AFTER_MS = 4000;
const SILENCE_CHECK_MS = 1000;
const NEWS_KEPT_MS = 30_000;

/** What the address names: { name, title, page, subject, query }. */
function placeNow() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const found = PAGES.find((page) => page.name === name) ?? PAGES[0];
  const subject = rest.join("/") === "" ? null : decoded(rest.join("/"));
  const isOne = found.one !== undefined && subject !== null;
  const { title, page } = isOne ? { title: found.one.title(subject), page: found.one.page } : found;
  return { name: found.name, title, page, subject, query: new URLSearchParams(query) };
}

/** An address that a person typed wrong is taken as it is. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function App() {
  const [place, setPlace] = useState(() => ({ ...placeNow(), visit: 0 }));
  const main = useRef(null);
  const heading = useRef(null);
  useEffect(() => {
    const go = () => setPlace(({ visit }) => ({ ...placeNow(), visit: visit + 1 }));
    addEventListener("hashchange", go);
    return () => removeEventListener("hashchange", go);
  }, []);
  useLayoutEffect(() => {
    if (place.visit > 0) heading.current.focus();
  }, [place.visit]);
  const skip = (event) => {
    event.preventDefault();
    main.current.focus();
  };
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="top">
      <div class="brand"><img src="/static/icon.svg" alt="" width="28" height="28" /><span class="name">LedgerMQ</span></div>
      <${LiveState} />
      <nav class="more" aria-label="More"><a href="/docs">API</a><${SignInOrOut} /></nav>
      <nav class="views" id="views" aria-label="Views">
        ${PAGES.map(({ name, words }) => html`
          <a href=${`#/${name}`} aria-current=${name === place.name ? "page" : null}>${words}</a>`)}
      </nav>
    </header>
    <main id="main" tabindex="-1" ref=${main}>
      <h1 tabindex="-1" ref=${heading}>${place.title}</h1>
      <${Guarded} key=${place.visit}><${place.page} subject=${place.subject} query=${place.query} /><//>
    </main>
    <footer>
      <p>
        Indexes count log entries from 0. <strong>Committed</strong> entries are held by a majority and are all that consumers see.
        ${" "}What no node could answer is shown as <i class="unknown">unknown</i>.
      </p>
    </footer>
    <${News} />
    <${WindowTitle} title=${place.title} />`;
}

/** A fault of one page leaves the others. */
function Guarded({ children }) {
  const [error] = useErrorBoundary((caught) => console.error(caught));
  return error ? html`<p class="empty">${sayError(error)}</p>` : children;
}

/** Says when the stream is silent: an old picture is never shown as live. */
function LiveState() {
  const { cluster, heardAtMs, isOpen, problem } = useLive();
  const [nowMs, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), SILENCE_CHECK_MS);
    return () => clearInterval(timer);
  }, []);
  const silentMs = Math.max(0, nowMs - heardAtMs);
  const isLive = isOpen && cluster !== null && silentMs < STALE_AFTER_MS;
  const state = isLive ? "live" : cluster === null ? "waiting" : "stale";
  useLayoutEffect(() => { document.body.classList.toggle("is-stale", state === "stale"); }, [state]);
  const text = {
    live: () => `live, ${clock(cluster.asOfMs, cluster.asOfMs)}`,
    waiting: () => (problem === null ? "connecting…" : sayError(problem)),
    stale: () => `no news for ${span(silentMs)}, trying again`,
  }[state]();
  return html`
    <p class="live" id="live" data-state=${state}><span class="dot" aria-hidden="true" /><span id="live-text">${text}</span></p>`;
}

/** Speaks changes of leader and of up and down, for those who do not see the page. */
function News() {
  const { cluster } = useLive();
  const said = useRef(new Map());
  const [lines, setLines] = useState([]);
  useEffect(() => {
    if (cluster === null) return;
    const facts = factsOf(cluster);
    const news = facts.filter(([key, text]) => said.current.has(key) && said.current.get(key) !== text).map(([, text]) => text);
    for (const [key, text] of facts) said.current.set(key, text);
    if (news.length === 0) return;
    const line = { text: `${news.join(". ")}.`, atMs: Date.now() };
    setLines((known) => [...known, line]);
    setTimeout(() => setLines((known) => known.filter((one) => one !== line)), NEWS_KEPT_MS);
  }, [cluster]);
  return html`
    <div class="visually-hidden" id="news" role="log" aria-live="polite" aria-label="News of the cluster">
      ${lines.map((line) => html`<p key=${line.atMs}>${line.text}</p>`)}
    </div>`;
}

/** [what it is about, what is said of it]. */
function factsOf({ groups }) {
  return groups.flatMap(({ group, leaderId, term, nodes }) => [
    [`${group} leader`, leaderId === null ? `${group} has no leader` : `${leaderId} leads ${group} in term ${term}`],
    ...nodes.filter((node) => node.id !== null).map((node) => [`${group} ${node.id}`, `${node.id} is ${node.state}`]),
  ]);
}

function WindowTitle({ title }) {
  const { cluster } = useLive();
  const text = visible(`${title} · LedgerMQ: ${clusterWord(cluster)}`);
  useEffect(() => { document.title = text; }, [text]);
  return null;
}

function clusterWord(cluster) {
  if (cluster === null) return "connecting";
  if (cluster.groups.length === 0) return "no brokers";
  const unable = cluster.groups.find((group) => group.state !== "writable");
  return unable === undefined ? "writable" : `${unable.group} ${unable.state}`;
}

/** Asks for a token when the server wants one. It is kept for this tab only. */
function SignInOrOut() {
  const [text, setText] = useState(hasToken() ? "Sign out" : null);
  useLayoutEffect(() => setTokenPrompt(async (wasRefused) => {
    const note = wasRefused ? "That token was not accepted." : "This server wants a token. It is forgotten when this tab is closed.";
    const field = { name: "token", title: "Token", type: "password", required: true };
    const values = await askForm("Sign in", [field], { verb: "Sign in", note });
    setText(values === null ? "Sign in" : "Sign out");
    return values?.token ?? null;
  }), []);
  return text && html`<${Button} onClick=${signOut}>${text}<//>`;
}

render(html`<${App} />`, document.getElementById("page"));
startLive();
