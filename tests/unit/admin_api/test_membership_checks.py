"""Each check of a group's members on a cluster that has just its fault."""

from typing import Any

import pytest

from admin_api.health_checks.facts import Severity
from admin_api.health_checks.service import examine
from broker.admin.types import MemberView, NodeRole, NodeStatusMessage, OlderNodeView
from tests.unit.admin_api.node_samples import ADDRESSES, REPLICATION, listed, node_status, peer
from tests.unit.admin_api.test_doctor import facts, only

MIB = 1024 * 1024
ALL = ("n0", "n1", "n2")


def members(**roles: str) -> tuple[MemberView, ...]:
    return tuple(
        MemberView(id=each, replication_address=REPLICATION.get(each, "127.0.0.1:1"), role=role)
        for each, role in roles.items()
    )


def statuses(
    found: tuple[MemberView, ...], *up: str, is_committed: bool = True, **peers: Any
) -> dict[str, NodeStatusMessage]:
    """n0 leads; `peers`: what it says of one of the others."""
    common: dict[str, Any] = {
        "members": found,
        "configuration_index": 4,
        "is_configuration_committed": is_committed,
        "format_level": 3,
        "begin_position": 0,
    }
    ids = [each.id for each in found if each.id != "n0"]
    seen = tuple(peer(each, **{"is_connected": True, "lag_bytes": 0, **peers.get(each, {})}) for each in ids)
    others = {each: node_status(each, NodeRole.FOLLOWER, **common) for each in up or ALL if each != "n0"}
    leader = node_status("n0", NodeRole.LEADER, peers=seen, end_position=10 * MIB, **common)
    return {"n0": leader, **others}


VOTERS = members(n0="voter", n1="voter", n2="voter")


def test_a_group_whose_members_are_known_is_well() -> None:
    assert examine(facts(statuses(VOTERS))) == []


def test_a_group_that_accepts_no_messages_is_named() -> None:
    found = statuses(VOTERS)
    found["n0"] = found["n0"].model_copy(update={"accepts_messages": False})
    finding = only(facts(found))
    assert (finding.code, finding.severity, finding.subject) == ("group-drained", Severity.INFO, "group-a")
    assert "ledgermq replication fill group-a" in finding.remedy


def test_a_change_that_no_majority_has() -> None:
    finding = only(facts(statuses(VOTERS, is_committed=False)))
    assert (finding.code, finding.severity, finding.subject) == (
        "membership-pending",
        Severity.WARNING,
        "group-a",
    )


def test_a_node_that_is_no_member() -> None:
    gone = {"is_connected": False}
    up = statuses(members(n0="voter", n1="voter", n3="voter"), "n0", "n1", "n2", n3=gone)
    codes = [finding.code for finding in examine(facts(up))]
    assert codes == ["node-down", "not-a-member"]
    stranger = examine(facts(up))[1]
    assert stranger.sentence == "n2 of group-a runs and is no member: it gets nothing of the log."
    assert "`ledgermq member add n2 127.0.0.1:10934`" in stranger.remedy


def recovered_group(*others: NodeStatusMessage) -> dict[str, NodeStatusMessage]:
    """Of generation 1; n0 hears of n1 with its files from before."""
    older = OlderNodeView(
        id="n1", replication_address=REPLICATION["n1"], remoting_address=ADDRESSES["n1"], generation=0
    )
    up = statuses(VOTERS)
    up = {each: status.model_copy(update={"generation": 1}) for each, status in up.items()}
    up["n0"] = up["n0"].model_copy(update={"older_nodes": (older,)})
    return up | {each.node_id: each for each in others}


@pytest.mark.parametrize("is_reached", [True, False])
def test_a_node_that_an_operator_has_gone_on_without(is_reached: bool) -> None:
    """By its own word, or by that of a node of its group; it may lead its like."""
    old = node_status("n1", NodeRole.LEADER, term=3, members=VOTERS, generation=0, newer_generation=1)
    up = recovered_group(old)
    if not is_reached:
        del up["n1"]
    found = facts(up)
    (group,) = found.view.groups
    assert (group.leader_id, group.state) == ("n0", "writable")
    (finding,) = [each for each in examine(found) if each.code == "node-outdated"]
    assert (finding.severity, finding.subject) == (Severity.WARNING, "n1 of group-a")
    assert "went on without it (generation 1)" in finding.sentence
    assert "empty its store" in finding.remedy
    assert f"`ledgermq member add n1 {REPLICATION['n1']}`" in finding.remedy


def test_a_group_whose_nodes_are_all_outdated_has_no_leader() -> None:
    old = node_status("n0", NodeRole.LEADER, members=VOTERS, newer_generation=1)
    (group,) = facts({"n0": old}).view.groups
    assert group.leader_id is None


def test_a_removed_node_that_is_down_is_no_finding() -> None:
    up = statuses(members(n0="voter", n1="voter", n3="learner"), "n0", "n1", n3={"is_connected": False})
    codes = {finding.code for finding in examine(facts(up, listed("n0", "n1")))}
    assert codes == {"two-members", "node-down"}


@pytest.mark.parametrize(
    ("seen", "code", "severity", "said"),
    [
        (
            {"is_connected": False},
            "joining-unreachable",
            Severity.WARNING,
            "n3 of group-a is to join, and its leader does not reach it at 127.0.0.1:1.",
        ),
        (
            {"lag_bytes": 8 * MIB, "bytes_per_s": 4 * MIB},
            "joining",
            Severity.INFO,
            "n3 of group-a is joining and has 2.0 of 10.0 MiB of the log, 2 s at this speed.",
        ),
        ({"lag_bytes": 8 * MIB}, "joining", Severity.INFO, "has 2.0 of 10.0 MiB of the log."),
        (
            {"lag_bytes": 8 * MIB, "bytes_per_s": 0},
            "joining-stalled",
            Severity.WARNING,
            "n3 of group-a is joining and has 2.0 of 10.0 MiB of the log, but gets nothing more.",
        ),
        ({"lag_bytes": None}, "joining", Severity.INFO, "how far it is is not known yet."),
    ],
)
def test_a_joining_member(seen: dict[str, Any], code: str, severity: Severity, said: str) -> None:
    finding = only(facts(statuses((*VOTERS, *members(n3="joining")), n3=seen)))
    assert (finding.code, finding.severity) == (code, severity)
    assert said in finding.sentence
    assert "`ledgermq member remove n3`" in finding.remedy


def test_a_learner_counts_for_no_majority() -> None:
    found = examine(facts(statuses(members(n0="voter", n1="learner"), "n0", "n1"), listed("n0", "n1")))
    assert [each.code for each in found] == ["learner", "single-node"]
    assert "`ledgermq member promote n1`" in found[0].remedy


def test_a_learner_that_is_down_is_no_error() -> None:
    up = statuses(
        (*members(n0="voter", n1="voter"), *members(n2="learner")), "n0", "n1", n2={"is_connected": False}
    )
    found = {each.code: each.severity for each in examine(facts(up))}
    assert found == {"node-down": Severity.WARNING, "two-members": Severity.WARNING}


def test_a_member_that_is_configured_elsewhere() -> None:
    moved = (*VOTERS[:2], MemberView(id="n2", replication_address="10.9.9.9:1", role="voter"))
    finding = only(facts(statuses(moved)))
    assert finding.code == "member-address"
    assert f"`ledgermq member move n2 {REPLICATION['n2']}`" in finding.remedy


def test_voters_are_counted_for_majorities() -> None:
    """Two of three voters are down; a learner and a node that is no member do not help."""
    up = statuses(members(n0="voter", n1="learner", n3="voter", n4="voter"), "n0", "n1")
    leaderless = {
        name: status.model_copy(update={"role": NodeRole.CANDIDATE, "is_writable": False, "leader_id": None})
        for name, status in up.items()
    }
    finding = next(each for each in examine(facts(leaderless, [])) if each.code == "no-quorum")
    assert finding.sentence.startswith("Only 1 of 3 nodes of group-a answer, 2 are needed")
