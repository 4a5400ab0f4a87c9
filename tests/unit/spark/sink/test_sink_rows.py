"""Rows as messages, the queues they go to, and the requests they are gathered in: the same at every try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.send.admission import split_batch, sub_messages
from commitlog.record import parse_properties
from commitlog.sequences import FIRST_DIGEST, next_digest
from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode
from remoting.headers.send import SendMessageRequestHeader, SequencedSendRequestHeader
from rocketmq_spark.client.sending import Request, Sender
from rocketmq_spark.options import ConnectionOptions
from rocketmq_spark.sink.delivery import PlainDelivering, SequencedDelivering, TaskPlace
from rocketmq_spark.sink.options import BATCH_MESSAGES_MAX, SinkOptions
from rocketmq_spark.sink.planning import RUN, Placement
from rocketmq_spark.sink.rows import Columns, OutRow, RowError, RowReader

STRINGS = pa.map_(pa.string(), pa.string())


def read(columns: dict[str, Any], origin: str = "w|0") -> list[OutRow]:
    batch = pa.record_batch(columns)
    return list(RowReader(Columns(next(iter(columns)), tuple(columns)), 4, origin).read(batch))


def test_a_row_has_everything_its_columns_say() -> None:
    (row,) = read(
        {
            "body": ["ü"],
            "topic": ["T"],
            "keys": ["k"],
            "tags": ["t"],
            "properties": pa.array([[("a", "1"), ("KEYS", "old"), ("n", None)]], STRINGS),
            "queueId": [3],
            "brokerName": ["b"],
            "flag": [9],
        }
    )
    assert (row.body, row.topic, row.keys, row.queue_id, row.broker_name) == ("ü".encode(), "T", "k", 3, "b")
    assert (row.flag, row.is_delayed) == (9, False)
    properties = parse_properties(row.properties)
    assert len(properties.pop("UNIQ_KEY")) == 32
    assert properties == {"a": "1", "KEYS": "k", "TAGS": "t"}


def test_properties_of_another_message_are_not_copied() -> None:
    old = [
        ("LEDGERMQ_SEQ", "w|0|1|0"),
        ("LEDGERMQ_SUM", "x"),
        ("UNIQ_KEY", "x"),
        ("DELAY", "3"),
        ("TIMER_DEL_MS", "1"),
        ("POP_CK_OFFSET", "7"),
        ("TRANSACTION_CHECK_TIMES", "2"),
        ("__CRC32#", "123"),
        ("TAGS", "t"),
        ("KEYS", "k"),
    ]
    (row,) = read({"body": ["x"], "properties": pa.array([old], STRINGS)})
    properties = parse_properties(row.properties)
    assert properties.keys() == {"UNIQ_KEY", "TAGS", "KEYS"}
    assert properties["UNIQ_KEY"] != "x"


def test_unique_keys_are_the_same_at_every_try_and_differ_otherwise() -> None:
    keys = [
        [parse_properties(row.properties)["UNIQ_KEY"] for row in read({"body": ["x"] * 3}, origin)]
        for origin in ("w|0", "w|0", "w|1")
    ]
    assert keys[0] == keys[1]
    assert len({*keys[0], *keys[2]}) == 6


def test_rows_are_numbered_through_all_batches() -> None:
    reader = RowReader(Columns("body", ("body",)), 0, "w")
    batch = pa.record_batch({"body": [b"x", b"y"]})
    assert [row.row for _ in range(2) for row in reader.read(batch)] == [0, 1, 2, 3]


def test_delays_are_properties() -> None:
    times = pa.array([None, 1_700_000_000_123], pa.timestamp("ms", "UTC"))
    rows = read({"body": ["x", "y"], "delayLevel": pa.array([3, 0], pa.int32()), "deliverTimestamp": times})
    assert [row.is_delayed for row in rows] == [True, True]
    assert parse_properties(rows[0].properties)["DELAY"] == "3"
    assert parse_properties(rows[1].properties)["TIMER_DELIVER_MS"] == "1700000000123"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body": ["a", None]}, "row 1 of partition 4 has no body"),
        ({"body": ["a"], "keys": ["\x02"]}, "row 0 of partition 4 .*separate properties"),
        ({"body": ["a"], "keys": ["k" * 40_000]}, "row 0 of partition 4 has 400.. bytes of properties"),
        ({"body": ["a"], "flag": [1 << 31]}, "row 0 of partition 4 has the flag 2147483648"),
        ({"body": ["a"], "delayLevel": [1], "deliverTimestamp": [5]}, "row 0 .*both a delayLevel"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_named(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(RowError, match=words):
        read(columns)


QUEUES = tuple(MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(3))
PLACEMENT = Placement("T", QUEUES)


@given(st.integers(0, 1_000), st.integers(0, 10_000), st.text(max_size=5) | st.none())
def test_placing_is_a_rule(partition: int, row: int, keys: str | None) -> None:
    first, again = (Placement("T", QUEUES).place(partition, row, keys, None, None) for _ in range(2))
    assert first == again
    if keys:
        assert PLACEMENT.place(partition + 1, row + RUN, keys, None, None) == first


def test_rows_without_keys_go_to_all_queues_in_turn() -> None:
    found = [PLACEMENT.place(2, row, None, None, None) for row in range(RUN * len(QUEUES))]
    assert {queue: found.count(queue) for queue in QUEUES} == dict.fromkeys(QUEUES, RUN)
    assert found[0] == QUEUES[2]


def test_a_named_queue_or_broker_is_taken() -> None:
    assert PLACEMENT.place(0, 0, "k", "b", 1) == MessageQueue("T", "b", 1)
    assert PLACEMENT.place(0, 0, "k", "b", None).broker_name == "b"
    assert PLACEMENT.place(5, 0, None, None, 2).queue_id == 2
    for broker_name, queue_id in (("c", None), ("a", 9), (None, 3)):
        with pytest.raises(LookupError, match="topic T has no writable queue"):
            PLACEMENT.place(0, 0, None, broker_name, queue_id)


def test_sequences_are_told_apart_where_rows_may_go_to_another_broker() -> None:
    one = tuple(queue for queue in QUEUES if queue.broker_name == "a")
    assert Placement("T", one).suffix == Placement("T", one[:2]).suffix
    suffixes = {Placement("T", one).suffix, Placement("U", one).suffix}
    suffixes |= {Placement("T", QUEUES).suffix, Placement("T", QUEUES[1:]).suffix}
    assert len(suffixes) == 4


class Recorder(Sender):
    def __init__(self) -> None:
        self.sent: list[tuple[str, Request]] = []

    def send(self, broker_name: str, request: Request) -> None:
        self.sent.append((broker_name, request))


def rows_of(bodies: Sequence[bytes], is_delayed: bool = False) -> list[OutRow]:
    return [
        OutRow(number, None, body, b"A\x01b\x02", None, 1, None, None, is_delayed)
        for number, body in enumerate(bodies)
    ]


def options_of(batch_bytes: int = 100, window_bytes: int = 10_000) -> SinkOptions:
    return SinkOptions(ConnectionOptions("h:1"), batch_bytes=batch_bytes, window_bytes=window_bytes)


@given(st.lists(st.binary(max_size=60), max_size=40), st.integers(0, 300))
def test_numbers_follow_the_rows_of_each_broker_whatever_the_batches(
    bodies: list[bytes], batch_bytes: int
) -> None:
    recorder = Recorder()
    delivering = SequencedDelivering(recorder, options_of(batch_bytes), TaskPlace("w", 7, 1))
    for row in rows_of(bodies):
        delivering.add(PLACEMENT, QUEUES[row.row % 5], row)
    delivering.finish()
    for broker_name, queues in (("a", {0, 1, 2}), ("b", {3, 4})):
        expected = [(n % 5 % 3, body) for n, body in enumerate(bodies) if n % 5 in queues]
        number, found, digest = 0, [], FIRST_DIGEST
        for name, request in recorder.sent:
            if name != broker_name:
                continue
            header = SequencedSendRequestHeader.parse(request.command.ext_fields)
            parts = split_batch(request.command.body, 10_000)
            assert (header.sequence, header.batch_id, header.partition, header.topic) == (number, 7, 1, "T")
            assert header.writer_id == f"w.{PLACEMENT.suffix}"
            assert len(parts) == request.count == 1 or len(request.command.body) <= batch_bytes
            assert header.digest == digest.decode()
            for message in sub_messages(request.command.body):
                digest = next_digest(digest, message)
            number += len(parts)
            found += [(part.queue_id, part.body) for part in parts]
        assert found == expected
        written = {one.broker_name: one[1:] for one in delivering.written()}
        assert written.get(broker_name, (f"w.{PLACEMENT.suffix}", 0, FIRST_DIGEST)) == (
            f"w.{PLACEMENT.suffix}",
            len(expected),
            digest,
        )


def test_repeats_go_unchecked_when_that_is_asked_for() -> None:
    recorder = Recorder()
    options = replace(options_of(), check_repeats=False)
    delivering = SequencedDelivering(recorder, options, TaskPlace("w", 7, 1))
    for row in rows_of([b"x", b"y"]):
        delivering.add(PLACEMENT, QUEUES[0], row)
    delivering.finish()
    assert all("digest" not in request.command.ext_fields for _, request in recorder.sent)
    assert [(one.rows, one.digest) for one in delivering.written()] == [(2, b"")]


def test_numbered_rows_of_many_topics_are_gathered_within_one_bound() -> None:
    recorder = Recorder()
    delivering = SequencedDelivering(recorder, options_of(1_000, 2_000), TaskPlace("w", 7, 1))
    gathered = 0
    for number, row in enumerate(rows_of([b"x" * 100] * 300)):
        topic = f"T{number % 100}"
        delivering.add(Placement(topic, QUEUES), MessageQueue(topic, "a", 0), row)
        sent = sum(len(request.command.body) for _, request in recorder.sent)
        gathered = max(gathered, (number + 1) * 126 - sent)
    assert 1_000 < gathered <= 2_000
    delivering.finish()
    assert sum(request.count for _, request in recorder.sent) == 300


def test_a_batch_has_a_bounded_number_of_messages() -> None:
    recorder = Recorder()
    delivering = SequencedDelivering(recorder, options_of(1 << 20, 1 << 20), TaskPlace("w", 0, 0))
    for row in rows_of([b""] * (BATCH_MESSAGES_MAX + 1)):
        delivering.add(PLACEMENT, QUEUES[0], row)
    delivering.finish()
    assert [request.count for _, request in recorder.sent] == [BATCH_MESSAGES_MAX, 1]


def test_plain_rows_are_gathered_by_queue_within_the_window() -> None:
    recorder = Recorder()
    delivering = PlainDelivering(recorder, options_of(10_000, 400), 0)
    for row in rows_of([b"x" * 50] * 12):
        delivering.add(PLACEMENT, QUEUES[row.row % 6], row)
    assert recorder.sent, "nothing was sent though the window was full"
    delivering.finish()
    found: dict[MessageQueue, int] = {}
    for broker_name, request in recorder.sent:
        header = SendMessageRequestHeader.parse(request.command.ext_fields)
        assert (request.command.code, header.is_batch) == (RequestCode.SEND_BATCH_MESSAGE, True)
        assert header.properties == "", "RocketMQ 5 gives them to every message"
        queue = MessageQueue("T", broker_name, header.queue_id)
        assert request.lane == queue
        found[queue] = found.get(queue, 0) + request.count
    assert found == dict.fromkeys(QUEUES, 2)


def test_a_delayed_plain_row_goes_alone() -> None:
    recorder = Recorder()
    delivering = PlainDelivering(recorder, options_of(), 0)
    for row in rows_of([b"x", b"y"], is_delayed=True):
        delivering.add(PLACEMENT, QUEUES[0], row)
    delivering.finish()
    assert [request.lane for _, request in recorder.sent] == [None, None]
    assert [request.command.code for _, request in recorder.sent] == [RequestCode.SEND_MESSAGE_V2] * 2
    assert recorder.sent[0][1].command.body == b"x"
