"""What stock consumers do with a queue: who gets which message, in which company, from where on."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict

import pytest

from remoting.codes import RequestCode, ResponseCode
from tests.compat.programs import FILE, JAVA, Client, Program, versions
from tests.compat.stage import Stage
from tests.integration.checks import assert_each_exactly_once, assert_places_unique
from tests.integration.client_runs import Report
from tests.integration.messages import Sample, samples
from tests.integration.wire import Wire

pytestmark = pytest.mark.integration
QUEUES = 8
BALANCED_S = 2.0
"""The consumers share the queues out by then; they show no sign of it."""


@pytest.fixture(scope="module", params=versions(JAVA))
def client(request: pytest.FixtureRequest, stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Client:
    return Client(request.param, stage.namesrv, tmp_path_factory.mktemp("consume"))


def messages_of(program: Program) -> Report:
    return [line for line in program.report if "body" in line]


def produce(client: Client, topic: str, **counts: int) -> Report:
    report = client.run("produce", topic, f"{topic}Producers", **counts)
    assert {line.get("status", "SEND_OK") for line in report} == {"SEND_OK"}
    return report


def consumer_ids(stage: Stage, group: str) -> list[str]:
    with Wire(stage.leader_address()) as wire:
        answer = wire.invoke(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return json.loads(answer.body)["consumerIdList"] if answer.code == ResponseCode.SUCCESS else []


def committed(stage: Stage, group: str, topic: str, queues: int) -> int:
    """How many messages of the topic the group has consumed, as its consumers told the leader."""
    asked = [{"consumerGroup": group, "topic": topic, "queueId": str(queue)} for queue in range(queues)]
    with Wire(stage.leader_address()) as wire:
        answers = [wire.invoke(RequestCode.QUERY_CONSUMER_OFFSET, ext) for ext in asked]
    return sum(int(answer.ext_fields["offset"]) for answer in answers if answer.code == ResponseCode.SUCCESS)


def test_three_consumers_share_the_queues_and_take_over_those_of_one_that_leaves(
    stage: Stage, client: Client
) -> None:
    """Each queue has one owner at a time, and nothing is lost or taken twice by the changes."""
    topic, group = stage.topic("Shared", QUEUES), stage.unique("Shared")
    with client.start("consumers", topic, group, members=3, leave=FILE) as consumers:
        consumers.wait_until("three are registered", lambda: len(consumer_ids(stage, group)) == 3)
        time.sleep(BALANCED_S)
        first = samples(sync=40)
        produce(client, topic, sync=40)
        consumers.wait_until("all consumed", lambda: committed(stage, group, topic, QUEUES) == len(first))
        consumers.tell("leave")
        consumers.wait_lines("one left", event="left")
        consumers.wait_until("two are registered", lambda: len(consumer_ids(stage, group)) == 2)
        before = len(messages_of(consumers))
        produce(client, topic, ordered=40)
        consumers.wait_until("all consumed", lambda: len(messages_of(consumers)) >= before + 40)
        consumers.stop()
    received = messages_of(consumers)
    assert_each_exactly_once(received, [*first, *samples(ordered=40)])
    assert_places_unique(received)
    owners = owners_by_queue(received[before:])
    assert {member for members in owners.values() for member in members} <= {0, 1}
    assert all(len(members) == 1 for members in owners.values())


def owners_by_queue(received: Report) -> dict[int, set[int]]:
    owners: dict[int, set[int]] = defaultdict(set)
    for message in received:
        owners[message["queue"]].add(message["member"])
    return owners


def test_every_broadcasting_consumer_gets_every_message(stage: Stage, client: Client) -> None:
    topic, group = stage.topic("Broadcast", 4), stage.unique("Broadcast")
    produce(client, topic, sync=30)
    with client.start("consumers", topic, group, members=2, broadcasting=True) as consumers:
        consumers.wait_until("all got by both", lambda: len(messages_of(consumers)) >= 60)
        consumers.stop()
    received = messages_of(consumers)
    for member in range(2):
        own = [message for message in received if message["member"] == member]
        assert_each_exactly_once(own, samples(sync=30))


@pytest.mark.long
def test_suspended_consumer_gets_nothing_till_it_is_resumed(stage: Stage, client: Client) -> None:
    """Pulls that the broker held when it was suspended still bring what comes first."""
    topic, group = stage.topic("Suspended", 2), stage.unique("Suspended")
    with client.start("consumers", topic, group, pause=FILE) as consumers:
        consumers.wait_lines("it runs", event="started")
        produce(client, topic, sync=3)
        consumers.wait_until("the first", lambda: len(messages_of(consumers)) == 3)
        consumers.tell("pause")
        consumers.wait_lines("suspended", event="suspended")
        produce(client, topic, oneway=6)
        time.sleep(1.0)
        before = len(messages_of(consumers))
        produce(client, topic, ordered=6)
        time.sleep(1.0)
        assert len(messages_of(consumers)) == before
        consumers.take_back("pause")
        consumers.wait_until("the rest", lambda: len(messages_of(consumers)) >= 15)
        consumers.stop()
    assert_each_exactly_once(messages_of(consumers), samples(sync=3, oneway=6, ordered=6))


@pytest.mark.long
def test_batches_of_messages_are_consumed_together(stage: Stage, client: Client) -> None:
    topic, group = stage.topic("Batches", 1), stage.unique("Batches")
    produce(client, topic, sync=60)
    with client.start("consumers", topic, group, batch=16) as consumers:
        consumers.wait_until("all consumed", lambda: len(messages_of(consumers)) >= 60)
        consumers.stop()
    received = messages_of(consumers)
    assert_each_exactly_once(received, samples(sync=60))
    assert max(message["together"] for message in received) == 16


@pytest.mark.long
def test_messages_that_are_put_off_come_again_before_those_behind_them(stage: Stage, client: Client) -> None:
    topic, group = stage.topic("PutOff", 2), stage.unique("PutOff")
    produce(client, topic, sync=24)
    with client.start("consumers", topic, group, orderly=True, suspend_every=3) as consumers:
        consumers.wait_until("all consumed", lambda: len(messages_of(consumers)) >= 24)
        consumers.stop()
    received = messages_of(consumers)
    assert_each_exactly_once(received, samples(sync=24))
    put_off = {(line["queue"], line["offset"]) for line in consumers.lines(event="put off")}
    assert put_off == {
        (message["queue"], message["offset"]) for message in received if message["offset"] % 3 == 0
    }
    for queue in range(2):
        offsets = [message["offset"] for message in received if message["queue"] == queue]
        assert offsets == sorted(offsets)


@pytest.fixture(scope="module")
def pulled(stage: Stage, client: Client) -> Report:
    """The report of the consumers that pull themselves, over a topic of 10 messages a queue."""
    topic = stage.topic("Pulled", 2)
    produce(client, topic, sync=20)
    return client.run("pulls", topic, stage.unique("Pulled"), seek=3, lite_count=4)


def test_pull_consumer_sees_bounds_and_is_told_at_the_end_and_beyond(pulled: Report) -> None:
    counts = Counter({line["queue"]: line["max"] for line in pulled if line["case"] == "bounds"})
    assert sum(counts.values()) == 20
    for line in pulled:
        if line["case"] == "bounds":
            assert (line["min"], line["first_by_time"]) == (0, 0)
            assert line["last_by_time"] in {line["max"], line["max"] - 1}
    by_case = {(line["case"], line["queue"]): line for line in pulled if "status" in line}
    for queue, count in counts.items():
        first, end, beyond = (by_case[case, queue] for case in ("first", "end", "beyond"))
        assert (first["status"], first["count"], first["next"]) == ("FOUND", count, count)
        assert (end["status"], end["next"]) == ("NO_NEW_MSG", count)
        assert (beyond["status"], beyond["next"]) == ("OFFSET_ILLEGAL", count)


def test_lite_pull_consumer_begins_where_it_seeks_and_goes_on_where_it_committed(pulled: Report) -> None:
    first = [line["offset"] for line in pulled if line["case"] == "lite first"]
    committed = [line["offset"] for line in pulled if line["case"] == "lite committed" and "body" not in line]
    after = [line["offset"] for line in pulled if line["case"] == "lite committed" and "body" in line]
    assert first[:4] == [3, 4, 5, 6]
    assert committed == [7]
    assert after[:1] == [7]


@pytest.mark.long
def test_consumers_go_on_after_the_leader_died(stage: Stage, client: Client) -> None:
    """Pushed messages of before and after the kill, each at least once, and none that was never sent."""
    topic, group = stage.topic("Killed", QUEUES), stage.unique("Killed")
    sent = produce(client, topic, sync=40)
    with client.start("consumers", topic, group, members=2) as consumers:
        consumers.wait_until("all of before", lambda: len(messages_of(consumers)) >= 40)
        with stage.leader_dead():
            sent += client.run("produce", topic, f"{topic}After", ordered=40)
        wanted = {Sample(line["kind"], line["number"]).body for line in sent}
        consumers.wait_until(
            "all of after", lambda: wanted <= {message["body"] for message in messages_of(consumers)}, 90.0
        )
        consumers.stop()
    assert {message["body"] for message in messages_of(consumers)} == wanted


@pytest.mark.long
def test_consumer_that_runs_goes_back_to_where_its_group_is_reset(stage: Stage, client: Client) -> None:
    """The client waits 10 s before it begins anew at the offset that its next pull is answered with."""
    topic, group = stage.topic("Reset", 2), stage.unique("Reset")
    produce(client, topic, sync=20)
    with client.start("consumers", topic, group) as consumers:
        consumers.wait_until("all consumed", lambda: committed(stage, group, topic, 2) == 20)
        ext = {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"}
        stage.invoke_leader(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
        consumers.wait_until("all again", lambda: len(messages_of(consumers)) >= 40, 90.0)
        consumers.stop()
    assert Counter(message["body"] for message in messages_of(consumers)) == {
        sample.body: 2 for sample in samples(sync=20)
    }
