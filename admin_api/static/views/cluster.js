// The cluster, live: every group, its nodes, and the last hour.

import { ask, withQuery } from "/static/api.js";
import { make, reconcile, setAttribute, setText } from "/static/dom.js";
import { subscribe } from "/static/live.js";
import { History } from "/static/views/history.js";
import { closeGroup, createGroup, updateGroup } from "/static/views/cluster_group.js";

const HISTORY_MS = 5000;

export function createView() {
  const namesrv = make("p", "namesrv cut");
  const empty = make("p", "empty", "Waiting for the first answer…");
  const groups = make("div", "groups");
  groups.id = "groups";
  const element = make("div", "cluster", namesrv, empty, groups);
  const history = new History();
  let newest = null;

  function draw() {
    if (newest === null) return;
    drawNamesrv(namesrv, newest.namesrv);
    empty.hidden = newest.groups.length > 0;
    setText(empty, newest.namesrv.state === "up" ? "No broker has registered yet." : "Nothing is known of any broker yet.");
    reconcile(groups, newest.groups, (group) => group.brokerName, createGroup,
      (section, group) => updateGroup(section, group, newest.asOfMs, history.of(group.brokerName)));
  }

  groups.addEventListener("redraw", draw);
  const unsubscribe = subscribe((cluster) => {
    newest = cluster;
    draw();
  });
  return {
    title: "Cluster",
    element,
    refreshMs: HISTORY_MS,
    async refresh(signal) {
      try {
        history.add(await ask(withQuery("/api/v1/history", { sinceMs: history.newestMs }), { signal }));
        draw();
      } catch {
        // The plots stay as they are and end where they end; the head of the page says that nobody answers.
      }
    },
    close() {
      unsubscribe();
      for (const section of groups.children) closeGroup(section);
    },
  };
}

function drawNamesrv(line, namesrv) {
  setAttribute(line, "data-state", namesrv.state);
  setText(line, namesrv.state === "up"
    ? `Name server ${namesrv.address}`
    : `⚠ The name server gives no answer (${namesrv.problem ?? namesrv.address}). The nodes known before are asked directly.`);
}
