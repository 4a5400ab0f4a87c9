"""Timer messages of the unchanged Java client 5.x: each comes once, not before its time, in spite of a dying
leader; and what is recalled does not come.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from commitlog.record import Record, parse_properties
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from tests.compat.stage import Stage
from tests.integration.client_runs import Report, finish, java_driver, read_report
from tests.integration.messages import WORD, Sample
from tests.integration.streams import read_all
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire

pytestmark = pytest.mark.integration
DELIVERY_LIMIT_S = 90.0
SENT = 60


class TimerRun:
    """A driver that sends timer messages to a topic of its own."""

    def __init__(self, namesrv: str, topic: str, folder: Path) -> None:
        self.namesrv = namesrv
        self.topic = topic
        self.driver = java_driver("5.5.0", folder)
        self.out = folder / f"{self.topic}.jsonl"
        self.stop = folder / f"{self.topic}.stop"

    def arguments(self, **options: object) -> list[str]:
        given = {"namesrv": self.namesrv, "topic": self.topic, "group": f"{self.topic}-p"}
        given |= {"out": str(self.out)}
        return ["timers", *(f"{name}={value}" for name, value in (given | options).items())]

    def events(self, kind: str) -> Report:
        return [line for line in read_report(self.out) if line["event"] == kind]

    def numbers(self, kind: str) -> set[int]:
        return {line["number"] for line in self.events(kind)}

    def delivered(self) -> list[Record]:
        return asyncio.run(read_all(self.namesrv, self.topic))

    def wait_delivered(self) -> None:
        """What was sent, and nobody tried to take back."""
        wanted = {_body(number) for number in self.numbers("sent") - self.numbers("recalling")}
        assert wanted
        wait_for(
            "every message is there",
            lambda: wanted <= {record.body for record in self.delivered()},
            DELIVERY_LIMIT_S,
        )

    def check(self) -> None:
        """Each message once, none before its time, none that was recalled."""
        records = self.delivered()
        counts = Counter(record.body for record in records)
        assert not [body for body, count in counts.items() if count > 1]
        assert not {_body(number) for number in self.numbers("recalled")} & counts.keys()
        due = {_body(line["number"]): line["due"] for line in self.events("sent")}
        for record in records:
            early_ms = due.get(record.body, 0) - record.store_timestamp_ms
            assert early_ms <= 0, f"{record.body!r} came {early_ms} ms too early"


def _body(number: int) -> bytes:
    return Sample("timer", number).body.encode()


@pytest.fixture
def run(stage: Stage, tmp_path: Path) -> TimerRun:
    return TimerRun(stage.namesrv, stage.topic("timers", 4), tmp_path)


def test_timer_messages_come_once_when_they_are_due(run: TimerRun) -> None:
    run.driver.run(run.arguments(count=SENT, threads=4, delay_ms=1500), run.out)
    assert run.events("failed") == []
    assert [line["code"] for line in run.events("far")] == [ResponseCode.MESSAGE_ILLEGAL]
    sent = {line["number"]: line for line in run.events("sent")}
    assert len(sent) == SENT
    assert all(line["status"] == "SEND_OK" and line["handle"] for line in sent.values())
    recalled = {line["number"]: line["id"] for line in run.events("recalled")}
    assert recalled == {number: sent[number]["id"] for number in range(5, SENT, 6)}
    run.wait_delivered()
    run.check()
    assert len(run.delivered()) == SENT - len(recalled)
    for record in run.delivered():
        properties = parse_properties(record.properties)
        assert (properties["word"], properties["REAL_TOPIC"]) == (WORD, run.topic)
        assert properties["UNIQ_KEY"] == sent[int(properties["number"])]["id"]


def test_what_was_delivered_or_recalled_cannot_be_recalled(run: TimerRun, stage: Stage) -> None:
    run.driver.run(run.arguments(count=6, delay_ms=1000), run.out)
    run.wait_delivered()
    for line in run.events("sent"):
        ext = {"topic": run.topic, "recallHandle": line["handle"], "producerGroup": "p"}
        answer = _ask_leader(stage, ext)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION, answer


def _ask_leader(stage: Stage, ext: dict[str, str]) -> RemotingCommand:
    with Wire(stage.leader_address()) as wire:
        return wire.invoke(RequestCode.RECALL_MESSAGE, ext)


def test_a_dying_leader_neither_loses_nor_repeats_a_message(run: TimerRun, stage: Stage) -> None:
    process = run.driver.start(run.arguments(threads=6, delay_ms=3000, pause_ms=20, stop=run.stop), run.out)
    try:
        wait_for("messages wait", lambda: len(run.events("sent")) > 300, DELIVERY_LIMIT_S)
        wait_for("some are delivered", lambda: len(run.delivered()) > 0, DELIVERY_LIMIT_S)
        stage.kill_leader()
        stage.cluster.wait_leader()
        so_far = len(run.events("sent"))
        wait_for("sends go on", lambda: len(run.events("sent")) > so_far + 100, DELIVERY_LIMIT_S)
    finally:
        run.stop.touch()
        finish(process, run.out)
    run.wait_delivered()
    run.check()
