"""What stock producers send at and over the limits: where it is stored, or the code it is refused with."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog.record import Record, get_property
from remoting.codes import ResponseCode
from tests.compat.programs import JAVA, Client, versions
from tests.compat.stage import Stage
from tests.integration.checks import assert_places_unique
from tests.integration.messages import Sample
from tests.integration.streams import read_topic

pytestmark = pytest.mark.integration
QUEUES = 4
BODY_MAX = 4 * 1024 * 1024
COMPRESSIONS = {"5.5.0": "ZLIB,LZ4,ZSTD", "4.9.8": "ZLIB"}
NOT_FOUND_TOPIC = 10005
"""The client's own code when no queue of the route takes messages."""


class Sent:
    """The cases one client went through, and what the log holds of them."""

    def __init__(self, stage: Stage, version: str, folder: Path) -> None:
        self.version = version
        self.topic = stage.topic(f"Sends{version.replace('.', '')}", QUEUES)
        typed = stage.topic("Typed", 1, attributes="+message.type=FIFO")
        readonly = stage.topic("ReadOnly", 1, perm=4)
        self.client = Client(version, stage.namesrv, folder)
        self.group = stage.unique("Sends")
        options: dict[str, Any] = {
            "readonly": readonly,
            "typed": typed,
            "compressions": COMPRESSIONS[version],
        }
        report = self.client.run("sends", self.topic, self.group, **options)
        self.cases: dict[str, dict[str, Any]] = {line["case"]: line for line in report}
        self.stored = asyncio.run(read_topic(stage.namesrv, self.topic))

    def record(self, case: str) -> Record:
        """The record at the place that the case's answer named."""
        line = self.cases[case]
        assert line.get("status") == "SEND_OK", line
        queue, offset = int(line["queue"]), int(line["offset"])
        return self.stored[queue][offset]


@pytest.fixture(scope="module", params=versions(JAVA))
def sent(request: pytest.FixtureRequest, stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Sent:
    return Sent(stage, request.param, tmp_path_factory.mktemp("sends"))


def test_message_to_a_queue_lies_in_that_queue(sent: Sent) -> None:
    for queue in range(QUEUES):
        assert sent.cases[f"queue {queue}"]["queue"] == queue
        assert sent.record(f"queue {queue}").body.decode() == Sample("queue", queue).body


def test_answer_names_the_clients_id_and_the_place_in_the_log(sent: Sent) -> None:
    for queue in range(QUEUES):
        line, record = sent.cases[f"queue {queue}"], sent.record(f"queue {queue}")
        assert get_property(record.properties, b"UNIQ_KEY") == line["id"].encode()
        assert int(line["offset_id"][-16:], 16) == record.physical_offset


def test_message_is_viewed_by_the_id_of_its_answer(sent: Sent) -> None:
    viewed = sent.cases["viewed"]
    assert viewed["body"] == Sample("viewed", 1).body
    assert viewed["same_id"] == "true"
    assert (viewed["queue"], viewed["offset"]) == (viewed["sent_queue"], viewed["sent_offset"])


def test_body_of_the_largest_size_is_stored_and_one_byte_more_refused(sent: Sent) -> None:
    assert len(sent.record("largest").body) == BODY_MAX
    refused = sent.cases["too large"]
    assert refused["code"] == ResponseCode.MESSAGE_ILLEGAL
    assert str(BODY_MAX) in refused["words"]


def test_properties_of_30_000_bytes_are_stored_and_of_33_000_refused(sent: Sent) -> None:
    assert get_property(sent.record("many properties").properties, b"long") == b"x" * 30_000
    assert sent.cases["too many properties"]["code"] == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("case", "count"), [("batch", 50), ("batch to a queue", 5), ("empty batch property", 1)]
)
def test_batch_lies_in_one_queue_in_order(sent: Sent, case: str, count: int) -> None:
    line = sent.cases[case]
    stored = sent.stored[line["queue"]][line["offset"] : line["offset"] + count]
    assert [record.body.decode() for record in stored] == [
        Sample(f"batch{count}", number).body for number in range(count)
    ]
    assert len(line["offset_id"].split(",")) == count


def test_topic_that_may_only_be_read_has_no_queue_for_producers(sent: Sent) -> None:
    assert sent.cases["read only"]["client_code"] == NOT_FOUND_TOPIC


def test_type_of_a_topic_binds_nobody_here(sent: Sent) -> None:
    """RocketMQ's brokers leave it to the proxy, too."""
    assert sent.cases["of a type"]["status"] == "SEND_OK"


def test_queue_that_is_not_there_is_refused(sent: Sent) -> None:
    assert sent.cases["no such queue"]["code"] == ResponseCode.INVALID_PARAMETER
    assert "has 4 queues" in sent.cases["no such queue"]["words"]


def test_system_topic_is_refused_by_broker_or_client(sent: Sent) -> None:
    line = sent.cases["system topic"]
    assert "status" not in line, line
    assert "forbidden" in line["words"] or "SCHEDULE_TOPIC_XXXX" in line["words"]


DECOMPRESSORS: dict[str, tuple[int, Callable[[bytes], bytes] | None]] = {
    "ZLIB": (3, zlib.decompress),
    "LZ4": (1, None),
    "ZSTD": (2, None),
}
"""Bits 8 to 10 of the flags that say so, and how the standard library reads the body."""


def test_compressed_bodies_are_stored_as_they_came_and_read_by_the_consumer(sent: Sent) -> None:
    types = COMPRESSIONS[sent.version].split(",")
    for kind in types:
        record = sent.record(f"compressed {kind}")
        number, decompress = DECOMPRESSORS[kind]
        wanted = Sample("large", len(kind)).body.encode()
        assert record.sys_flag & 1
        assert len(record.body) < len(wanted)
        if sent.version != "4.9.8":
            assert record.sys_flag >> 8 & 7 == number
        if decompress is not None:
            assert decompress(bytes(record.body)) == wanted
    expected = {Sample("large", len(kind)).body for kind in types}
    count = sum(map(len, sent.stored.values()))
    received = sent.client.run("consume", sent.topic, sent.group + "Readers", count=count, quiet_ms=500)
    assert len(received) == count
    assert_places_unique(received)
    assert {message["body"] for message in received if message["body"].startswith("large-")} == expected


@pytest.mark.parametrize("version", versions(JAVA))
def test_sends_go_on_where_they_said_when_the_leader_dies(stage: Stage, tmp_path: Path, version: str) -> None:
    """Each number is sent once: what was acknowledged lies where the answer said, the rest once at most."""
    topic = stage.topic("Killed", QUEUES)
    client = Client(version, stage.namesrv, tmp_path)
    with client.start("stream", topic, stage.unique("Killed")) as sending:
        sending.wait_lines("sends before", 200, status="SEND_OK")
        with stage.leader_dead():
            before = len(sending.lines(status="SEND_OK"))
            sending.wait_lines("sends after", before + 200, status="SEND_OK")
        report = sending.stop()
    stored = asyncio.run(read_topic(stage.namesrv, topic))
    acknowledged = [line for line in report if line["status"] == "SEND_OK"]
    for line in acknowledged:
        record = stored[line["queue"]][line["offset"]]
        assert record.body.decode() == Sample("stream", line["number"]).body
    bodies = [record.body.decode() for records in stored.values() for record in records]
    assert len(bodies) == len(set(bodies))
    assert set(bodies) <= {Sample("stream", line["number"]).body for line in report}
