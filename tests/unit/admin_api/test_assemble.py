"""The picture put together from answers, the leader's word and what was known before."""

from typing import Any

from admin_api.cluster.reader import Answer, Memory, assemble
from admin_api.cluster.schemas import GroupState, GroupView, NamesrvView, NodeState, NodeView
from admin_api.sources.brokers import Listed
from broker.admin.types import ElectionView, EpochStatus, NodeRole, NodeStatusMessage, PeerView
from tests.unit.admin_api.node_samples import ADDRESSES, REPLICATION, listed, node_status, peer

NAMESRV = NamesrvView(address="127.0.0.1:9876", state=NodeState.UP)


def answers(*found: Answer) -> dict[str, Answer]:
    return {answer.address: answer for answer in found}


def up(status: NodeStatusMessage) -> Answer:
    return Answer(status.remoting_address, status)


def silent(node_id: str) -> Answer:
    return Answer(ADDRESSES[node_id], None, "it cannot be reached")


def the_group(found: dict[str, Answer], known: list[Listed], memory: Memory | None = None) -> GroupView:
    (group,) = assemble([NAMESRV], known, found, memory or Memory(10), 1000).groups
    return group


def node_of(group: GroupView, node_id: str) -> NodeView:
    return next(node for node in group.nodes if node.id == node_id)


def test_assemble_three_up_takes_lag_from_the_leaders_word() -> None:
    follower = peer("n1", lag_entries=4, lag_bytes=640, match_index=5, push_state="APPEND", is_connected=True)
    leader = node_status(
        "n0", NodeRole.LEADER, peers=(follower, peer("n2")), watermarks_by_term={3: {"n0": 9, "n1": 5}}
    )
    found = answers(
        up(leader), up(node_status("n1", NodeRole.FOLLOWER)), up(node_status("n2", NodeRole.FOLLOWER))
    )

    group = the_group(found, listed("n0", "n1", "n2"))

    assert group.state is GroupState.WRITABLE
    assert (group.group, group.leader_id, group.term) == ("group-a", "n0", 3)
    assert group.watermarks_by_term == {"3": {"n0": 9, "n1": 5}}
    assert [(node.id, node.broker_id, node.lag_entries) for node in group.nodes] == [
        ("n0", 0, 0),
        ("n1", 2, 4),
        ("n2", 3, None),
    ]
    assert node_of(group, "n0").push is None
    push = node_of(group, "n1").push
    assert push is not None
    assert (push.match_index, push.state, push.is_connected) == (5, "APPEND", True)


def test_assemble_dead_node_stays_listed_as_down_without_numbers_of_now() -> None:
    memory = Memory(10)
    memory.remember(node_status("n1", NodeRole.FOLLOWER, end_index=7), 400)
    leader = node_status(
        "n0", NodeRole.LEADER, peers=(peer("n1", is_connected=False, lag_entries=2, match_index=7),)
    )

    node = node_of(the_group(answers(up(leader), silent("n1")), listed("n0"), memory), "n1")

    assert node.state is NodeState.DOWN
    assert node.problem == "it cannot be reached"
    assert (node.role, node.term, node.pid, node.log.end_index) == (None, None, None, None)
    assert (node.lag_entries, node.broker_id) == (2, None)
    assert node.last_known is not None
    assert (node.last_known.at_ms, node.last_known.role, node.last_known.log.end_index) == (
        400,
        "FOLLOWER",
        7,
    )


def test_assemble_group_of_which_nobody_answers_has_no_epochs_and_elections_that_are_none() -> None:
    memory = Memory(10)
    memory.remember(node_status("n0", NodeRole.LEADER), 400)
    group = the_group(answers(silent("n0")), listed("n0"), memory)
    assert (group.state, group.term, group.in_sync) == (GroupState.DOWN, None, None)
    assert (group.epochs, group.elections, group.watermarks_by_term) == (None, None, None)


def test_assemble_node_named_by_the_leader_alone_is_unknown_not_down() -> None:
    leader = node_status("n0", NodeRole.LEADER, peers=(peer("n2", remoting_address=None, is_connected=True),))
    node = node_of(the_group(answers(up(leader)), listed("n0")), "n2")
    assert node.state is NodeState.UNKNOWN
    assert node.remoting_address is None
    assert node.replication_address == REPLICATION["n2"]


def test_assemble_node_the_leader_lost_is_down_though_nobody_knows_its_address() -> None:
    leader = node_status(
        "n0", NodeRole.LEADER, peers=(peer("n2", remoting_address=None, is_connected=False),)
    )
    assert node_of(the_group(answers(up(leader)), listed("n0")), "n2").state is NodeState.DOWN


def test_assemble_two_claim_to_lead_higher_term_holds() -> None:
    old = node_status("n0", NodeRole.LEADER, term=3)
    new = node_status("n1", NodeRole.LEADER, term=4, leader_id="n1")
    group = the_group(answers(up(old), up(new)), listed("n0", "n1"))
    assert (group.leader_id, group.term) == ("n1", 4)


def test_assemble_no_leader_is_electing_and_lag_is_unknown() -> None:
    found = answers(
        up(node_status("n1", NodeRole.CANDIDATE, leader_id=None)), up(node_status("n2", NodeRole.FOLLOWER))
    )
    group = the_group(found, listed("n1", "n2"))
    assert group.state is GroupState.ELECTING
    assert group.leader_id is None
    assert [node.lag_entries for node in group.nodes] == [None, None]


def test_assemble_leader_not_yet_writable_is_electing() -> None:
    group = the_group(answers(up(node_status("n0", NodeRole.LEADER, is_writable=False))), listed("n0"))
    assert (group.state, group.leader_id) == (GroupState.ELECTING, "n0")


def test_assemble_nothing_answers_keeps_the_group_from_memory() -> None:
    memory = Memory(10)
    memory.remember(node_status("n0", NodeRole.LEADER), 400)
    group = the_group(answers(silent("n0")), [], memory)
    assert (group.state, group.group, group.term) == (GroupState.DOWN, "group-a", None)
    assert [(node.id, node.state) for node in group.nodes] == [("n0", NodeState.DOWN)]


def test_assemble_listed_address_nobody_claims_is_shown_without_a_name() -> None:
    group = the_group(answers(silent("n0")), listed("n0"))
    assert [(node.id, node.remoting_address, node.broker_id) for node in group.nodes] == [
        (None, ADDRESSES["n0"], 0)
    ]
    assert group.group == "broker-a"


def seen(at_ms: int, term: int, leader_id: str | None, reason: str = "heard") -> ElectionView:
    return ElectionView(at_ms=at_ms, term=term, leader_id=leader_id, reason=reason)


def test_assemble_elections_join_to_one_line_a_term_the_leaders_own_word_first() -> None:
    told_by_n0 = (seen(20, 2, "n1"), seen(30, 3, "n0", "votes of a majority"), seen(41, 4, "n2"))
    told_by_n1 = (seen(18, 2, None), seen(19, 2, "n1"), seen(29, 3, "n0"), seen(40, 4, None))
    found = answers(
        up(node_status("n0", NodeRole.LEADER, elections=told_by_n0)),
        up(node_status("n1", NodeRole.FOLLOWER, elections=told_by_n1)),
    )
    group = the_group(found, listed("n0", "n1"))
    assert [(e.term, e.leader_id, e.at_ms, e.reason) for e in group.elections or ()] == [
        (2, "n1", 19, "heard"),
        (3, "n0", 30, "votes of a majority"),
        (4, "n2", 41, "heard"),
    ]


def test_assemble_epochs_are_the_leaders() -> None:
    leader = node_status("n0", NodeRole.LEADER, epochs=(EpochStatus(term=1, first_index=0),))
    epochs = the_group(answers(up(leader)), listed("n0")).epochs
    assert [(e.term, e.first_index) for e in epochs or ()] == [(1, 0)]


def test_memory_beyond_its_bound_forgets_the_node_unseen_for_longest() -> None:
    memory = Memory(2)
    for at_ms, node_id in enumerate(["n0", "n1", "n0", "n2"]):
        memory.remember(node_status(node_id, NodeRole.FOLLOWER), at_ms)
    assert {node_id: seen.at_ms for node_id, seen in memory.sightings("broker-a").items()} == {
        "n0": 2,
        "n2": 3,
    }


def test_assemble_in_sync_is_who_holds_what_is_committed_or_is_hardly_behind() -> None:
    def member(node_id: str, **facts: Any) -> PeerView:
        return peer(node_id, **{"is_connected": True, "push_state": "APPEND", **facts})

    peers = (
        member("n1", match_index=8, lag_ms=5_000),
        member("n2", match_index=5, lag_ms=1_000),
        member("n3", match_index=5, lag_ms=1_001, remoting_address=None),
        member("n4", match_index=9, push_state="TRUNCATE", remoting_address=None),
        member("n5", match_index=9, is_connected=False, remoting_address=None),
        member("n6", match_index=5, remoting_address=None),
    )
    group = the_group(answers(up(node_status("n0", NodeRole.LEADER, peers=peers))), listed("n0"))
    assert group.in_sync == ["n0", "n1", "n2"]
    told = {node.id: node.is_in_sync for node in group.nodes}
    assert told == {"n0": True, "n1": True, "n2": True, "n3": False, "n4": False, "n5": False, "n6": None}
    assert node_of(group, "n3").lag_ms == 1_001


def test_assemble_without_a_leader_nobody_knows_who_is_in_sync() -> None:
    group = the_group(answers(up(node_status("n1", NodeRole.FOLLOWER))), listed("n1"))
    assert group.in_sync is None
    assert [node.is_in_sync for node in group.nodes] == [None]


def test_assemble_a_stock_broker_is_up_and_says_nothing_of_replication() -> None:
    found = answers(Answer(ADDRESSES["n0"], None, "it answered code 3", is_stock=True), silent("n1"))
    group = the_group(found, listed("n0", "n1"))
    assert group.state is GroupState.WRITABLE
    assert [(node.state, node.is_ledgermq, node.is_writable) for node in group.nodes] == [
        (NodeState.UP, False, True),
        (NodeState.DOWN, None, None),
    ]
    assert (group.leader_id, group.in_sync, group.nodes[0].role) == (None, None, None)
