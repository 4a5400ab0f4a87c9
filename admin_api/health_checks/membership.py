"""The health checks of a group's members: changes that are not finished, members that get the log and never
vote, nodes that run and are no members. Pure.
"""

from collections.abc import Iterator
from typing import Final

from admin_api.cluster.schemas import GroupView, NodeMember, NodeState, NodeView
from admin_api.health_checks.facts import Facts, Finding, info, name_of, warning, words_of_ms

_MIB: Final = 1024 * 1024


def check_membership(facts: Facts) -> Iterator[Finding]:
    for group in facts.replicated():
        if group.accepts_messages is False:
            yield _drained(group)
        if group.membership is None:
            continue
        if not group.membership.is_committed:
            yield warning(
                "membership-pending",
                group.group,
                f"A change of the members of {group.group} is not stored by a majority yet.",
                "It is as soon as a majority of the new voters has it: start those that are down "
                f"(`ledgermq member list --group {group.group}`). Until then no other change is possible.",
            )
        if group.membership.generation > 0:
            yield _recovered(group, group.membership.generation)
        for node in group.nodes:
            yield from _member(group, node, node.member)


def _drained(group: GroupView) -> Finding:
    return info(
        "group-drained",
        group.group,
        f"{group.group} accepts no messages: producers choose other groups' queues.",
        f"`ledgermq replication left {group.group}` says whether it can be removed; `ledgermq replication "
        f"fill {group.group}` lets it accept messages again.",
    )


def _recovered(group: GroupView, generation: int) -> Finding:
    return info(
        "recovered",
        group.group,
        f"An operator went on with {group.group} without a majority (generation {generation}).",
        "Members from before that must not start with their old files. recovery.log in the store of the node "
        "that was decided on says what was given up.",
    )


def _member(group: GroupView, node: NodeView, member: NodeMember | None) -> Iterator[Finding]:
    if node.newer_generation is not None:
        yield _outdated(group, node, node.newer_generation)
    elif member is None:
        if node.id is not None and node.state is NodeState.UP:
            yield _stranger(group, node)
    else:
        yield from _known_member(group, node, member)


def _known_member(group: GroupView, node: NodeView, member: NodeMember) -> Iterator[Finding]:
    if member.role == "joining":
        yield _joining(group, node, member)
    elif member.role == "learner" and node.state is NodeState.UP:
        yield info(
            "learner",
            name_of(group, node),
            f"{name_of(group, node)} gets the log and has no vote: it counts for no majority.",
            f"If it is to vote: `ledgermq member promote {node.id}`.",
        )
    own = node.replication_address
    if node.state is NodeState.UP and own is not None and own != member.replication_address:
        yield warning(
            "member-address",
            name_of(group, node),
            f"The group reaches {name_of(group, node)} at {member.replication_address}, and its own "
            "dLegerPeers "
            f"has {own} for it.",
            f"If it is at {own}: `ledgermq member move {node.id} {own}`; else correct dLegerPeers and start "
            "it "
            "again.",
        )


def _outdated(group: GroupView, node: NodeView, newer: int) -> Finding:
    who, at = name_of(group, node), node.replication_address or "HOST:PORT"
    return warning(
        "node-outdated",
        who,
        f"{who} runs with its files from before an operator went on without it (generation {newer}): its "
        "group refuses it, clients do not find it, and what it stores is of no group.",
        "Stop it. What only it has is in no other log: copy its store if you may want to read it. Then empty "
        "its store and start it, with members that are up in its dLegerPeers; "
        f"`ledgermq member add {node.id} {at}` adds it as a new one.",
    )


def _stranger(group: GroupView, node: NodeView) -> Finding:
    who = name_of(group, node)
    return warning(
        "not-a-member",
        who,
        f"{who} runs and is no member: it gets nothing of the log.",
        f"If it was removed, stop it. If it is to join: `ledgermq member add {node.id} "
        f"{node.replication_address or 'HOST:PORT'}`.",
    )


def _joining(group: GroupView, node: NodeView, member: NodeMember) -> Finding:
    who = name_of(group, node)
    give_up = f"To give it up: `ledgermq member remove {node.id}`."
    if node.push is None or not node.push.is_connected:
        return warning(
            "joining-unreachable",
            who,
            f"{who} is to join, and its leader does not reach it at {member.replication_address}.",
            f"Start it there, with dLegerJoin = true and an empty store (`ledgermq node {node.id}` on its "
            "machine). "
            f"{give_up}",
        )
    progress = member.progress
    if progress is None:
        return info("joining", who, f"{who} is joining; how far it is is not known yet.", give_up)
    missing = progress.total_bytes - progress.received_bytes
    rate = progress.bytes_per_s
    sizes = f"{progress.received_bytes / _MIB:.1f} of {progress.total_bytes / _MIB:.1f} MiB"
    if rate == 0 and missing > 0:
        return warning(
            "joining-stalled",
            who,
            f"{who} is joining and has {sizes} of the log, but gets nothing more.",
            f"Look at its log and its disk, and at the leader's log. {give_up}",
        )
    left = f", {words_of_ms(missing * 1000 / rate)} at this speed" if rate else ""
    return info(
        "joining",
        who,
        f"{who} is joining and has {sizes} of the log{left}.",
        f"It votes by itself. {give_up}",
    )
