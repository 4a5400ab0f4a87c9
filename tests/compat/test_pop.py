"""POP consumption: Java's push consumer with queues that the broker assigns, and requests by hand, while
leaders are killed.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from commitlog.record import decode_record
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from tests.compat.stage import Stage
from tests.integration.client_runs import Driver, Report, java_driver, read_report
from tests.integration.messages import Sample
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire

pytestmark = pytest.mark.integration
SEEN_LIMIT_S = 60.0
FAIL_EVERY = 20


class Popper:
    """A running Java consumer. What it has seen is in its report."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, stop: Path) -> None:
        self.process = process
        self._out = out
        self._stop = stop

    def messages(self) -> Report:
        return [line for line in read_report(self._out) if line["event"] == "message"]

    def has_started(self) -> bool:
        assert self.process.poll() is None, self._out.with_suffix(".log").read_text(errors="replace")[-2_000:]
        return bool(read_report(self._out))

    def bodies(self) -> set[str]:
        return {line["body"] for line in self.messages()}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self._stop.touch()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def java(tmp_path: Path) -> Driver:
    return java_driver("5.5.0", tmp_path)


@contextmanager
def popper(
    java: Driver, stage: Stage, topic: str, group: str, name: str, **options: object
) -> Iterator[Popper]:
    out, stop = java.folder / f"{name}.jsonl", java.folder / f"{name}.stop"
    values: dict[str, object] = {"namesrv": stage.namesrv, "topic": topic, "group": group}
    values |= {"instance": name, "out": out, "stop": stop}
    arguments = [f"{key}={value}" for key, value in (values | options).items()]
    started = Popper(java.start(["pop", *arguments], out), out, stop)
    try:
        wait_for(f"{name} runs", started.has_started, SEEN_LIMIT_S)
        yield started
    finally:
        if started.process.poll() is None:
            started.end()


def pop_mode(stage: Stage, topic: str) -> str:
    """A group that pops the topic."""
    group = stage.unique("PopGroup")
    config = {"groupName": group, "retryMaxTimes": 16}
    body = json.dumps(config).encode()
    stage.invoke_leader(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    mode = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
    stage.invoke_leader(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())
    return group


def produce(java: Driver, stage: Stage, topic: str, kind: str, count: int) -> set[str]:
    """The bodies that are stored now."""
    out = java.folder / f"{kind}.jsonl"
    options = [
        f"namesrv={stage.namesrv}",
        f"topic={topic}",
        f"group=P{kind}",
        f"{kind}={count}",
        f"out={out}",
    ]
    sent = java.run(["produce", *options], out)
    assert [line["status"] for line in sent] == ["SEND_OK"] * count
    return {Sample(kind, number).body for number in range(count)}


def test_java_consumer_in_pop_mode_outlives_the_leader(stage: Stage, java: Driver) -> None:
    """Every message comes; none twice, but those that failed the first time, with their count."""
    topic = stage.topic("PopJava")
    group = pop_mode(stage, topic)
    with popper(java, stage, topic, group, "a", fail_every=FAIL_EVERY) as consumer:
        first = produce(java, stage, topic, "async", 200)
        wait_for("the first messages are seen", lambda: first <= consumer.bodies(), SEEN_LIMIT_S)
        with stage.leader_dead():
            second = produce(java, stage, topic, "ordered", 100)
            wait_for("all messages are seen", lambda: second <= consumer.bodies(), SEEN_LIMIT_S)
        failing = {
            Sample(kind, number).body
            for kind, count in (("async", 200), ("ordered", 100))
            for number in range(0, count, FAIL_EVERY)
        }
        wait_for("what failed comes again", lambda: failing <= again(consumer), SEEN_LIMIT_S)
        seen = consumer.messages()
    assert {line["topic"] for line in seen} == {topic}
    once = Counter(line["body"] for line in seen if line["reconsume_times"] == 0)
    assert set(once.values()) == {1}
    assert set(once) == first | second
    assert {line["handle"].split(" ")[4] for line in seen if line["reconsume_times"]} == {"1"}
    assert again(consumer) == failing


def again(consumer: Popper) -> set[str]:
    return {line["body"] for line in consumer.messages() if line["reconsume_times"] == 1}


def test_what_a_killed_consumer_had_comes_to_another(stage: Stage, java: Driver) -> None:
    topic = stage.topic("PopKilled", queues=2)
    group = pop_mode(stage, topic)
    bodies = produce(java, stage, topic, "sync", 30)
    with popper(java, stage, topic, group, "hangs", hang_after=5, invisible_ms=5_000) as dying:
        wait_for("it has some", lambda: len(dying.messages()) > 5, SEEN_LIMIT_S)
        dying.kill()
    had = dying.bodies()
    with popper(java, stage, topic, group, "takes over") as consumer:
        wait_for("what it had comes", lambda: had | consumer.bodies() >= bodies, SEEN_LIMIT_S)
        assert had | consumer.bodies() == bodies
        assert 1 in {line["reconsume_times"] for line in consumer.messages()}


@pytest.mark.long
def test_pullers_share_the_queues_that_the_broker_assigns(stage: Stage, java: Driver) -> None:
    """Without a mode the broker tells consumers to pull, each its own queues."""
    topic = stage.topic("PopAssigned", queues=4)
    group = stage.unique("PullGroup")
    with (
        popper(java, stage, topic, group, "first") as first,
        popper(java, stage, topic, group, "second") as second,
    ):
        done: set[str] = set()
        kinds = cycle(("sync", "ordered", "async", "batch"))

        def both_have_some() -> bool:
            """They learn of each other within 20 s; until then one may have all queues."""
            done.update(produce(java, stage, topic, next(kinds), 40))
            wait_for("all are seen", lambda: done <= first.bodies() | second.bodies(), SEEN_LIMIT_S)
            return bool(first.messages()) and bool(second.messages())

        wait_for("both consume", both_have_some, SEEN_LIMIT_S)
        last = [line["queue"] for line in first.messages()[-1:] + second.messages()[-1:]]
    assert len(set(last)) == 2
    assert all(line["handle"] is None for line in first.messages() + second.messages())


def ask(stage: Stage, code: RequestCode, body: bytes = b"", **fields: object) -> RemotingCommand:
    """The leader's answer, whatever its code."""
    with Wire(stage.leader_address(), 10.0) as wire:
        return wire.invoke(code, {name: str(value) for name, value in fields.items()}, body)


def pop(stage: Stage, topic: str, group: str, **fields: object) -> list[dict[str, Any]]:
    """What each popped message is acknowledged by, with its body."""
    values: dict[str, object] = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
    }
    answer = ask(stage, RequestCode.POP_MESSAGE, b"", **(values | fields))
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT), answer
    found = []
    at = 0
    while at < len(answer.body):
        record = decode_record(answer.body, at, check_crc=True)
        at += record.size
        times = " ".join(answer.ext_fields[name] for name in ("popTime", "invisibleTime", "reviveQid"))
        place = {"topic": record.topic, "queueId": record.queue_id, "offset": record.queue_offset}
        handle = f"{record.queue_offset} {times} 0 broker-a {record.queue_id} {record.queue_offset}"
        found.append({"consumerGroup": group, "extraInfo": handle, **place, "body": bytes(record.body)})
    return found


def ack(stage: Stage, message: dict[str, Any]) -> int:
    fields = {name: value for name, value in message.items() if name != "body"}
    return ask(stage, RequestCode.ACK_MESSAGE, b"", **fields).code


def test_a_leader_dies_between_pop_and_acknowledgement(stage: Stage, java: Driver) -> None:
    """The next one knows what is out, what was acknowledged, and what waits its turn."""
    topic = stage.topic("PopWire", queues=1)
    group, in_order = pop_mode(stage, topic), pop_mode(stage, topic)
    produce(java, stage, topic, "sync", 10)
    messages = pop(stage, topic, group, maxMsgNums=6)
    short = pop(stage, topic, group, maxMsgNums=1, invisibleTime=2_000)
    ordered = pop(stage, topic, in_order, maxMsgNums=2, order="true")
    assert [ack(stage, message) for message in messages[:3]] == [0, 0, 0]
    assert ack(stage, ordered[0]) == 0
    with stage.leader_dead():
        assert [ack(stage, message) for message in messages] == [208] * 3 + [0] * 3
        assert [message["offset"] for message in pop(stage, topic, group, maxMsgNums=3)] == [7, 8, 9]
        assert pop(stage, topic, in_order, order="true") == []
        assert ack(stage, ordered[1]) == 0
        assert [each["offset"] for each in pop(stage, topic, in_order, maxMsgNums=1, order="true")] == [2]
        (back,) = pop(
            stage, topic, group, pollTime=15_000, queueId=0, maxMsgNums=1, exp="TagA", expType="TAG"
        )
        assert (back["topic"], back["body"]) == (f"%RETRY%{group}_{topic}", short[0]["body"])
