import random
from dataclasses import replace

import pytest

from broker.consume import clients
from broker.consume.clients import Client, ClientRegistry, RegistryFullError
from broker.consume.heartbeats import (
    ConsumeFromWhere,
    ConsumerBeat,
    ConsumeType,
    Heartbeat,
    MessageModel,
    Subscription,
    parse_heartbeat,
)
from remoting.slices import finish
from tests.support.fake_connection import FakeConnection
from tests.unit.broker.heartbeat_samples import CPP_CONSUMER, GO_CONSUMER, JAVA_CONSUMER


def client(client_id: str = "c1", connection: FakeConnection | None = None) -> Client:
    return Client(client_id, connection or FakeConnection(), "JAVA", 409)


def subscription(topic: str = "T", expression: str = "*", version_ms: int = 1) -> Subscription:
    return Subscription(topic, expression, "TAG", version_ms, None)


def consumer_beat(
    *subscriptions: Subscription, group: str = "G", client_id: str = "c1", is_open: bool = False
) -> Heartbeat:
    beat = ConsumerBeat(
        group,
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel.CLUSTERING,
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        None if is_open else subscriptions or (subscription(),),
    )
    return Heartbeat(client_id, (), (beat,))


def expression_of(registry: ClientRegistry, topic: str, group: str = "G") -> str:
    return registry.consumer_groups[group].subscriptions[topic].expression


def test_the_first_heartbeat_changes_the_group_and_the_next_ones_do_not() -> None:
    registry = ClientRegistry()
    assert finish(registry.beat(client(), consumer_beat(), 0)) == {"G"}
    assert finish(registry.beat(client(), consumer_beat(), 30_000)) == set()
    assert registry.consumer_ids("G") == ["c1"]


def test_members_are_listed_in_order_and_once() -> None:
    registry = ClientRegistry()
    for client_id, number in (("c2", 2), ("c1", 1), ("c2", 3)):
        finish(
            registry.beat(client(client_id, FakeConnection(number)), consumer_beat(client_id=client_id), 0)
        )
    assert registry.consumer_ids("G") == ["c1", "c2"]
    assert registry.consumer_ids("unknown") == []


def test_a_consumer_that_pops_takes_no_share_of_the_queues() -> None:
    registry = ClientRegistry()
    finish(registry.beat(client("c1"), consumer_beat(), 0))
    (beat,) = consumer_beat().consumers
    pops = Heartbeat("c2", (), (replace(beat, consume_type=ConsumeType.CONSUME_POP),))
    finish(registry.beat(client("c2", FakeConnection(2)), pops, 0))
    assert registry.consumer_ids("G") == ["c1"]
    assert set(registry.consumer_groups["G"].members) == {"c1", "c2"}


def test_a_changed_expression_is_a_change_and_a_newer_version_alone_is_not() -> None:
    registry = ClientRegistry()
    finish(registry.beat(client(), consumer_beat(subscription(version_ms=1)), 0))
    assert finish(registry.beat(client(), consumer_beat(subscription(version_ms=2)), 0)) == set()
    assert registry.consumer_groups["G"].subscriptions["T"].version_ms == 2
    assert finish(registry.beat(client(), consumer_beat(subscription(expression="A", version_ms=3)), 0)) == {
        "G"
    }


def test_members_that_disagree_do_not_change_the_group_with_every_heartbeat() -> None:
    registry = ClientRegistry()
    one, two = client("c1", FakeConnection(1)), client("c2", FakeConnection(2))
    finish(registry.beat(one, consumer_beat(subscription("T", "A", 1)), 0))
    finish(registry.beat(two, consumer_beat(subscription("T", "B", 2), client_id="c2"), 0))
    assert finish(registry.beat(one, consumer_beat(subscription("T", "A", 1)), 1)) == set()
    assert finish(registry.beat(two, consumer_beat(subscription("T", "B", 2), client_id="c2"), 1)) == set()
    assert expression_of(registry, "T") == "B"


def test_a_topic_nobody_names_any_more_is_dropped() -> None:
    registry = ClientRegistry()
    finish(registry.beat(client(), consumer_beat(subscription("T"), subscription("U")), 0))
    assert finish(registry.beat(client(), consumer_beat(subscription("T")), 0)) == {"G"}
    assert set(registry.consumer_groups["G"].subscriptions) == {"T"}


def test_a_heartbeat_without_subscriptions_keeps_those_known() -> None:
    registry = ClientRegistry()
    finish(registry.beat(client(), consumer_beat(), 0))
    assert finish(registry.beat(client(), consumer_beat(is_open=True), 1)) == set()
    assert set(registry.consumer_groups["G"].subscriptions) == {"T"}


def test_three_dialects_make_one_group() -> None:
    registry = ClientRegistry()
    for number, body in enumerate((CPP_CONSUMER, JAVA_CONSUMER, GO_CONSUMER)):
        heartbeat = parse_heartbeat(body)
        finish(registry.beat(client(heartbeat.client_id, FakeConnection(number)), heartbeat, 0))
    assert registry.consumer_ids("CID") == ["10.0.0.1@4711#99", "10.0.0.2@DEFAULT", "127.0.0.1@4711#DEFAULT"]
    assert expression_of(registry, "T", "CID") == "TagA"
    assert expression_of(registry, "%RETRY%CID", "CID") == "*"
    assert list(registry.producer_groups) == ["CLIENT_INNER_PRODUCER"]


def test_unregistering_leaves_the_groups_that_are_not_named() -> None:
    registry = ClientRegistry()
    finish(registry.beat(client(), Heartbeat("c1", ("P",), consumer_beat().consumers), 0))
    assert registry.unregister("c1", "", "G") == {"G"}
    assert registry.consumer_ids("G") == []
    assert list(registry.producer_groups["P"]) == ["c1"]
    assert registry.unregister("c1", "P", None) == set()
    assert not registry.producer_groups
    assert registry.unregister("c1", "P", "G") == set()
    assert len(registry) == 0


def test_a_closed_connection_takes_all_its_clients_away() -> None:
    registry = ClientRegistry()
    connection = FakeConnection(5)
    finish(registry.beat(client("c1", connection), Heartbeat("c1", ("P",), consumer_beat().consumers), 0))
    finish(registry.beat(client("c2", FakeConnection(6)), consumer_beat(client_id="c2"), 0))
    assert finish(registry.connection_closed(5)) == {"G"}
    assert registry.consumer_ids("G") == ["c2"]
    assert not registry.producer_groups
    assert finish(registry.connection_closed(5)) == set()


def test_a_closed_connection_with_many_clients_leaves_in_steps() -> None:
    registry = ClientRegistry()
    for number in range(3):
        finish(
            registry.beat(client(f"c{number}", FakeConnection(5)), consumer_beat(client_id=f"c{number}"), 0)
        )
    leaving = registry.connection_closed(5)
    next(leaving)
    (left, _) = registry.consumer_ids("G")
    finish(registry.beat(client(left, FakeConnection(6)), consumer_beat(client_id=left), 1))
    assert finish(leaving) == {"G"}
    assert registry.consumer_ids("G") == [left]


def test_a_client_that_came_back_on_a_new_connection_outlives_the_old_one() -> None:
    registry = ClientRegistry()
    finish(registry.beat(client("c1", FakeConnection(1)), consumer_beat(), 0))
    assert finish(registry.beat(client("c1", FakeConnection(2)), consumer_beat(), 1)) == set()
    assert finish(registry.connection_closed(1)) == set()
    assert registry.consumer_ids("G") == ["c1"]
    assert registry.consumer_groups["G"].members["c1"].client.connection.connection_id == 2
    assert finish(registry.connection_closed(2)) == {"G"}


def test_silence_ends_a_membership_and_names_the_connection_left_over() -> None:
    registry = ClientRegistry(expiry_ms=120_000)
    silent, lively = FakeConnection(1), FakeConnection(2)
    finish(registry.beat(client("c1", silent), Heartbeat("c1", ("P",), consumer_beat().consumers), 0))
    finish(registry.beat(client("c2", lively), consumer_beat(client_id="c2"), 60_000))
    assert finish(registry.expire(120_000)) == (set(), [])
    changed, connections = finish(registry.expire(120_001))
    assert changed == {"G"}
    assert connections == [silent]
    assert registry.consumer_ids("G") == ["c2"]
    assert len(registry) == 1


def test_a_connection_with_another_lively_group_is_not_left_over() -> None:
    registry = ClientRegistry(expiry_ms=120_000)
    connection = FakeConnection(1)
    finish(registry.beat(client("c1", connection), consumer_beat(group="old"), 0))
    finish(registry.beat(client("c1", connection), consumer_beat(group="new"), 100_000))
    assert finish(registry.expire(130_000)) == ({"old"}, [])


def test_a_full_registry_refuses_and_stays_as_it_is() -> None:
    registry = ClientRegistry(memberships_max=1)
    finish(registry.beat(client("c1"), consumer_beat(), 0))
    with pytest.raises(RegistryFullError):
        finish(registry.beat(client("c2", FakeConnection(2)), consumer_beat(client_id="c2"), 0))
    assert registry.consumer_ids("G") == ["c1"]
    assert finish(registry.beat(client("c1"), consumer_beat(), 1)) == set()


def test_a_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "GROUP_MEMBERS_MAX", 2)
    monkeypatch.setattr(clients, "GROUP_SUBSCRIPTIONS_MAX", 3)
    registry = ClientRegistry()

    def beat(client_id: str, *topics: str) -> None:
        subscriptions = [subscription(topic) for topic in topics]
        finish(registry.beat(client(client_id), consumer_beat(*subscriptions, client_id=client_id), 0))

    beat("c1", "T", "U")
    for topics in (("T", "U"), ("T", "U", "V")):
        with pytest.raises(RegistryFullError, match="group G has too many"):
            beat("c2", *topics)
    beat("c2", "T")
    with pytest.raises(RegistryFullError):
        beat("c3", "T")
    beat("c1", "T", "V")
    beat("c1", "T")
    assert registry.consumer_ids("G") == ["c1", "c2"]
    assert registry.consumer_groups["G"].subscription_count == 2


def test_a_group_wants_the_newest_subscription_of_any_member_through_any_history() -> None:
    rng = random.Random(5)
    registry = ClientRegistry()
    for version_ms in range(1_500):
        client_id = f"c{rng.randrange(4)}"
        before = _wanted(registry)
        if rng.random() < 0.3:
            changed = registry.unregister(client_id, None, "G")
        else:
            topics = rng.sample("TUV", rng.randrange(4))
            wanted = [subscription(each, rng.choice("AB"), version_ms) for each in topics]
            beat = consumer_beat(client_id=client_id).consumers[0]
            beats = (replace(beat, subscriptions=tuple(wanted)),)
            changed = finish(registry.beat(client(client_id), Heartbeat(client_id, (), beats), 0))
        group = registry.consumer_groups.get("G")
        members = [] if group is None else [each for m in group.members.values() for each in m.subscriptions]
        newest = {each.topic: each for each in sorted(members, key=lambda each: each.version_ms)}
        assert _wanted(registry) == {topic: each.wanted for topic, each in newest.items()}
        assert changed or before == _wanted(registry)
        assert group is None or group.subscription_count == len(members)


def _wanted(registry: ClientRegistry) -> dict[str, tuple[str, str]]:
    group = registry.consumer_groups.get("G")
    return {} if group is None else {topic: each.wanted for topic, each in group.subscriptions.items()}


def test_the_count_and_the_index_by_connection_hold_through_any_history() -> None:
    rng = random.Random(3)
    registry = ClientRegistry(expiry_ms=500)
    now_ms = 0
    for _ in range(3_000):
        now_ms += rng.randrange(50)
        client_id, number = f"c{rng.randrange(6)}", rng.randrange(8)
        match rng.randrange(5):
            case 0 | 1:
                beat = consumer_beat(group=f"G{rng.randrange(3)}", client_id=client_id)
                finish(
                    registry.beat(
                        client(client_id, FakeConnection(number)),
                        Heartbeat(client_id, (f"P{rng.randrange(3)}",), beat.consumers),
                        now_ms,
                    )
                )
            case 2:
                registry.unregister(client_id, f"P{rng.randrange(3)}", f"G{rng.randrange(3)}")
            case 3:
                finish(registry.connection_closed(number))
            case _:
                finish(registry.expire(now_ms))
        consumers = sum(len(group.members) for group in registry.consumer_groups.values())
        producers = sum(len(members) for members in registry.producer_groups.values())
        assert len(registry) == consumers + producers
        assert len(registry) == sum(len(each) for each in registry._of_connection.values())
        assert all(group.members for group in registry.consumer_groups.values())


def test_a_connection_may_be_nudged_once_between_two_of_its_heartbeats() -> None:
    registry = ClientRegistry()
    assert not registry.may_nudge(1)
    finish(registry.beat(client(), consumer_beat(), 0))
    assert [registry.may_nudge(1) for _ in range(3)] == [True, False, False]
    finish(registry.beat(client("c2", FakeConnection(2)), consumer_beat(client_id="c2"), 0))
    assert [registry.may_nudge(number) for number in (1, 2, 2)] == [False, True, False]
    finish(registry.beat(client(), consumer_beat(), 30_000))
    assert [registry.may_nudge(1) for _ in range(2)] == [True, False]
    for number in (1, 2):
        finish(registry.connection_closed(number))
        assert not registry.may_nudge(number)
    assert registry._nudged == set()
