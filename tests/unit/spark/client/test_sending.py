"""Pipelined sends through every kind of fault: numbered ones once and in order, all others at least once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commitlog.sequences import FIRST_DIGEST, NO_DIGEST
from remoting.client.routes import MessageQueue
from remoting.client.send_requests import (
    WriterPlace,
    batch_command,
    encode_message,
    encode_properties,
    sequenced_command,
    single_command,
)
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.send import SendMessageRequestHeader
from rocketmq_spark.client.sending import Request, Sender
from rocketmq_spark.errors import ClusterUnavailableError, DeliveryError, RequestRefusedError
from tests.unit.spark.client.conftest import Clock
from tests.unit.spark.client.fake_leader import FAULTS, Leader, LeaderCluster

QUEUE = MessageQueue("T", "broker-a", 2)


def numbered(first: int, bodies: Sequence[bytes], batch_id: int = 3, digest: bytes = NO_DIGEST) -> Request:
    place = WriterPlace("writer", 1, batch_id, first, digest)
    messages = [encode_message(body, b"", queue_id=2) for body in bodies]
    return Request(sequenced_command("g", "T", "broker-a", place, messages, 5), len(bodies), "rows")


def plain(bodies: Sequence[bytes], lane: object = None) -> Request:
    messages = [encode_message(body, b"") for body in bodies]
    return Request(batch_command("g", QUEUE, messages, 5), len(bodies), "rows", lane)


def sender_of(leader: Leader, window_bytes: int = 200, deadline_s: float = 60.0) -> Sender:
    return Sender(LeaderCluster(leader), window_bytes, deadline_s)


def deliver(sender: Sender, request: Request) -> None:
    sender.send("broker-a", request)
    sender.flush()


sizes = st.lists(st.integers(1, 4), min_size=1, max_size=12)
faults = st.lists(st.sampled_from(FAULTS), max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sizes, faults, st.integers(0, 400))
def test_numbered_sends_are_stored_exactly_once_and_in_order(
    clock: Clock, counts: list[int], found: list[str], window_bytes: int
) -> None:
    leader = Leader(deque(found))
    sender = sender_of(leader, window_bytes)
    first = 0
    for count in counts:
        sender.send("broker-a", numbered(first, [b"%d" % n for n in range(first, first + count)]))
        first += count
    sender.flush()
    assert [entry[2] for entry in leader.entries[: leader.committed]] == list(range(first))
    assert [int(entry[3]) for entry in leader.entries] == list(range(first))
    assert sender.brokers["broker-a"].acknowledged == first


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sizes, faults, st.integers(0, 400))
def test_other_sends_are_stored_at_least_once(
    clock: Clock, counts: list[int], found: list[str], window_bytes: int
) -> None:
    leader = Leader(deque(found))
    sender = sender_of(leader, window_bytes)
    for number, count in enumerate(counts):
        sender.send("broker-a", plain([b"%d" % number] * count))
    sender.flush()
    stored = [int(entry[3]) for entry in leader.entries[: leader.committed]]
    assert all(stored.count(number) >= count for number, count in enumerate(counts))
    if not found:
        assert len(stored) == sum(counts)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.integers(0, 2), max_size=20), faults, st.integers(0, 400))
def test_sends_of_one_lane_are_stored_in_their_order(
    clock: Clock, lanes: list[int], found: list[str], window_bytes: int
) -> None:
    """What is refused must not come behind a later one; what was stored twice came first in order."""
    leader = Leader(deque(found))
    sender = sender_of(leader, window_bytes)
    for number, lane in enumerate(lanes):
        sender.send("broker-a", plain([b"%d" % number], lane))
    sender.flush()
    stored = list(dict.fromkeys(int(entry[3]) for entry in leader.entries))
    assert len(stored) == len(lanes)
    for lane in range(3):
        own = [number for number in stored if lanes[number] == lane]
        assert own == sorted(own)
    assert not sender.brokers or not sender.brokers["broker-a"]._behind


def test_lanes_do_not_wait_for_each_other(clock: Clock) -> None:
    leader = Leader()
    cluster = LeaderCluster(leader)
    sender = Sender(cluster, 10_000, 60.0)
    for number in range(30):
        sender.send("broker-a", plain([b"x" * 100], number % 3))
    assert 300 < cluster.connections[0].most_waiting_bytes < 600
    sender.flush()
    assert len(leader.entries) == 30


def test_other_rows_under_the_same_numbers_are_an_error_that_says_what_to_do(clock: Clock) -> None:
    sender = sender_of(Leader())
    deliver(sender, numbered(0, [b"x"], digest=FIRST_DIGEST))
    deliver(sender, numbered(0, [b"x"], digest=FIRST_DIGEST))
    with pytest.raises(
        DeliveryError, match=r"rows before number 1 of batch 3 are not those.*same partitions"
    ):
        deliver(sender, numbered(0, [b"y"], digest=FIRST_DIGEST))


def test_a_full_table_of_writers_is_named(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.state.writers.WRITERS_MAX", 0)
    with pytest.raises(ClusterUnavailableError, match="WRITERS_FULL"):
        deliver(sender_of(Leader(), deadline_s=1.0), numbered(0, [b"x"]))


def test_a_second_try_of_a_task_says_how_much_was_there(clock: Clock) -> None:
    leader = Leader()
    for tried in (5, 9):
        sender = sender_of(leader)
        for first in range(0, tried, 3):
            sender.send("broker-a", numbered(first, [b"x"] * min(3, tried - first)))
        sender.flush()
    assert sender.brokers["broker-a"].repeats == 5
    assert len(leader.entries) == 9


def test_the_window_is_bounded(clock: Clock) -> None:
    leader = Leader()
    cluster = LeaderCluster(leader)
    sender = Sender(cluster, 1_000, 60.0)
    for number in range(50):
        sender.send("broker-a", numbered(number, [b"x" * 100]))
    assert 900 < cluster.connections[0].most_waiting_bytes <= 1_200
    sender.flush()
    assert len(leader.entries) == 50


def test_a_broker_that_never_takes_it_is_named(clock: Clock) -> None:
    leader = Leader(deque(["refuse"] * 1_000))
    with pytest.raises(ClusterUnavailableError, match=r"broker-a.*not the leader"):
        deliver(sender_of(leader, deadline_s=10.0), numbered(0, [b"x"]))
    assert clock.now_s <= 10.0


def test_an_older_batch_is_an_error_that_says_why(clock: Clock) -> None:
    leader = Leader()
    sender = sender_of(leader)
    deliver(sender, numbered(0, [b"x"], batch_id=3))
    with pytest.raises(DeliveryError, match="batch 2 has ended"):
        deliver(sender, numbered(0, [b"x"], batch_id=2))


def test_a_writer_that_is_not_remembered_is_an_error(clock: Clock) -> None:
    with pytest.raises(DeliveryError, match="does not have the numbers"):
        deliver(sender_of(Leader()), numbered(7, [b"x"]))


class _CutOff(Leader):
    """At first an old leader answers, which has not heard of what the writer sent since."""

    answers = 3

    def take(self, request: RemotingCommand, fault: str) -> RemotingCommand:
        if self.answers and self.entries:
            self.answers -= 1
            fault = "busy"
        answer = super().take(request, fault)
        if fault:
            answer.code = ResponseCode.LEDGERMQ_SEQUENCE_GAP
        return answer


def test_an_old_leader_that_is_cut_off_is_outlasted(clock: Clock) -> None:
    leader = _CutOff()
    sender = sender_of(leader)
    deliver(sender, numbered(0, [b"x"]))
    deliver(sender, numbered(1, [b"y"]))
    assert [entry[3] for entry in leader.entries] == [b"x", b"y"]
    assert leader.answers == 0


class _Refusing(Leader):
    code: int = ResponseCode.MESSAGE_ILLEGAL
    tries: int = 0

    def take(self, request: RemotingCommand, fault: str) -> RemotingCommand:
        answer = super().take(request, "busy")
        self.tries += 1
        answer.code, answer.remark = self.code, "no reason"
        return answer


@pytest.mark.parametrize(
    ("code", "tries"),
    [
        (ResponseCode.MESSAGE_ILLEGAL, 1),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 1),
        (ResponseCode.NO_PERMISSION, 1),
        (ResponseCode.SYSTEM_ERROR, 5),
    ],
)
def test_what_a_broker_will_never_take_is_not_tried_on_and_on(clock: Clock, code: int, tries: int) -> None:
    leader = _Refusing()
    leader.code = code
    words = f"rows to broker broker-a was refused with code {int(code)}"
    with pytest.raises(RequestRefusedError, match=words):
        deliver(sender_of(leader), plain([b"x"]))
    assert leader.tries == tries


def test_batches_and_single_sends_carry_the_letters_that_java_reads() -> None:
    batch = batch_command("g", QUEUE, [encode_message(b"x", b"")], 5)
    single = single_command("g", QUEUE, b"body", b"A\x01b\x02", 7, 5)
    assert (batch.code, single.code) == (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2)
    assert batch.ext_fields.keys() <= set("abcdefghijklmn") >= single.ext_fields.keys()
    header = SendMessageRequestHeader.parse(single.ext_fields)
    assert (header.topic, header.queue_id, header.flag, header.properties) == ("T", 2, 7, "A\x01b\x02")
    assert (header.is_batch, header.broker_name, header.born_timestamp_ms) == (False, "broker-a", 5)
    assert SendMessageRequestHeader.parse(batch.ext_fields).is_batch


def test_properties_leave_out_what_is_empty_and_refuse_separators() -> None:
    assert encode_properties({"a": "1", "b": "", "": "x"}) == b"a\x011\x02"
    for name, value in (("a", "x\x02"), ("a\x01", "x"), ("a", "\x01")):
        with pytest.raises(ValueError, match="separate"):
            encode_properties({name: value})


@pytest.mark.parametrize("flag", [1 << 31, -(1 << 31) - 1])
def test_a_flag_beyond_32_bits_is_named(flag: int) -> None:
    with pytest.raises(ValueError, match=f"the flag {flag} does not fit into 32 bits"):
        encode_message(b"", b"", flag)
    with pytest.raises(ValueError, match=f"the flag {flag} does not fit into 32 bits"):
        single_command("g", QUEUE, b"", b"", flag, 5)
