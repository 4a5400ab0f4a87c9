"""The Python client's consumers on a real cluster: beside stock Java clients in one group, and through the
death of the leader.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ledgermq.client import Message, ReceivedMessage, RetryLater, Where
from ledgermq.client.blocking import Producer, PullConsumer, PushConsumer, SimpleConsumer
from tests.compat.programs import FILE, JAVA, Client, Program, versions
from tests.compat.stage import Stage
from tests.integration.client_runs import Report
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
QUEUES = 4
LIMIT_S = 60.0
in_each_version = pytest.mark.parametrize("version", versions(JAVA))


class Kept:
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> set[bytes]:
        return {each.body for each in self.messages}

    def wait(self, what: str, bodies: set[bytes]) -> None:
        wait_for(what, lambda: bodies <= self.bodies, LIMIT_S)


class Sending:
    """Sends numbered messages from a thread until `stop`. `sent`: those that were acknowledged."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.sent: list[bytes] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(namesrv, topic))
        self._thread.start()

    def _run(self, namesrv: str, topic: str) -> None:
        with Producer(namesrv, send_timeout_s=30.0) as producer:
            number = 0
            while not self._ends.wait(0.005):
                body = b"m%d" % number
                producer.send(Message(topic, body))
                self.sent.append(body)
                number += 1

    def wait_more(self, count: int) -> None:
        goal = len(self.sent) + count
        wait_for(f"{goal} messages are sent", lambda: len(self.sent) >= goal, LIMIT_S)

    def stop(self) -> set[bytes]:
        self._ends.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        return set(self.sent)


@contextmanager
def sending(namesrv: str, topic: str) -> Iterator[Sending]:
    made = Sending(namesrv, topic)
    try:
        yield made
    finally:
        made.stop()


def bodies_of(report: Report) -> set[bytes]:
    return {line["body"].encode() for line in report if "body" in line}


def push(stage: Stage, handler: object, topic: str, group: str, **options: object) -> PushConsumer:
    options = {"consume_from": Where.BEGINNING, **options}
    return PushConsumer(stage.namesrv, handler, group=group, topics=topic, **options)  # type: ignore[arg-type]


@in_each_version
def test_a_group_of_a_java_member_and_ours_shares_the_queues_and_loses_nothing(
    stage: Stage, tmp_path: Path, version: str
) -> None:
    topic, group = stage.topic("Mixed", QUEUES), stage.unique("Mixed")
    client, ours = Client(version, stage.namesrv, tmp_path), Kept()
    with (
        client.start("consumers", topic, group, members=2, leave=FILE) as java,
        sending(stage.namesrv, topic) as more,
    ):
        java.wait_lines("two Java members", event="started")
        with push(stage, ours, topic, group):
            _share(java, ours)
            more.wait_more(200)
            java.tell("leave")
            java.wait_lines("one has left", event="left")
            more.wait_more(200)
        more.wait_more(200)
        with push(stage, ours, topic, group):
            _share(java, ours)
            java.stop()
            more.wait_more(200)
            sent = more.stop()
            wait_for("all sent", lambda: sent <= ours.bodies | bodies_of(java.report), LIMIT_S)
    assert sent <= ours.bodies | bodies_of(java.report)


def _share(java: Program, ours: Kept) -> None:
    """Wait until both get messages that were sent from now on."""
    java_before, ours_before = len(bodies_of(java.report)), len(ours.messages)
    wait_for("ours gets messages", lambda: len(ours.messages) > ours_before + 20, LIMIT_S)
    java.wait_until("Java gets messages", lambda: len(bodies_of(java.report)) > java_before)


@in_each_version
def test_an_ordered_group_of_both_kinds_handles_each_queue_in_order(
    stage: Stage, tmp_path: Path, version: str
) -> None:
    topic, group = stage.topic("MixedOrder", QUEUES), stage.unique("MixedOrder")
    client, ours = Client(version, stage.namesrv, tmp_path), Kept()
    with (
        client.start("consumers", topic, group, members=1, orderly=True) as java,
        sending(stage.namesrv, topic) as more,
    ):
        java.wait_lines("a Java member", event="started")
        with push(stage, ours, topic, group, ordered=True):
            _share(java, ours)
            more.wait_more(200)
        more.wait_more(100)
        with push(stage, ours, topic, group, ordered=True):
            _share(java, ours)
            java.stop()
            more.wait_more(200)
            sent = more.stop()
            wait_for("all sent", lambda: sent <= ours.bodies | bodies_of(java.report), LIMIT_S)
    places = Counter((each.queue.queue_id, each.queue_offset) for each in ours.messages)
    last: dict[int, int] = {}
    for each in ours.messages:
        first = places[each.queue.queue_id, each.queue_offset] == 1
        assert not first or each.queue_offset > last.get(each.queue.queue_id, -1)
        last[each.queue.queue_id] = each.queue_offset


@in_each_version
def test_what_java_produces_ours_consumes_by_tag_sql_and_pop(
    stage: Stage, tmp_path: Path, version: str
) -> None:
    topic = stage.topic("FromJava", QUEUES)
    client = Client(version, stage.namesrv, tmp_path)
    client.run("produce", topic, stage.unique("Producer"), sync=60, large=2)
    with PullConsumer(stage.namesrv, group=stage.unique("Pull")) as puller:
        puller.assign(puller.queues(topic))
        everything = {each.body: each for each in puller.read_to_end()}
        assert len(everything) == 62
        puller.commit()
    wanted = {body for body, each in everything.items() if each.tag in ("TagA", "TagC")}
    kept = Kept()
    with PushConsumer(
        stage.namesrv,
        kept,
        group=stage.unique("Tags"),
        topics={topic: "TagA || TagC"},
        consume_from=Where.BEGINNING,
    ):
        kept.wait("tags", wanted)
    assert kept.bodies == wanted
    popped: set[bytes] = set()
    with SimpleConsumer(stage.namesrv, group=stage.unique("Pop"), topics=topic) as consumer:
        while len(popped) < 62:
            for message in consumer.receive(32):
                popped.add(message.body)
                consumer.ack(message)
        assert consumer.receive(wait_s=0.1) == []
    assert popped == everything.keys()


def test_retries_and_dead_letters_of_a_real_broker(stage: Stage) -> None:
    topic, group = stage.topic("Retries", 1), stage.unique("Retries")
    attempts: list[tuple[str, int]] = []

    def fail(message: ReceivedMessage) -> None:
        attempts.append((message.topic, message.attempts))
        raise RetryLater(delay_level=1)

    with Producer(stage.namesrv) as producer:
        producer.send(Message(topic, b"bad"))
    with push(stage, fail, topic, group, max_reconsume_times=2):
        wait_for("three tries", lambda: len(attempts) == 3, LIMIT_S)
        with PullConsumer(stage.namesrv) as puller:
            dead = f"%DLQ%{group}"
            wait_for("the dead letters' topic", lambda: _has_route(puller, dead), LIMIT_S)
            puller.assign(puller.queues(dead))
            found = puller.poll(timeout_s=LIMIT_S)
    assert attempts == [(topic, 0), (topic, 1), (topic, 2)]
    assert [each.body for each in found] == [b"bad"]


def _has_route(puller: PullConsumer, topic: str) -> bool:
    try:
        return bool(puller.queues(topic))
    except Exception:  # noqa: BLE001  it does not exist yet
        return False


@pytest.mark.parametrize("kind", ["concurrent", "ordered", "simple", "pull"])
def test_no_acknowledged_message_is_missed_when_the_leader_dies(stage: Stage, kind: str) -> None:
    topic, group = stage.topic("Failover", QUEUES), stage.unique("Failover")
    kept = Kept()
    with _consuming(stage, kind, topic, group, kept), sending(stage.namesrv, topic) as more:
        more.wait_more(100)
        kept.wait("the first hundred", set(more.sent[:100]))
        with stage.leader_dead():
            more.wait_more(100)
            kept.wait("what was sent while it is dead", set(more.sent))
        more.wait_more(50)
        sent = more.stop()
        kept.wait("all sent", sent)


@contextmanager
def _consuming(stage: Stage, kind: str, topic: str, group: str, kept: Kept) -> Iterator[None]:
    if kind in ("concurrent", "ordered"):
        with push(stage, kept, topic, group, ordered=kind == "ordered"):
            yield
        return
    ends = threading.Event()
    consume = _pop if kind == "simple" else _pull
    thread = threading.Thread(target=consume, args=(stage, topic, group, kept, ends))
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join(LIMIT_S)
    assert not thread.is_alive()


def _pop(stage: Stage, topic: str, group: str, kept: Kept, ends: threading.Event) -> None:
    with SimpleConsumer(stage.namesrv, group=group, topics=topic) as consumer:
        while not ends.is_set():
            for message in consumer.receive(wait_s=0.5):
                kept(message)
                consumer.ack(message)


def _pull(stage: Stage, topic: str, group: str, kept: Kept, ends: threading.Event) -> None:
    with PullConsumer(stage.namesrv, group=group) as consumer:
        consumer.assign(consumer.queues(topic))
        while not ends.is_set():
            for message in consumer.poll(timeout_s=0.5):
                kept(message)
            consumer.commit()
