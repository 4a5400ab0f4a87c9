"""Reading a range to its end, held against a model of a queue, whatever happens on the way."""

from __future__ import annotations

import logging
from collections import deque

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commitlog.record import decode_record, record_size
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from rocketmq_spark.client.pulling import DENIED_S, QueueRange, RangeReader, ReadSettings
from rocketmq_spark.errors import ClusterUnavailableError, DataLossError, RequestRefusedError
from tests.unit.spark.client.conftest import Clock
from tests.unit.spark.client.fake_broker import QUEUE, FakeBroker, FakeCluster

FAULTS = st.lists(st.sampled_from(["", "", "close", "busy", "refuse", "behind", "unknown"]), max_size=12).map(
    deque
)
BODIES = st.lists(st.none() | st.integers(0, 3_000).map(bytes), min_size=1, max_size=120)


def numbered(count: int) -> list[bytes | None]:
    return [b"%d" % number for number in range(count)]


def read(
    broker: FakeBroker, start: int, stop: int, settings: ReadSettings | None = None, deadline_s: float = 5.0
) -> list[int]:
    """The offsets of what was handed on, in its order."""
    reader = RangeReader(
        FakeCluster(broker, deadline_s), QueueRange(QUEUE, start, stop), settings or ReadSettings()
    )
    found = []
    for data in reader:
        at = 0
        while at < len(data):
            found.append(decode_record(data, at).queue_offset)
            at += record_size(data, at)
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BODIES, FAULTS, st.integers(1, 40), st.integers(100, 8_000), st.data())
def test_every_message_comes_once_and_in_order(
    clock: Clock,
    bodies: list[bytes | None],
    faults: deque[str],
    count_max: int,
    bytes_max: int,
    data: st.DataObject,
) -> None:
    start = data.draw(st.integers(0, len(bodies)))
    stop = data.draw(st.integers(start, len(bodies)))
    broker = FakeBroker(bodies, count_max=count_max, bytes_max=bytes_max, faults=faults)
    expected = [offset for offset in range(start, stop) if bodies[offset] is not None]
    assert read(broker, start, stop, deadline_s=60.0) == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BODIES, FAULTS, st.integers(1, 40), st.data())
def test_every_message_of_a_tag_comes_once(
    clock: Clock, bodies: list[bytes | None], faults: deque[str], count_max: int, data: st.DataObject
) -> None:
    tags = data.draw(st.lists(st.sampled_from("ABC"), min_size=len(bodies), max_size=len(bodies)))
    stop = data.draw(st.integers(0, len(bodies)))
    broker = FakeBroker(bodies, tags, count_max=count_max, faults=faults)
    expected = [n for n in range(stop) if bodies[n] is not None and tags[n] in "AC"]
    found = read(broker, 0, stop, ReadSettings(tags="A || C"), deadline_s=60.0)
    assert [offset for offset in found if offset < stop] == expected
    assert found == sorted(set(found))


def test_what_is_left_of_a_deleted_topic_is_lost(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """It is deleted while it is read, by tasks that were planned before."""

    def delete_after_one(reader: RangeReader) -> list[int]:
        found = []
        for data in reader:
            found.append(decode_record(data, 0).queue_offset)
            broker.is_deleted = True
        return found

    broker = FakeBroker(numbered(500))
    cluster = FakeCluster(broker, 60.0)
    with pytest.raises(DataLossError, match=r"offsets \d+ to 499 of T/broker-a:0 are not .* deleted"):
        delete_after_one(RangeReader(cluster, QueueRange(QUEUE, 0, 500), ReadSettings()))
    assert clock.now_s <= DENIED_S
    broker.is_deleted = False
    lenient = RangeReader(cluster, QueueRange(QUEUE, 0, 500), ReadSettings(fail_on_data_loss=False))
    with caplog.at_level(logging.WARNING):
        assert delete_after_one(lenient) == [0]
    assert "to 499 of T/broker-a:0 are lost" in caplog.text


def test_pulls_are_sent_ahead_and_grow(clock: Clock) -> None:
    broker = FakeBroker(numbered(5_000), count_max=1_024, bytes_max=1 << 18)
    assert read(broker, 0, 5_000) == list(range(5_000))
    assert len(broker.asked) < 20


def test_a_broker_that_gives_few_is_not_asked_for_more(clock: Clock) -> None:
    broker = FakeBroker(numbered(640), count_max=32, bytes_max=1 << 18)
    assert read(broker, 0, 640) == list(range(640))
    assert len(broker.asked) < 20 + 8


def test_a_limit_of_bytes_is_none_of_messages(clock: Clock) -> None:
    """A broker of few bytes at once, first of large messages and then of small ones."""
    bodies: list[bytes | None] = [bytes(3_000)] * 100
    broker = FakeBroker([*bodies, *numbered(4_000)], count_max=1_024, bytes_max=40_000)
    assert read(broker, 0, 4_100) == list(range(4_100))
    assert len(broker.asked) < 80


def test_what_retention_took_is_named(clock: Clock) -> None:
    broker = FakeBroker(numbered(100), min_offset=40)
    with pytest.raises(DataLossError, match=r"offsets 10 to 39 of T/broker-a:0 .* failOnDataLoss=false"):
        read(broker, 10, 60)
    with pytest.raises(DataLossError, match=r"offsets 10 to 29 of .* The queue begins at offset 40 now"):
        read(broker, 10, 30)


def test_what_retention_took_is_passed_over_if_allowed(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    broker = FakeBroker(numbered(100), min_offset=40)
    with caplog.at_level(logging.WARNING):
        assert read(broker, 10, 60, ReadSettings(fail_on_data_loss=False)) == list(range(40, 60))
    assert "offsets 10 to 39 of T/broker-a:0 are lost" in caplog.text
    assert read(broker, 0, 30, ReadSettings(fail_on_data_loss=False)) == []


def test_messages_that_are_just_being_removed_are_lost(clock: Clock) -> None:
    broker = FakeBroker(numbered(20), removing=frozenset({5, 6}))
    with pytest.raises(DataLossError, match="offsets 5 to 5 of"):
        read(broker, 5, 10)
    assert read(broker, 5, 10, ReadSettings(fail_on_data_loss=False)) == [7, 8, 9]


def test_a_queue_that_ends_too_early_is_waited_for(clock: Clock) -> None:
    broker = FakeBroker(numbered(20), faults=deque(["behind", "", "", "behind"]))
    assert read(broker, 0, 20) == list(range(20))
    assert clock.now_s > 0


def test_a_queue_that_stays_too_short_has_lost_messages(clock: Clock) -> None:
    with pytest.raises(DataLossError, match="offsets 20 to 29 of"):
        read(FakeBroker(numbered(20)), 0, 30)
    assert 4.0 < clock.now_s < 5.1
    allowed = ReadSettings(fail_on_data_loss=False)
    assert read(FakeBroker(numbered(20)), 15, 30, allowed) == list(range(15, 20))


def test_a_node_that_never_gives_what_it_says_to_have_is_an_error(clock: Clock) -> None:
    broker = FakeBroker(numbered(20), faults=deque(["behind", "", ""] * 100))
    with pytest.raises(ClusterUnavailableError, match="nothing at offset 0, the queue ends at 20"):
        read(broker, 0, 20)


def test_nobody_leading_ends_at_the_deadline_and_tells_what_was_tried(clock: Clock) -> None:
    broker = FakeBroker(numbered(5), faults=deque(["refuse", "close"] * 100))
    with pytest.raises(ClusterUnavailableError) as caught:
        read(broker, 0, 5)
    assert "the leader of broker broker-a: no success in" in str(caught.value)
    assert "only the leader answers this" in str(caught.value)
    assert "the fake broker closed" in str(caught.value)


def test_progress_starts_the_deadline_anew(clock: Clock) -> None:
    """An answer every three seconds, while requests are tried again for five: slow, but the query lives."""

    class Slow(FakeBroker):
        next_s = 0.0

        def answer(self, request: RemotingCommand, fault: str) -> RemotingCommand:
            if clock.now_s < self.next_s:
                return super().answer(request, "refuse")
            self.next_s = clock.now_s + 3.0
            return super().answer(request, fault)

    assert read(Slow(numbered(20), count_max=1), 0, 20, deadline_s=5.0) == list(range(20))
    assert clock.now_s >= 19 * 3.0


def test_a_refusal_is_not_tried_again(clock: Clock) -> None:
    class Closed(FakeBroker):
        def answer(self, request: object, fault: str) -> object:  # type: ignore[override]
            answer = super().answer(request, fault)  # type: ignore[arg-type]
            answer.code, answer.remark = 16, "the topic is forbidden"
            return answer

    with pytest.raises(RequestRefusedError, match="pull of T/broker-a:0 from 0 was refused with code 16"):
        read(Closed(numbered(5)), 0, 5)
    assert clock.now_s == 0


class Lagging(FakeBroker):
    """A Java broker that deleted files of the first 6 messages, and finds that out at the third question."""

    questions = 0

    def answer(self, request: RemotingCommand, fault: str) -> RemotingCommand:
        if request.code == RequestCode.GET_MIN_OFFSET:
            self.questions += 1
            self.min_offset = 6 if self.questions >= 3 else 0
        return super().answer(request, fault)


def test_a_deleted_file_is_loss_though_its_broker_is_late_to_say_so(clock: Clock) -> None:
    bodies = [*[None] * 6, *numbered(4)]
    with pytest.raises(DataLossError, match="offsets 2 to 5 of"):
        read(Lagging(bodies, language="JAVA"), 2, 10)
    allowed = ReadSettings(fail_on_data_loss=False)
    assert read(Lagging(bodies, language="JAVA"), 2, 10, allowed) == [6, 7, 8, 9]


def test_offsets_that_no_message_had_are_no_loss(clock: Clock) -> None:
    """A Java broker is given the time to say otherwise; ours knows."""
    bodies = [b"0", None, None, *numbered(3)]
    more = [*bodies, None, b"3", None, b"4"]
    assert read(FakeBroker(more, language="JAVA", bytes_max=150), 1, 10) == [3, 4, 5, 7, 9]
    assert 10.0 < clock.now_s < 13.0
    assert read(FakeBroker(bodies), 1, 6) == [3, 4, 5]
    assert clock.now_s < 13.0


def test_a_file_that_goes_after_an_unexplained_gap_is_loss(clock: Clock) -> None:
    """The queue has a gap of its own, which is waited for; a later one is the work of retention."""

    class Deleting(FakeBroker):
        def answer(self, request: RemotingCommand, fault: str) -> RemotingCommand:
            answer = super().answer(request, fault)
            if request.ext_fields.get("queueOffset") == "7":
                self.min_offset = 9
            return answer

    bodies = [b"0", None, b"2", *numbered(4), None, None, *numbered(2)]
    with pytest.raises(DataLossError, match="offsets 7 to 8 of"):
        read(Deleting(bodies, language="JAVA", count_max=3), 1, 11)
    assert 10.0 < clock.now_s < 13.0


def test_answers_tell_which_offsets_they_are_of(clock: Clock) -> None:
    wanted = QueueRange(QUEUE, 2, 30)
    for language, tags, is_exact in (("PYTHON", "*", True), ("JAVA", "*", False), ("PYTHON", "A", False)):
        broker = FakeBroker(numbered(30), ["A"] * 30, count_max=7, language=language)
        answers = list(RangeReader(FakeCluster(broker), wanted, ReadSettings(tags=tags)).answers())
        assert [answers[0].start, *(one.stop for one in answers)] == [*(one.start for one in answers), 30]
        assert answers[0].start == 2
        assert {one.is_exact for one in answers} == {is_exact}
