"""What stands in the way of an upgrade of each group to this release, and the steps in their order. Pure.

An upgrade replaces one node at a time while the others serve, so it needs a majority without that node. The
group's format level stays as it is until the last step, `ledgermq upgrade-finish`: up to then each node can
go back to its old release (docs/upgrading.md).
"""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from admin_api.cluster.schemas import ClusterView, GroupState, GroupView, NodeState, NodeView
from admin_api.health_checks.checks import check_certificates, check_disks
from admin_api.health_checks.facts import Facts, Finding, Severity, Vitals, warning
from admin_api.schema import Partial, Schema

FIRST_RELEASE: Final = "0.1.0"
"""The one whose nodes do not name their release."""
FIRST_LEVEL: Final = 2
"""The format level of its groups (dledger/core/membership.py)."""


class UpgradeNode(Schema):
    """One member, as far as an upgrade is concerned."""

    id: str | None
    address: str | None = Field(description="for clients")
    state: NodeState
    release: str | None = Field(description="null: unknown")
    protocol_version: int | None = Field(description="of replication, the newest that it speaks")
    format_level: int | None = Field(description="the group's, by this node's log")
    format_level_max: int | None = Field(description="the newest that its release reads and writes")
    is_leader: bool
    is_in_sync: bool | None
    disk_free_bytes: int | None = None
    disk_used_ratio: float | None = None


class UpgradeGroup(Schema):
    """A group, and what is to be done with it."""

    group: str
    leader_id: str | None
    has_majority_to_spare: bool = Field(description="sends go on while any one of its members is down")
    format_level: int | None = Field(description="null: unknown")
    level_to_finish: int | None = Field(
        description="what `ledgermq upgrade-finish` would raise the format level to now; null: nothing"
    )
    nodes: list[UpgradeNode]
    steps: list[str] = Field(description="in this order; none: the group runs this release in its formats")


class UpgradeReport(Partial):
    """Whether an upgrade can begin, or go on."""

    as_of_ms: int = Field(description="Unix time in ms")
    release: str | None = Field(description="of the program that checks: what is upgraded to; null: unknown")
    is_ready: bool = Field(description="no finding is an error")
    groups: list[UpgradeGroup]
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class Target:
    """The release that is upgraded to. release None: the program is not installed, so that its number is
    unknown.
    """

    release: str | None
    format_level_max: int


def make_report(view: ClusterView, vitals: Mapping[str, Vitals], target: Target) -> UpgradeReport:
    """Of what was read just now. `vitals`: by the node's address for clients."""
    groups = [group for group in view.groups if any(node.is_ledgermq for node in group.nodes)]
    facts = Facts(view, vitals=vitals)
    findings = [
        *_check_reach(view, groups),
        *(finding for group in groups for finding in _check_group(group, target)),
        *check_disks(facts),
        *check_certificates(facts),
    ]
    return UpgradeReport(
        as_of_ms=view.as_of_ms,
        release=target.release,
        is_ready=not any(finding.severity is Severity.ERROR for finding in findings),
        groups=[_group(group, vitals, target) for group in groups],
        findings=findings,
    )


def release_of(node: NodeView) -> str | None:
    """None: unknown, since it does not answer."""
    return (node.release or FIRST_RELEASE) if node.state is NodeState.UP else None


def format_level_of(group: GroupView) -> int | None:
    """By the leader's log, which has the newest configuration. None: unknown."""
    leader = leader_of(group)
    if leader is None:
        return None
    return FIRST_LEVEL if leader.format_level is None else leader.format_level


def level_to_finish(group: GroupView) -> int | None:
    """The newest level that every member reads, if it is above the group's; None where a member is silent."""
    level = format_level_of(group)
    maxima = [_level_max(node) for node in group.nodes]
    known = [each for each in maxima if each is not None]
    if level is None or len(known) < len(maxima):
        return None
    return min(known) if min(known) > level else None


def leader_of(group: GroupView) -> NodeView | None:
    """The leader, if it answers."""
    return next((n for n in group.nodes if n.id == group.leader_id and n.state is NodeState.UP), None)


def _level_max(node: NodeView) -> int | None:
    if node.state is not NodeState.UP:
        return None
    return FIRST_LEVEL if node.format_level_max is None else node.format_level_max


def has_majority_to_spare(group: GroupView) -> bool:
    """Whether the group goes on without any one of its members: enough others are in sync, and vote."""
    return sum(map(_is_healthy, group.nodes)) - 1 >= len(group.nodes) // 2 + 1


def _is_healthy(node: NodeView) -> bool:
    return node.state is NodeState.UP and node.is_in_sync is True and node.impairment is None


def _group(group: GroupView, vitals: Mapping[str, Vitals], target: Target) -> UpgradeGroup:
    return UpgradeGroup(
        group=group.group,
        leader_id=group.leader_id,
        has_majority_to_spare=has_majority_to_spare(group),
        format_level=format_level_of(group),
        level_to_finish=level_to_finish(group),
        nodes=[_node(node, group, vitals.get(node.remoting_address or "")) for node in group.nodes],
        steps=list(_steps(group, target)),
    )


def _node(node: NodeView, group: GroupView, vitals: Vitals | None) -> UpgradeNode:
    runtime = None if vitals is None else vitals.runtime
    return UpgradeNode(
        id=node.id,
        address=node.remoting_address,
        state=node.state,
        release=release_of(node),
        protocol_version=node.protocol_version,
        format_level=node.format_level,
        format_level_max=_level_max(node),
        is_leader=node.id is not None and node.id == group.leader_id,
        is_in_sync=node.is_in_sync,
        disk_free_bytes=None if runtime is None else runtime.capacity()[1],
        disk_used_ratio=None if runtime is None else runtime.ratio("commitLogDiskRatio"),
    )


def _steps(group: GroupView, target: Target) -> Iterator[str]:
    """Followers first: leadership then moves once, to a node of the new release."""
    old = [node for node in group.nodes if release_of(node) != target.release]
    followers = [node for node in old if node.id != group.leader_id]
    name = target.release or "the new release"
    for node in followers:
        yield (
            f"{_name(node)}: stop it, install {name}, start it; go on when `ledgermq upgrade-check` shows it "
            "in sync"
        )
    for node in old:
        if node not in followers:
            others = [each.id for each in group.nodes if each.id not in (node.id, None)]
            yield f"hand leadership over: `ledgermq transfer-leader {others[0] if others else ''}`".rstrip()
            when = "at once" if release_of(node) == FIRST_RELEASE else "30 s later"
            yield f"{_name(node)}: the same, last, {when} (clients still send to it)"
    level = format_level_of(group)
    if old or (level is not None and level < target.format_level_max):
        yield (
            "when you do not want to go back any more: `ledgermq upgrade-finish`, which raises the format "
            f"level to {target.format_level_max}"
        )


def _name(node: NodeView) -> str:
    return node.id or node.remoting_address or "a node without a name"


def _check_reach(view: ClusterView, groups: Sequence[GroupView]) -> Iterator[Finding]:
    judge = _error if view.namesrv.state is not NodeState.UP else warning
    for namesrv in view.namesrvs:
        if namesrv.state is not NodeState.UP:
            yield judge(
                "name-server-down",
                namesrv.address,
                f"The name server {namesrv.address} does not answer: {namesrv.problem}.",
                "Start it: a node that restarts registers there.",
            )
    if not groups:
        yield _error("no-group", view.namesrv.address, "No replication group is known.", "Check --namesrv.")


def _check_group(group: GroupView, target: Target) -> Iterator[Finding]:
    if group.state is not GroupState.WRITABLE or leader_of(group) is None:
        yield _error(
            "no-leader",
            group.group,
            f"{group.group} has no leader that takes messages.",
            "Mend the group first: `ledgermq doctor` says what is wrong.",
        )
    yield from _check_majority(group)
    level = format_level_of(group)
    if level is not None and level > target.format_level_max:
        yield _error(
            "format-too-new",
            group.group,
            f"{group.group} writes format level {level}; this release reads up to {target.format_level_max}.",
            "Use the release that the nodes run, or a later one: there is no way back behind this level.",
        )
    for node in group.nodes:
        yield from _check_node(node)


def _check_majority(group: GroupView) -> Iterator[Finding]:
    if has_majority_to_spare(group):
        return
    if len(group.nodes) < 3:
        yield Finding(
            severity=Severity.WARNING,
            code="no-majority-to-spare",
            subject=group.group,
            sentence=f"{group.group} has {len(group.nodes)} of at least three members: sends wait while one "
            "restarts.",
            remedy="Choose a quiet time, or add members first.",
        )
        return
    lacking = [_lack(node) for node in group.nodes if not _is_healthy(node)]
    yield _error(
        "no-majority-to-spare",
        group.group,
        f"{group.group} cannot spare a node now: {'; '.join(lacking)}.",
        "Wait until it has caught up, or mend it; check again before you stop another node.",
    )


def _lack(node: NodeView) -> str:
    if node.state is not NodeState.UP:
        return f"{_name(node)} is {node.state}"
    if node.impairment is not None:
        return f"{_name(node)} does not vote ({node.impairment})"
    return f"{_name(node)} is not in sync"


def _check_node(node: NodeView) -> Iterator[Finding]:
    host = (node.replication_address or "").rpartition(":")[0]
    if node.state is NodeState.UP and node.release is None and not _is_of_this_machine(host):
        yield _error(
            "plain-replication",
            _name(node),
            f"{_name(node)} runs {FIRST_RELEASE}, whose replication has no certificates, at {host}: this "
            "release does not replicate without certificates beyond one machine.",
            "Sends will wait for some seconds in such an upgrade: docs/upgrading.md has the steps.",
        )


def _is_of_this_machine(host: str) -> bool:
    try:
        return host in ("", "localhost") or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _error(code: str, subject: str, sentence: str, remedy: str) -> Finding:
    return Finding(severity=Severity.ERROR, code=code, subject=subject, sentence=sentence, remedy=remedy)
