"""The tables' rules: who holds id 0, what a registration changes, when a broker goes."""

from dataclasses import replace

import pytest

from namesrv.route_info import (
    CONTEST_GAP_MS,
    CONTEST_MS,
    STATE_VERSION_STEP_MAX,
    TIMEOUT_MAX_MS,
    TIMEOUT_MIN_MS,
    DataVersion,
    RefusedError,
    RegisterResult,
    RouteInfoManager,
    TablesFullError,
)
from remoting.route import BrokerData, QueueData
from remoting.slices import finish
from tests.unit.namesrv.registrations import MASTER, SLAVE, THIRD, by, queue_data, registration


def _addrs(tables: RouteInfoManager, broker_name: str = "broker-a") -> dict[int, str]:
    broker = tables.members(broker_name)
    return dict(broker.broker_addrs) if broker is not None else {}


def _tables() -> RouteInfoManager:
    """A master and a slave, registered at 0 ms over connections 1 and 2."""
    tables = RouteInfoManager()
    tables.register(registration(MASTER, 0), 0, by(1))
    tables.register(registration(SLAVE, 2), 0, by(2))
    return tables


def test_route_holds_queues_and_all_nodes() -> None:
    route = _tables().route("T")
    assert route is not None
    assert route.queue_datas == (queue_data(),)
    assert route.broker_datas == (BrokerData("DefaultCluster", "broker-a", {0: MASTER, 2: SLAVE}),)


def test_route_of_an_unknown_topic_is_none() -> None:
    assert _tables().route("U") is None


def test_route_over_two_brokers_is_sorted_by_name() -> None:
    tables = _tables()
    tables.register(registration(THIRD, 0, broker_name="a-broker"), 0, by(3))
    route = tables.route("T")
    assert route is not None
    assert [queue.broker_name for queue in route.queue_datas] == ["a-broker", "broker-a"]
    assert [broker.broker_name for broker in route.broker_datas] == ["a-broker", "broker-a"]


def test_slave_is_told_its_master() -> None:
    tables = RouteInfoManager()
    assert tables.register(registration(SLAVE, 2), 0, by(2)) == RegisterResult(is_new=True)
    assert tables.register(registration(MASTER, 0), 0, by(1)) == RegisterResult(is_new=True)
    assert tables.register(registration(SLAVE, 2), 0, by(2)) == RegisterResult(MASTER, MASTER + "0")


def test_topics_of_a_slave_are_not_taken() -> None:
    tables = RouteInfoManager()
    tables.register(registration(SLAVE, 1), 0, by(1))
    assert finish(tables.topics()) == []


def test_topics_missing_from_a_later_registration_stay() -> None:
    tables = _tables()
    tables.register(registration(counter=2, topics={"U": queue_data()}), 0, by(1))
    tables.register(registration(SLAVE, 1, counter=3, topics={}), 0, by(2))
    assert finish(tables.topics()) == ["T", "U"]


def test_first_registration_of_one_topic_leaves_the_others_unknown() -> None:
    """RocketMQ 5 registers a new topic alone, under the version that all its topics have."""
    tables = RouteInfoManager()
    tables.register(registration(term=3), 0, by(1))
    assert tables.data_version(MASTER) == DataVersion(3)
    tables.register(registration(term=3, topics={"T": queue_data(), "U": queue_data()}), 0, by(1))
    assert finish(tables.topics()) == ["T", "U"]
    assert tables.register(registration(SLAVE, term=2), 0, by(2)).is_ignored


def test_slave_that_becomes_master_appears_once() -> None:
    tables = _tables()
    tables.register(registration(SLAVE, 0, term=2), 0, by(2))
    assert _addrs(tables) == {0: SLAVE}
    tables.register(registration(MASTER, 1, term=2), 0, by(1))
    assert _addrs(tables) == {0: SLAVE, 1: MASTER}


def test_leader_of_an_earlier_term_cannot_take_id_0_back() -> None:
    tables = _tables()
    tables.register(registration(SLAVE, 0, term=2, topics={"T": queue_data(queues=8)}), 0, by(2))
    result = tables.register(registration(MASTER, 0, term=1, counter=9), 0, by(1))
    assert result == RegisterResult(SLAVE, SLAVE + "0", is_ignored=True)
    assert _addrs(tables) == {0: SLAVE}
    route = tables.route("T")
    assert route is not None
    assert route.queue_datas[0].write_queue_nums == 8


def test_leader_of_the_same_term_replaces_another_address() -> None:
    """Java brokers before version 5 all register with state version 0."""
    tables = RouteInfoManager()
    tables.register(registration(MASTER, term=0), 0, by(1))
    tables.register(registration(SLAVE, term=0), 0, by(2))
    assert _addrs(tables) == {0: SLAVE}


def test_earlier_term_is_taken_once_the_later_leader_is_gone() -> None:
    tables = RouteInfoManager()
    tables.register(registration(MASTER, term=5), 0, by(1))
    tables.connection_closed(1)
    tables.register(registration(SLAVE, term=4), 0, by(2))
    assert _addrs(tables) == {0: SLAVE}


def test_same_address_with_a_lower_term_is_taken() -> None:
    """A group whose storage was made anew starts at term 1 again."""
    tables = RouteInfoManager()
    tables.register(registration(term=5), 0, by(1))
    assert not tables.register(registration(term=1), 0, by(1)).is_ignored
    assert tables.data_version(MASTER) == DataVersion(1, 1_700_000_000_000, 1)


def test_address_under_another_broker_name_leaves_the_old_one() -> None:
    tables = RouteInfoManager()
    tables.register(registration(), 0, by(1))
    tables.register(registration(broker_name="broker-b"), 0, by(1))
    assert _addrs(tables) == {}
    assert _addrs(tables, "broker-b") == {0: MASTER}
    route = tables.route("T")
    assert route is not None
    assert [queue.broker_name for queue in route.queue_datas] == ["broker-b"]


def test_connection_closed_drops_the_node_at_once() -> None:
    tables = _tables()
    assert tables.connection_closed(1) == [MASTER]
    assert _addrs(tables) == {2: SLAVE}
    assert finish(tables.topics()) == ["T"]
    assert tables.connection_closed(1) == []


def test_connection_left_behind_by_a_newer_one_drops_nothing() -> None:
    tables = _tables()
    tables.register(registration(), 0, by(9))
    assert tables.connection_closed(1) == []
    assert _addrs(tables) == {0: MASTER, 2: SLAVE}


def test_last_node_takes_the_broker_and_its_topics_along() -> None:
    tables = _tables()
    tables.register(
        registration(THIRD, broker_name="broker-b", topics={"T": queue_data("broker-b")}), 0, by(3)
    )
    tables.connection_closed(1)
    tables.connection_closed(2)
    assert tables.members("broker-a") is None
    assert tables.cluster_info().clusters == {"DefaultCluster": ("broker-b",)}
    assert finish(tables.topics()) == ["T"]
    tables.connection_closed(3)
    assert finish(tables.topics()) == []
    assert tables.route("T") is None


def test_displaced_master_that_leaves_does_not_take_the_new_one_along() -> None:
    tables = _tables()
    tables.register(registration(SLAVE, 0, term=2), 0, by(2))
    assert tables.connection_closed(1) == [MASTER]
    assert _addrs(tables) == {0: SLAVE}


def test_silent_node_expires_after_its_time_out() -> None:
    tables = _tables()
    tables.register(registration(THIRD, 1, timeout_ms=10_000), 0, by(3))
    assert tables.expire(10_000) == []
    assert tables.expire(10_001) == [THIRD]
    assert tables.refresh("broker-a", MASTER, 60_000, by(1))
    assert tables.expire(120_001) == [SLAVE]
    assert _addrs(tables) == {0: MASTER}
    assert tables.expire(180_001) == [MASTER]
    assert not tables.refresh("broker-a", MASTER, 180_001, by(1))


def test_unregister_drops_the_node() -> None:
    tables = _tables()
    assert tables.unregister("broker-a", MASTER, by(1))
    assert not tables.unregister("broker-a", MASTER, by(1))
    assert _addrs(tables) == {2: SLAVE}


def test_write_permission_goes_and_comes_until_the_topics_change() -> None:
    tables = _tables()

    def perm() -> int:
        route = tables.route("T")
        assert route is not None
        return route.queue_datas[0].perm

    tables.register(registration(), 1, by(1))
    assert finish(tables.set_writable("broker-a", is_writable=False)) == 1
    assert perm() == 4
    tables.register(registration(), 1, by(1))
    assert perm() == 4
    tables.register(registration(counter=2), 2, by(1))
    assert perm() == 6
    finish(tables.set_writable("broker-a", is_writable=False))
    assert finish(tables.set_writable("broker-a", is_writable=True)) == 1
    assert perm() == 6
    assert finish(tables.set_writable("unknown", is_writable=True)) == 0


def test_topic_is_deleted_everywhere_or_in_one_cluster() -> None:
    tables = _tables()
    other = registration(THIRD, broker_name="broker-b", cluster="Other")
    tables.register(other, 0, by(3))
    assert finish(tables.topics_of_cluster("Other")) == ["T"]
    tables.delete_topic("T", "Other")
    route = tables.route("T")
    assert route is not None
    assert [queue.broker_name for queue in route.queue_datas] == ["broker-a"]
    assert finish(tables.topics_of_cluster("Other")) == []
    tables.delete_topic("T")
    tables.delete_topic("T")
    assert finish(tables.topics()) == []


def test_topic_is_added_for_known_brokers_only() -> None:
    tables = _tables()
    queues = [queue_data(), queue_data("broker-x")]
    assert tables.add_topic("New", queues) == 1
    route = tables.route("New")
    assert route is not None
    assert route.queue_datas == (queue_data(),)
    assert tables.add_topic("Lost", [QueueData("broker-x", 1, 1, 6)]) == 0
    assert finish(tables.topics()) == ["T", "New"]


def test_topics_are_listed_by_their_flags() -> None:
    flags = {"none": 0, "unit": 1, "sub": 2, "both": 3}
    topics = {name: queue_data(sys_flag=flag) for name, flag in flags.items()}
    tables = RouteInfoManager()
    tables.register(registration(topics=topics), 0, by(1))
    assert finish(tables.topics_with_flags(1)) == ["unit", "both"]
    assert finish(tables.topics_with_flags(2)) == ["sub", "both"]
    assert finish(tables.topics_with_flags(2, 1)) == ["sub"]


def test_registration_beyond_a_bound_changes_nothing() -> None:
    tables = RouteInfoManager(brokers_max=1, topics_max=2)
    tables.register(registration(), 0, by(1))
    with pytest.raises(TablesFullError, match="1 broker"):
        tables.register(registration(SLAVE, 1), 0, by(2))
    topics = {name: queue_data() for name in ("T", "U", "V")}
    with pytest.raises(TablesFullError, match="3 topics"):
        tables.register(registration(counter=2, topics=topics), 0, by(1))
    tables.add_topic("U", [queue_data()])
    with pytest.raises(TablesFullError, match="2 topics"):
        tables.add_topic("V", [queue_data()])
    assert finish(tables.topics()) == ["T", "U"]
    assert _addrs(tables) == {0: MASTER}


def test_node_of_another_host_is_not_replaced_refreshed_or_removed() -> None:
    tables = RouteInfoManager()
    tables.register(registration("10.0.0.1:10911", 0), 0, by(1, "10.0.0.1"))
    tables.register(registration("10.0.0.2:10911", 2), 0, by(2, "10.0.0.2"))
    stranger = by(9, "10.9.9.9")
    for addr, broker_id in (("10.0.0.1:10911", 0), ("10.0.0.2:10911", 5), ("10.9.9.9:1", 2)):
        with pytest.raises(RefusedError, match=r"registered from 10\.0\.0\."):
            tables.register(registration(addr, broker_id, term=7), 0, stranger)
    with pytest.raises(RefusedError):
        tables.unregister("broker-a", "10.0.0.1:10911", stranger)
    assert not tables.refresh("broker-a", "10.0.0.1:10911", 119_000, stranger)
    assert _addrs(tables) == {0: "10.0.0.1:10911", 2: "10.0.0.2:10911"}
    assert len(tables.expire(120_001)) == 2


def test_broker_may_move_to_a_new_connection_and_return_to_its_own_host() -> None:
    tables = RouteInfoManager()
    tables.register(registration("10.0.0.1:10911", 0), 0, by(1, "10.0.0.1"))
    tables.register(registration("10.0.0.1:10911", 0, counter=2), 0, by(2, "10.0.0.1"))
    assert tables.connection_closed(1) == []
    assert tables.unregister("broker-a", "10.0.0.1:10911", by(3, "10.0.0.1"))
    # A stranger was there first; the address is the sender's own, though.
    tables.register(registration("10.0.0.1:10911", 0), 0, by(4, "10.9.9.9"))
    tables.register(registration("10.0.0.1:10911", 0), 0, by(5, "10.0.0.1"))
    assert tables.connection_closed(4) == []


def test_identity_that_is_proven_may_replace_every_node_of_its_name() -> None:
    tables = RouteInfoManager()
    tables.register(registration("10.0.0.1:10911", 2), 0, by(1, "10.9.9.9"))
    tables.register(registration("10.0.0.2:10911", 2), 0, by(2, "10.0.0.2", is_proven=True))
    assert _addrs(tables) == {2: "10.0.0.2:10911"}


def test_identity_that_is_proven_for_one_name_changes_no_node_of_another_on_the_same_host() -> None:
    tables = RouteInfoManager()
    tables.register(registration(MASTER), 0, by(1, is_proven=True))
    other = by(2, is_proven=True)
    with pytest.raises(RefusedError, match=r"was registered from 127.0.0.1, not by broker-b"):
        tables.register(registration(MASTER, broker_name="broker-b"), 0, other)
    assert not tables.unregister("broker-b", MASTER, other)
    assert _addrs(tables) == {0: MASTER}
    tables.register(registration(SLAVE, broker_name="broker-b"), 0, other)
    assert _addrs(tables) == {0: MASTER}


def test_node_is_not_unregistered_by_another_name() -> None:
    tables = _tables()
    assert not tables.unregister("broker-b", MASTER, by(1))
    assert not tables.refresh("broker-b", MASTER, 5, by(1))
    assert tables.refresh("", MASTER, 5, by(1))


def test_state_version_may_not_jump_beyond_what_is_plausible() -> None:
    tables = RouteInfoManager()
    tables.register(registration(MASTER, term=5), 0, by(1))
    with pytest.raises(RefusedError, match="too far above 5"):
        tables.register(registration(SLAVE, term=6 + STATE_VERSION_STEP_MAX), 0, by(2))
    assert _addrs(tables) == {0: MASTER}
    tables.register(registration(SLAVE, term=5 + STATE_VERSION_STEP_MAX), 0, by(2))
    assert _addrs(tables) == {0: SLAVE}


def test_later_term_of_a_stranger_does_not_keep_the_true_leader_out_for_ever() -> None:
    tables = RouteInfoManager()
    tables.register(registration(SLAVE, term=900_000), 0, by(1))
    claims = [
        tables.register(registration(MASTER, term=5), now_ms, by(2)).is_ignored
        for now_ms in range(0, CONTEST_MS + 1, 30_000)
    ]
    assert claims == [True] * 4 + [False]
    assert _addrs(tables) == {0: MASTER}


def test_single_late_claims_of_an_earlier_term_never_win() -> None:
    tables = RouteInfoManager()
    tables.register(registration(SLAVE, term=9), 0, by(1))
    for now_ms in range(0, 10 * CONTEST_MS, CONTEST_GAP_MS + 1):
        assert tables.register(registration(MASTER, term=5), now_ms, by(2)).is_ignored


def test_no_contest_takes_id_0_from_a_node_that_has_proven_who_it_is() -> None:
    """The majority of before may come back after `ledgermq recover`, and leads in lower terms."""
    tables = RouteInfoManager()
    recovered, old = (replace(by(number), is_proven=True) for number in (1, 2))
    tables.register(registration(MASTER, term=1_009), 0, recovered)
    for now_ms in range(0, 3 * CONTEST_MS, 30_000):
        tables.register(registration(MASTER, term=1_009), now_ms, recovered)
        assert tables.register(registration(SLAVE, term=9), now_ms, old).is_ignored
    tables.connection_closed(1)
    assert not tables.register(registration(SLAVE, term=9), 3 * CONTEST_MS, old).is_ignored


def test_contest_ends_when_the_node_registers_as_a_follower() -> None:
    tables = RouteInfoManager()
    tables.register(registration(SLAVE, term=9), 0, by(1))
    assert tables.register(registration(MASTER, term=5), 0, by(2)).is_ignored
    tables.register(registration(MASTER, 1, term=9), CONTEST_MS // 2, by(2))
    assert tables.register(registration(MASTER, term=5), CONTEST_MS // 2 + 1, by(2)).is_ignored
    assert tables.register(registration(MASTER, term=5), CONTEST_MS + 1, by(2)).is_ignored


def test_contests_are_bounded() -> None:
    tables = RouteInfoManager()
    tables.register(registration(SLAVE, term=9), 0, by(1))
    for number in range(100):
        assert tables.register(registration(f"127.0.0.1:{number}", term=5), 0, by(2)).is_ignored


def test_time_out_that_a_broker_asks_for_is_bounded() -> None:
    tables = RouteInfoManager()
    tables.register(registration(timeout_ms=2**62), 0, by(1))
    tables.register(registration(SLAVE, 1, timeout_ms=-1), 0, by(2))
    assert tables.expire(TIMEOUT_MIN_MS) == []
    assert tables.expire(TIMEOUT_MIN_MS + 1) == [SLAVE]
    assert tables.expire(TIMEOUT_MAX_MS + 1) == [MASTER]


def test_rows_are_added_in_steps_until_the_node_registers_again() -> None:
    tables = RouteInfoManager()
    topics = {f"T{number}": queue_data() for number in range(2_000)}
    steps = tables.registering(registration(topics=topics, counter=7), 0, by(1))
    next(steps)
    assert 0 < len(finish(tables.topics())) < 2_000
    version = tables.data_version(MASTER)
    assert version is not None
    assert version.counter == 0, "it must send its topics again if this ends early"
    tables.register(registration(counter=8), 0, by(1))
    before = len(finish(tables.topics()))
    assert finish(steps) is not None
    assert len(finish(tables.topics())) == before


def test_rows_of_brokers_that_left_are_removed_in_steps() -> None:
    tables = RouteInfoManager(topics_max=2_000)
    topics = {f"T{number}": queue_data() for number in range(2_000)}
    tables.register(registration(topics=topics), 0, by(1))
    tables.register(
        registration(THIRD, broker_name="broker-b", topics={"T7": queue_data("broker-b")}), 0, by(2)
    )
    tables.connection_closed(1)
    assert tables.has_old_rows
    assert finish(tables.topics()) == ["T7"]
    steps = tables.remove_old_rows()
    assert sum(1 for _ in steps) == 4
    assert not tables.has_old_rows
    tables.register(registration(topics={"U": queue_data()}), 0, by(3))
    assert finish(tables.topics()) == ["T7", "U"]
