"""Health check: can each group accept writes, lose a node, and do its replicas keep up? Pure."""

from collections.abc import Iterator
from typing import Final

from admin_api.cluster.schemas import GroupState, GroupView, NodeState, NodeView
from admin_api.health_checks.facts import Facts, Finding, end_it, error, info, name_of, warning, words_of_ms

LAG_BYTES_MAX: Final = 64 * 1024 * 1024
LAG_MS_MAX: Final = 10_000
ELECTIONS_MAX: Final = 3
ELECTIONS_WINDOW_MS: Final = 600_000


def check_name_server(facts: Facts) -> Iterator[Finding]:
    namesrv = facts.view.namesrv
    if namesrv.state is not NodeState.UP:
        listener = facts.hanging.get(namesrv.address)
        start = "Start it" if listener is None else f"{end_it(namesrv.address, listener)} Then start it"
        yield error(
            "namesrv-silent",
            namesrv.address,
            f"The name server does not answer: {namesrv.problem}.",
            f"{start}, or name the right one (--namesrv). Clients that are connected go on; new ones, and "
            "clients that look for a new leader, find none.",
        )
    elif not facts.view.groups:
        yield error(
            "no-broker",
            namesrv.address,
            "No broker is registered at the name server.",
            "Start brokers whose namesrvAddr is this address, and read in their logs why they do not "
            "register.",
        )


def check_writable(facts: Facts) -> Iterator[Finding]:
    """Whether each group takes messages, and if not, why."""
    for group in facts.replicated():
        members, up = _members(group), _up(group)
        majority = members // 2 + 1
        if group.state is GroupState.WRITABLE:
            continue
        down = ", ".join(name_of(group, node) for node in group.nodes if node.state is not NodeState.UP)
        if up == 0:
            yield error(
                "group-down",
                group.group,
                f"No node of {group.group} gives an answer: its messages can be neither sent nor read.",
                f"Start its nodes ({majority} of {members} are needed), and read their logs."
                f"{_hanging_words(facts, group)}",
            )
        elif up < majority:
            yield error(
                "no-quorum",
                group.group,
                f"Only {up} of {members} nodes of {group.group} answer, {majority} are needed: nothing can "
                "be written and no leader elected.",
                f"Start what is down: {down}. With one more of them the group goes on."
                f"{_hanging_words(facts, group)}",
            )
        else:
            yield _no_leader(facts, group, up, members)


def _hanging_words(facts: Facts, group: GroupView) -> str:
    """Which nodes cannot be started before their processes end; nothing where there are none."""
    found = [(name_of(group, node), facts.hanging.get(node.remoting_address or "")) for node in group.nodes]
    words = [
        name if listener.pid is None else f"{name} (pid {listener.pid} on this machine)"
        for name, listener in found
        if listener is not None
    ]
    return f" End the processes that hang and hold their ports first: {', '.join(words)}." if words else ""


def _no_leader(facts: Facts, group: GroupView, up: int, members: int) -> Finding:
    last = group.elections[-1] if group.elections else None
    since = f" since {words_of_ms(facts.now_ms - last.at_ms)}" if last and last.leader_id is None else ""
    if group.leader_id is not None:
        sentence = f"{group.leader_id} leads {group.group} and takes no messages yet."
        remedy = "It may be catching up after its election; if it stays so, check its log and its disk."
    else:
        sentence = f"{up} of {members} nodes of {group.group} answer and none leads{since}."
        remedy = (
            "An election takes a second or two; check again. If it stays so, the nodes do not reach each "
            "other at their replication addresses, or too many are being repaired and do not vote."
        )
    return error("no-leader", group.group, sentence, remedy)


def check_members(facts: Facts) -> Iterator[Finding]:
    """Nodes that are down, behind, being repaired, or missing in the routes."""
    for group in facts.replicated():
        spare = _up(group) - (_members(group) // 2 + 1)
        for node in group.nodes:
            if node.id is None:
                continue  # an address only: `check_unclaimed`
            if node.state is not NodeState.UP:
                yield from _silent(facts, group, node, spare)
                continue
            yield from _unsound(group, node)
            if node.broker_id is None and facts.view.namesrv.state is NodeState.UP:
                yield _not_in_route(facts, group, node)


def _silent(facts: Facts, group: GroupView, node: NodeView, spare: int) -> Iterator[Finding]:
    if _up(group) == 0:
        return
    listener = facts.hanging.get(node.remoting_address or "")
    if listener is None and node.push is not None and node.push.is_connected:
        yield error(
            "address-unreachable",
            name_of(group, node),
            f"{name_of(group, node)} replicates, but the address it gives to clients cannot be reached from "
            f"here: {node.problem}.",
            "Set brokerIP1 (and listenPort) of the node to an address that clients reach, and see whether a "
            "firewall blocks it.",
        )
        return
    seen = ""
    if node.last_known is not None:
        seen = f" (it answered last {words_of_ms(facts.now_ms - node.last_known.at_ms)} ago)"
    sentence = f"{name_of(group, node)} is {node.state}{seen}: {node.problem or 'its leader lost it'}."
    again = (
        f"tart it again (on its own machine: `ledgermq node {node.id or 'NODE'}`); it catches up by itself."
    )
    code, remedy = "node-down", f"S{again}"
    if listener is not None:
        code, remedy = "node-hangs", f"{end_it(str(node.remoting_address), listener)} Then s{again}"
        sentence = f"{name_of(group, node)} takes connections and does not answer{seen}: {node.problem}."
    if spare > 0:
        yield warning(code, name_of(group, node), sentence, remedy)
    else:
        end = " The group has no node to spare now: with one more down nothing can be written."
        yield error(code, name_of(group, node), sentence + (end if spare == 0 else ""), remedy)


def _unsound(group: GroupView, node: NodeView) -> Iterator[Finding]:
    if node.impairment is not None:
        yield warning(
            "node-impaired",
            name_of(group, node),
            f"{name_of(group, node)} is being repaired and does not vote: {node.impairment}.",
            "Its group heals it; leave the others running until then. If it happens again, test its disk.",
        )
    lag_ms, size = node.lag_ms or 0, node.lag_bytes or 0
    if lag_ms > LAG_MS_MAX or size > LAG_BYTES_MAX:
        yield warning(
            "replica-lagging",
            name_of(group, node),
            f"{name_of(group, node)} is {node.lag_entries} entries ({size / 1024**2:.1f} MiB, "
            f"{words_of_ms(lag_ms)}) behind its leader.",
            "It catches up if disk and network are faster than the writes; if the lag grows, check both.",
        )


def _not_in_route(facts: Facts, group: GroupView, node: NodeView) -> Finding:
    who = name_of(group, node)
    sentence = f"{who} runs, but the name server {facts.view.namesrv.address} does not list it."
    remedy = (
        "See whether its namesrvAddr names this name server, and whether its log says that registering fails."
    )
    if node.id == group.leader_id:
        return error("leader-not-in-route", who, f"{sentence} It leads, so no producer finds it.", remedy)
    return warning("not-in-route", who, sentence, remedy)


def check_setup(facts: Facts) -> Iterator[Finding]:
    """Settings that make a group weaker than it seems."""
    for group in facts.replicated():
        members = _members(group)
        if group.durability == "replicated":
            yield warning(
                "durability-replicated",
                group.group,
                f"{group.group} acknowledges messages that a majority has in memory, not yet on its disks: a "
                "power cut of all nodes at once loses the last ones.",
                "Set durability=persisted on every node, unless speed is worth that.",
            )
        if members == 1:
            yield warning(
                "single-node",
                group.group,
                f"{group.group} has one node: when it is down nothing is served; its disk is the only copy.",
                "Run it with three nodes.",
            )
        elif members % 2 == 0:
            yield info(
                "even-members",
                group.group,
                f"{group.group} has {members} nodes, and can lose no more of them than with {members - 1}.",
                "Run an odd number of nodes.",
            )


def check_elections(facts: Facts) -> Iterator[Finding]:
    for group in facts.replicated():
        recent = [
            election
            for election in group.elections or ()
            if election.leader_id is not None and facts.now_ms - election.at_ms <= ELECTIONS_WINDOW_MS
        ]
        if len(recent) >= ELECTIONS_MAX:
            yield warning(
                "elections-frequent",
                group.group,
                f"{group.group} has elected {len(recent)} leaders in the last "
                f"{words_of_ms(ELECTIONS_WINDOW_MS)}, the last one {recent[-1].leader_id} in term "
                f"{recent[-1].term}{f' ({recent[-1].reason})' if recent[-1].reason else ''}.",
                "Each stops writes for a moment. See whether nodes restart, pause (swap), or lose packets.",
            )


def _members(group: GroupView) -> int:
    """Named nodes; an address that no node claims is no member."""
    return sum(node.id is not None for node in group.nodes) or len(group.nodes)


def _up(group: GroupView) -> int:
    return sum(node.state is NodeState.UP for node in group.nodes)
