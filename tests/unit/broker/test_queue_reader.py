from broker.filters import MATCH_ALL, TagFilter, parse_tag_expression
from broker.queue_reader import NO_BYTES_MAX, QueueReader, ReadLimits, ReadResult, ReadStatus
from tests.support.fake_log import FakeLog, as_message_log
from tests.unit.broker.consume_bench import ignore, message

LIMITS = ReadLimits(messages_max=10, bytes_max=2_000, asked_bytes_max=4_000, examined_max=20)


def log_with(*tags: str, body_bytes: int = 10) -> FakeLog:
    log = FakeLog(auto_commit=False)
    log.put([message(b"x" * body_bytes, "t", 0, tag) for tag in tags], ignore)
    log.commit()
    return log


def read(
    log: FakeLog,
    offset: int,
    wanted: TagFilter = MATCH_ALL,
    messages_max: int = 32,
    bytes_max: int | None = None,
) -> ReadResult:
    return QueueReader(as_message_log(log), LIMITS).read("t", 0, offset, wanted, messages_max, bytes_max)


def test_the_limits_number_bounds_what_the_client_asks_for() -> None:
    log = log_with(*["a"] * 12)
    assert read(log, 0, messages_max=1_000).count == 10
    assert read(log, 0, messages_max=3).count == 3
    assert read(log, 0, messages_max=-1).count == 1


def test_the_limits_bytes_bound_what_the_client_asks_for() -> None:
    log = log_with(*["a"] * 12, body_bytes=500)
    assert read(log, 0).count == 3
    assert read(log, 0, bytes_max=1_300).count == 2
    assert read(log, 0, bytes_max=3_000).count == 4
    assert read(log, 0, bytes_max=1_000_000).count == 6
    assert read(log, 0, bytes_max=0).count == 1
    assert read(log, 0, bytes_max=NO_BYTES_MAX).count == 3


def test_a_filter_looks_further_than_the_messages_it_takes_but_not_beyond_its_bound() -> None:
    log = log_with(*(["b"] * 19 + ["a"] + ["b"] * 19 + ["a"]))
    first = read(log, 0, parse_tag_expression("a"))
    assert (first.status, first.count, first.next_offset) == (ReadStatus.FOUND, 1, 20)
    second = read(log, 20, parse_tag_expression("a"), messages_max=1)
    assert (second.count, second.next_offset) == (1, 40)
    nothing = read(log, 20, parse_tag_expression("c"))
    assert (nothing.status, nothing.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 40)


def test_units_behind_the_last_message_taken_are_left_for_the_next_answer() -> None:
    log = log_with("a", "b", "a", "b", "a")
    result = read(log, 0, parse_tag_expression("a"), messages_max=2)
    assert (result.count, result.next_offset) == (2, 3)
    assert read(log, 3, parse_tag_expression("a")).count == 1


def test_an_absent_queue_has_no_messages() -> None:
    assert read(FakeLog(), 3) == ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
