from broker.config import config_from, take_settings
from broker.consume.queue_reader import (
    NO_BYTES_MAX,
    QueueReader,
    ReadLimits,
    ReadResult,
    ReadStatus,
    transfer_limits,
)
from remoting.tag_filters import MATCH_ALL, TagFilter, parse_tag_expression
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
    reader = QueueReader(as_message_log(log), lambda queue, offset: LIMITS)
    return reader.read("t", 0, offset, wanted, messages_max, bytes_max)


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


def test_the_transfer_settings_bound_an_answer_and_change_while_it_runs() -> None:
    log = log_with(*["a"] * 50, body_bytes=500)
    config = config_from({})
    reader = QueueReader(as_message_log(log), transfer_limits(config, as_message_log(log), 1 << 30))

    def counts(bytes_max: int | None = None) -> list[int]:
        return [reader.read("t", 0, at, MATCH_ALL, 1_000, bytes_max).count for at in (0, 45)]

    assert counts() == [50, 5]
    take_settings(config, {"maxTransferCountOnMessageInMemory": "4"})
    assert counts() == [4, 4]
    take_settings(config, {"maxTransferBytesOnMessageInMemory": "1300"})
    assert counts() == [2, 2]
    assert counts(bytes_max=2_000) == [3, 3]
    assert counts(bytes_max=9_000) == [4, 4], "who names a maximum gets twice the bytes at most"


def test_what_is_far_before_the_end_goes_by_the_settings_of_the_disk() -> None:
    log = log_with(*["a"] * 50, body_bytes=500)
    config = config_from({"maxTransferCountOnMessageInDisk": "8", "accessMessageInMemoryMaxRatio": "100"})
    reader = QueueReader(as_message_log(log), transfer_limits(config, as_message_log(log), 15_000))
    assert [reader.read("t", 0, at, MATCH_ALL, 32, None).count for at in (0, 30)] == [8, 20]
    take_settings(config, {"maxTransferBytesOnMessageInDisk": "1300"})
    assert [reader.read("t", 0, at, MATCH_ALL, 32, None).count for at in (0, 30)] == [2, 20]
