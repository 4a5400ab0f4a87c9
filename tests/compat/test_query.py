"""What the unchanged Java clients find by key, id, offset and time, before and after a leader's end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from commitlog.record import decode_record, host_bytes
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from tests.compat.programs import Client, versions
from tests.compat.stage import Stage
from tests.integration.client_runs import Driver, Report, java_driver
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire

pytestmark = pytest.mark.integration
VERSIONS = ("5.5.0", "4.9.8")
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SENT = 40
FOREVER = 2**62
FOUND_LIMIT_S = 60.0
NO_MESSAGE = 208
"""The clients' own code for nothing found."""


@dataclass
class Asked:
    """A topic with messages, and the client that asks for them."""

    driver: Driver
    stage: Stage
    version: str
    topic: str
    sent: Report = field(default_factory=list)
    runs: int = 0

    def do(self, *steps: Sequence[object], trace: bool = False) -> list[Report]:
        """The reports of these steps, one list for each."""
        self.runs += 1
        name = f"query-{self.topic}-{self.runs}"
        script, out = self.driver.folder / f"{name}.txt", self.driver.folder / f"{name}.jsonl"
        script.write_text("".join("\t".join(map(str, step)) + "\n" for step in steps), encoding="utf-8")
        options = [f"namesrv={self.stage.namesrv}", f"group={self.topic}", f"trace={str(trace).lower()}"]
        lines = self.driver.run(["query", *options, f"steps={script}", f"out={out}"], out)
        return [[line for line in lines if line["step"] == number] for number in range(len(steps))]

    def look(self) -> None:
        """Every kind of question, and that the answers are what was sent."""
        one, last = self.sent[7], self.sent[-1]
        by_key, by_word, newest, by_id, by_offset_id, unknown, other, bounds = self.do(
            ("key", self.topic, "order-7", 32, 0, FOREVER),
            ("key", self.topic, "even", 64, 0, FOREVER),
            ("key", self.topic, "even", 3, 0, FOREVER),
            ("view", self.topic, one["id"]),
            ("view", self.topic, id_at(self.stage.leader_address(), one["offset_id"])),
            ("key", self.topic, "order-4711", 32, 0, FOREVER),
            ("key", self.topic, "order-7", 32, 0, 1_000_000),
            ("bounds", self.topic, last["queue"]),
        )
        assert [each["body"] for each in by_key] == ["body 7"]
        assert_same_place(by_key, [one])
        assert [each["body"] for each in by_word] == [f"body {n}" for n in range(SENT - 2, -1, -2)]
        assert [each["body"] for each in newest] == [f"body {n}" for n in (SENT - 2, SENT - 4, SENT - 6)]
        for found in (by_id, by_offset_id):
            assert [each["body"] for each in found] == ["body 7"]
            assert_same_place(found, [one])
        assert [each["refused"] for each in unknown + other] == [NO_MESSAGE, NO_MESSAGE]
        assert (bounds[0]["min"], bounds[0]["max"]) == (0, last["offset"] + 1)
        stored_ms = by_key[0]["stored_ms"]
        assert bounds[0]["earliest_ms"] <= stored_ms + SENT * 1000
        self.look_by_time(one["queue"], one["offset"], stored_ms)

    def look_by_time(self, queue: int, offset: int, stored_ms: int) -> None:
        """Messages around one that was stored then, by time and key."""
        at, past, before, within, without = self.do(
            ("time", self.topic, queue, stored_ms),
            ("time", self.topic, queue, stored_ms + 3_600_000),
            ("time", self.topic, queue, 0),
            ("key", self.topic, "order-7", 32, stored_ms, stored_ms),
            ("key", self.topic, "order-7", 32, stored_ms + 1, FOREVER),
        )
        assert at[0]["offset"] <= offset
        assert past[0]["offset"] > offset
        assert before[0]["offset"] == 0
        assert [each["body"] for each in within] == ["body 7"]
        assert without[0]["refused"] == NO_MESSAGE


def id_at(address: str, offset_id: str) -> str:
    """The offset message id of the same message at another node: clients ask the node that an id names, and
    positions are the same on all.
    """
    host, _, port = address.rpartition(":")
    return (host_bytes(host, int(port)).hex() + offset_id[16:]).upper()


def assert_same_place(found: Report, sent: Report) -> None:
    for key in ("id", "queue", "offset"):
        assert [each[key] for each in found] == [each[key] for each in sent]


@pytest.fixture(scope="module", params=versions(VERSIONS))
def asked(request: pytest.FixtureRequest, stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """A topic of two queues; its messages have a key each and one that they share. The producer traces."""
    driver = java_driver(request.param, tmp_path_factory.mktemp("java-query"))
    made = Asked(driver, stage, request.param, stage.topic("Query", 2))
    steps = [
        ("send", made.topic, f"order-{n} {'even' if n % 2 == 0 else 'odd'}", f"body {n}") for n in range(SENT)
    ]
    made.sent = [line for lines in made.do(*steps, trace=True) for line in lines]
    assert len(made.sent) == SENT
    return made


def test_messages_are_found_by_key_id_offset_and_time(asked: Asked) -> None:
    asked.look()


def test_the_trace_of_a_message_is_found_by_its_id_and_by_its_key(asked: Asked) -> None:
    one = asked.sent[3]
    queries = [("key", TRACE_TOPIC, key, 64, 0, FOREVER) for key in (one["id"], "order-3")]

    def traces() -> list[Report]:
        return [[each for each in found if one["id"] in each.get("body", "")] for found in asked.do(*queries)]

    by_id, by_key = wait_for("the trace", lambda: found if all(found := traces()) else None, FOUND_LIMIT_S)
    assert by_id[0]["topic"] == by_key[0]["topic"] == TRACE_TOPIC
    assert "Pub" in by_id[0]["body"]
    assert asked.topic in by_id[0]["body"]


def test_the_trace_of_a_consumer_comes_beside_the_producers(asked: Asked, tmp_path: Path) -> None:
    """Its client drops what it has to say of a message that names no region."""
    one, group = asked.sent[3], asked.stage.unique("Tracing")

    def traced() -> str:
        (found,) = asked.do(("key", TRACE_TOPIC, one["id"], 64, 0, FOREVER))
        return "".join(each.get("body", "") for each in found)

    def is_whole(text: str) -> bool:
        pieces = [piece.split("\x01") for piece in text.split("\x02")]
        begun = {fields[4] for fields in pieces if fields[0] == "SubBefore" and fields[5] == one["id"]}
        ended = {fields[1] for fields in pieces if fields[0] == "SubAfter" and fields[2] == one["id"]}
        return bool(begun & ended)

    client = Client(asked.version, asked.stage.namesrv, tmp_path)
    with client.start("consumers", asked.topic, group, trace=True) as consumers:
        consumers.wait_until("all consumed", lambda: len(consumers.lines(member=0)) >= SENT)
        # While it runs: the client of 4.9 gives up at its end what it has not sent within half a second.
        wait_for("what the consumer traced", lambda: is_whole(traced()), FOUND_LIMIT_S)
        consumers.stop()
    assert group in traced()
    assert "DefaultRegion" in traced()


def test_after_the_leaders_end_the_new_one_finds_the_same(asked: Asked) -> None:
    with asked.stage.leader_dead():
        asked.look()
        (sent,) = asked.do(("send", asked.topic, "after the end", "later"))
        (found,) = asked.do(("key", asked.topic, "after", 32, 0, FOREVER))
        assert_same_place(found, sent)


def query(address: str, topic: str, key: str, **more: str) -> RemotingCommand:
    ext = {"topic": topic, "key": key, "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(FOREVER)}
    with Wire(address) as wire:
        return wire.invoke(RequestCode.QUERY_MESSAGE, ext | more)


def test_every_node_answers_the_one_that_was_dead_too(asked: Asked) -> None:
    expected = [f"body {n}".encode() for n in range(SENT - 1, 0, -2)]
    for node_id in asked.stage.cluster.nodes:
        address = asked.stage.cluster.address(node_id)

        def bodies(address: str = address) -> bool:
            return _bodies(query(address, asked.topic, "odd")) == expected

        wait_for(f"{node_id} finds all", bodies, FOUND_LIMIT_S)


def test_what_is_not_there_and_what_is_not_offered(asked: Asked) -> None:
    address = asked.stage.leader_address()
    codes: Mapping[ResponseCode, RemotingCommand] = {
        ResponseCode.TOPIC_NOT_EXIST: query(address, "NoSuchTopic", "k"),
        ResponseCode.QUERY_NOT_FOUND: query(address, asked.topic, "k" * 40_000),
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED: query(address, asked.topic, "TagA", indexType="T"),
    }
    assert {code: answer.code for code, answer in codes.items()} == {code: code for code in codes}


def _bodies(answer: RemotingCommand) -> list[Any]:
    found, at = [], 0
    while at < len(answer.body):
        record = decode_record(answer.body, at)
        found.append(record.body)
        at += record.size
    return found
