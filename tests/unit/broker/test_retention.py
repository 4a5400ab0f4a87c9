"""What may be deleted, when, and who decides: against a log whose files the test makes up."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from broker.feature import Core
from broker.state.changes import CommitOffsets, PutGroup, PutTopic, SetDelayOffset, TrimLog
from broker.state.checkpoints import CHECKPOINT_TOPIC
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import HALF_TOPIC, STATE_TOPIC, TopicConfig
from broker.store.retention import (
    RETENTION_ATTRIBUTE,
    Retention,
    RetentionAdmin,
    RetentionPin,
    TopicRetention,
    earliest_pin,
    retention_ms,
)
from broker.timer.feature import first_delayed
from broker.transactions.feature import first_open_half
from broker.transactions.ledger import GROUP
from commitlog.log import PutStatus
from commitlog.log_removal import LogRemoval, OldFile
from commitlog.record import Message
from dledger.core.status import NodeStatus, PeerStatus
from dledger.core.types import PushState, Role
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RequestError
from tests.support.broker_parts import NOW_MS, BrokerParts, make_parts
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog

HOUR_MS = 3_600_000
FILE_BYTES = 1_000
OLD_MS = NOW_MS - 73 * HOUR_MS
NOT_NOW = f"{(datetime.fromtimestamp(NOW_MS / 1000).hour + 1) % 24:02}"  # noqa: DTZ006 (as the broker reads it)
NOW = f"{datetime.fromtimestamp(NOW_MS / 1000).hour:02}"  # noqa: DTZ006 (the same)


class FakeRemoval:
    """Ten entries a file; as many files as there are times, and one that is written."""

    def __init__(self, times_ms: Sequence[int | None]) -> None:
        self.files = [
            OldFile(FILE_BYTES * number, 10 * number, newest_ms)
            for number, newest_ms in enumerate(times_ms, 1)
        ]
        self.file_bytes = FILE_BYTES
        self.begin_position = 0
        self.end_position = FILE_BYTES * len(times_ms) + 1
        self.ratio = 0.1
        self.flushed_index = 1_000

    def position_of(self, index: int) -> int:
        return index * 100

    def used_ratio(self) -> float:
        return self.ratio

    def dispatched_index(self) -> int:
        return self.flushed_index

    def old_files(self) -> Iterator[OldFile]:
        return iter(list(self.files))

    async def remove_before(self, file: OldFile) -> int:
        removed = self.files.index(file) + 1
        del self.files[:removed]
        self.begin_position = file.end_position
        return removed


def pins_of(core: Core) -> list[RetentionPin]:
    """Of delayed messages and open transactions."""
    return [partial(first_delayed, core), partial(first_open_half, core)]


class Bench:
    """A leader whose state knows a checkpoint behind all of the files."""

    def __init__(self, tmp_path: Path, times_ms: Sequence[int | None], **values: Any) -> None:
        self.log = FakeLog()
        self.parts: BrokerParts = make_parts(tmp_path, self.log, **values)
        self.removal = FakeRemoval(times_ms)
        core = self.parts.core
        self.pins = pins_of(core)
        self.retention = Retention(
            config=core.config,
            log=core.log,
            state=core.state,
            clock=core.clock,
            removal=cast("LogRemoval", self.removal),
            pins=self.pins,
            rewriters=(),
        )
        self.begin_behind(10_000)
        self.parts.state.saved_covered_index = 10_000

    def begin_behind(self, index: int) -> None:
        """What is put now stands behind this entry."""
        self.parts.state.applied_index = self.log._end_index = index

    @property
    def left(self) -> list[int]:
        return [file.end_position // FILE_BYTES for file in self.removal.files]

    def follower(self, match_index: int | None) -> None:
        peer = PeerStatus("n1", PushState.APPEND, match_index, None, None, None, None)
        self.log.node_status = NodeStatus(Role.LEADER, 3, "n0", 0, 99, 99, 99, 0, (), (peer,), {}, ())


async def test_what_is_old_goes_at_its_hour(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [OLD_MS, OLD_MS, NOW_MS, OLD_MS], deleteWhen=NOW)
    assert await bench.retention.round() == 2
    assert bench.left == [3, 4]
    assert bench.parts.state.trim_position == 2 * FILE_BYTES
    assert await bench.retention.round() == 0


async def test_what_is_old_stays_at_other_hours_while_there_is_room(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [OLD_MS, NOW_MS], deleteWhen=NOT_NOW)
    assert await bench.retention.round() == 0
    bench.removal.ratio = 0.76
    assert await bench.retention.round() == 1
    assert bench.left == [2]


async def test_operator_does_not_wait_for_the_hour(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [OLD_MS, NOW_MS], deleteWhen=NOT_NOW)
    assert await bench.retention.delete_expired() == 1


async def test_time_is_a_setting(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [NOW_MS - 2 * HOUR_MS, NOW_MS - HOUR_MS // 2], deleteWhen=NOW, fileReservedTime=1)
    assert await bench.retention.round() == 1


@pytest.mark.parametrize(("match_index", "left"), [(None, [1, 2, 3]), (18, [2, 3]), (19, [3]), (500, [3])])
async def test_follower_that_is_behind_is_waited_for(
    tmp_path: Path, match_index: int | None, left: list[int]
) -> None:
    bench = Bench(tmp_path, [OLD_MS, OLD_MS, NOW_MS], deleteWhen=NOW)
    bench.follower(match_index)
    await bench.retention.round()
    assert bench.left == left


async def test_follower_is_not_waited_for_when_room_is_short_or_it_is_said(tmp_path: Path) -> None:
    short = Bench(tmp_path / "a", [OLD_MS, NOW_MS], deleteWhen=NOW)
    short.follower(None)
    short.removal.ratio = 0.75
    assert await short.retention.round() == 1
    forced = Bench(tmp_path / "b", [OLD_MS, NOW_MS], deleteWhen=NOT_NOW)
    forced.follower(None)
    assert await forced.retention.delete_expired() == 0
    assert await forced.retention.delete_expired(force=True) == 1


@pytest.mark.parametrize(("covered", "flushed"), [(18, 99), (99, 18)])
async def test_nothing_goes_that_a_start_would_miss(tmp_path: Path, covered: int, flushed: int) -> None:
    """Behind entry 19 stands the third file: it is not enough to know 18."""
    bench = Bench(tmp_path, [OLD_MS, OLD_MS, NOW_MS], deleteWhen=NOW)
    bench.parts.state.saved_covered_index, bench.removal.flushed_index = covered, flushed
    await bench.retention.round()
    assert bench.left == [2, 3]


async def test_nearly_full_disk_goes_by_itself_on_any_node(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [NOW_MS] * 14)
    bench.log.set_writable(False)
    bench.removal.ratio = 0.84
    assert await bench.retention.round() == 0
    bench.removal.ratio = 0.86
    assert await bench.retention.round() == 10
    off = Bench(tmp_path / "off", [NOW_MS], cleanFileForciblyEnable=False)
    off.removal.ratio = 0.99
    assert await off.retention.round() == 0


async def test_follower_obeys_what_the_leader_said(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [NOW_MS, NOW_MS], deleteWhen=NOW)
    await bench.parts.state.propose(TrimLog(FILE_BYTES))
    bench.log.set_writable(False)
    assert await bench.retention.round() == 1


async def test_damaged_file_goes_where_the_others_have_none_left_to_mend_it(tmp_path: Path) -> None:
    """A leader that cannot say how old a file is keeps it; a node that is told that it is over does not."""
    bench = Bench(tmp_path, [OLD_MS, None, OLD_MS], deleteWhen=NOW)
    await bench.retention.round()
    assert bench.left == [2, 3]
    await bench.parts.state.propose(TrimLog(2 * FILE_BYTES))
    bench.log.set_writable(False)
    await bench.retention.round()
    assert bench.left == [3]


async def test_checkpoint_is_written_once_for_each_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [])

    def written() -> int:
        return sum(message.topic == CHECKPOINT_TOPIC for message in bench.log.messages)

    await bench.retention.round()
    assert written() == 0
    bench.begin_behind(11)
    bench.removal.end_position = 1_200
    await bench.retention.round()
    parts = written()
    assert parts > 0
    bench.removal.end_position = 1_900
    await bench.retention.round()
    assert written() == parts
    bench.removal.end_position = 20_100
    await bench.retention.round()
    assert written() > parts


# -- what is still needed ----------------------------------------------------------------------------------


async def test_undelivered_delays_and_open_transactions_hold_the_log(tmp_path: Path) -> None:
    log = FakeLog()
    parts = make_parts(tmp_path, log)
    pins = pins_of(parts.core)
    assert earliest_pin(pins) is None
    delayed = Message("SCHEDULE_TOPIC_XXXX", 2, b"", properties=b"DELAY\x013\x02")
    for message in (delayed, delayed, Message(HALF_TOPIC, 0, b""), Message(HALF_TOPIC, 0, b"")):
        log.put([message], lambda _: None)
    log.commit()
    first, second = (row[0] for row in log.fake_queues.by_key["SCHEDULE_TOPIC_XXXX", 2].rows)
    halves = [row[0] for row in log.fake_queues.by_key[HALF_TOPIC, 0].rows]
    assert earliest_pin(pins) == first
    await parts.state.propose(SetDelayOffset(3, 1))
    assert earliest_pin(pins) == second
    await parts.state.propose(SetDelayOffset(3, 2))
    assert earliest_pin(pins) == halves[0]
    await parts.state.propose(CommitOffsets(GROUP, HALF_TOPIC, {0: 1}))
    assert earliest_pin(pins) == halves[1]
    pins += [lambda: 7, lambda: None]
    assert earliest_pin(pins) == 7
    del pins[2:]
    await parts.state.propose(CommitOffsets(GROUP, HALF_TOPIC, {0: 2}))
    assert earliest_pin(pins) is None


async def test_held_file_stays_on_a_full_disk_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [OLD_MS, OLD_MS, OLD_MS], deleteWhen=NOW)
    bench.pins.append(lambda: 2 * FILE_BYTES + 48)
    bench.removal.ratio = 0.99
    await bench.retention.round()
    assert bench.left == [3]


# -- topics and groups -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"), [("", None), ("5", 5), ("-5", None), ("1" * 16, None), ("x", None), ("٣", None)]
)
def test_own_time_of_a_topic_is_read_or_passed_over(text: str, expected: int | None) -> None:
    assert retention_ms(TopicConfig("T", attributes={RETENTION_ATTRIBUTE: text})) == expected


async def test_topic_shows_its_messages_for_its_own_time(tmp_path: Path) -> None:
    log = FakeLog(now_ms=NOW_MS - 10_000)
    parts = make_parts(tmp_path, log)
    shown: list[tuple[str, int]] = []
    await parts.state.propose(
        PutTopic(TopicConfig("SHORT", attributes={RETENTION_ATTRIBUTE: "5000"})),
        PutTopic(TopicConfig("LONG")),
    )
    for topic in ("SHORT", "SHORT", "LONG"):
        log.put([Message(topic, 0, b"")], lambda _: None)
    log.commit()
    log.now_ms = NOW_MS - 1_000
    log.put([Message("SHORT", 0, b"")], lambda _: None)
    log.commit()
    queue = log.fake_queues.by_key["SHORT", 0]
    queue.hide_before = lambda offset: shown.append(("SHORT", offset))  # type: ignore[attr-defined]
    topics = TopicRetention(parts.core.log, parts.state)
    await topics.decide(parts.clock())
    assert parts.state.first_shown == {"SHORT": {0: 2}}
    assert shown == [("SHORT", 2)]


async def test_offsets_of_a_group_that_is_gone_go_with_what_they_speak_of(tmp_path: Path) -> None:
    log = FakeLog()
    parts = make_parts(tmp_path, log)
    await parts.state.propose(PutTopic(TopicConfig("T")), PutTopic(TopicConfig("U")))
    for topic in ("T", "T", "U", "U"):
        log.put([Message(topic, 0, b"")], lambda _: None)
    log.commit()
    log.fake_queues.by_key["T", 0].drop_before(2)
    await parts.state.propose(
        PutGroup(SubscriptionGroupConfig("here")),
        *(CommitOffsets(group, topic, {0: 1}) for group in ("here", "gone") for topic in ("T", "U")),
    )
    await TopicRetention(parts.core.log, parts.state).drop_stale_offsets()
    assert sorted((topic, group) for topic, group, _ in parts.state.offsets.items()) == [
        ("T", "here"), ("U", "gone"), ("U", "here"),
    ]  # fmt: skip


async def test_an_offset_at_the_first_message_there_is_stays(tmp_path: Path) -> None:
    """A group that comes back would begin at the end of the queue, and miss what came after it left."""
    log = FakeLog()
    parts = make_parts(tmp_path, log)
    await parts.state.propose(PutTopic(TopicConfig("T")))
    for _ in range(4):
        log.put([Message("T", 0, b"")], lambda _: None)
    log.commit()
    log.fake_queues.by_key["T", 0].drop_before(2)
    await parts.state.propose(*(CommitOffsets(f"gone{offset}", "T", {0: offset}) for offset in (1, 2, 4)))
    await TopicRetention(parts.core.log, parts.state).drop_stale_offsets()
    assert [group for _, group, _ in parts.state.offsets.items()] == ["gone2", "gone4"]


async def test_an_offset_beyond_the_end_of_a_deleted_topic_does_not_stay_for_ever(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [])
    state, queues = bench.parts.state, bench.log.fake_queues
    await state.propose(PutGroup(SubscriptionGroupConfig("here")))
    queues.raise_to("GONE", 0, 5, 0)
    await state.propose(PutTopic(TopicConfig("LEFT")))
    await state.propose(CommitOffsets("here", "GONE", {0: 9}), CommitOffsets("here", "LEFT", {0: 1}))
    assert await bench.retention.clean_unused_topics() == 1
    assert [topic for topic, _, _ in state.offsets.items()] == ["LEFT"]


async def test_a_group_that_comes_back_while_offsets_are_looked_through_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.store.retention.OFFSETS_PER_TURN", 1)
    log = FakeLog()
    parts = make_parts(tmp_path, log)
    await parts.state.propose(PutTopic(TopicConfig("T")))
    log.put([Message("T", 0, b"")] * 3, lambda _: None)
    log.commit()
    log.fake_queues.by_key["T", 0].drop_before(2)
    await parts.state.propose(*(CommitOffsets(group, "T", {0: 1}) for group in ("back", "gone", "other")))
    dropping = asyncio.create_task(TopicRetention(parts.core.log, parts.state).drop_stale_offsets())
    await asyncio.sleep(0)
    log.auto_commit = False
    parts.state.propose(PutGroup(SubscriptionGroupConfig("back")))
    await asyncio.sleep(0)
    log.commit()
    log.auto_commit = True
    await dropping
    assert [group for _, group, _ in parts.state.offsets.items()] == ["back"]


async def test_what_is_left_of_deleted_topics_goes(tmp_path: Path) -> None:
    """Messages that came late, what an earlier version kept, and offsets: but nothing of the system's own."""
    bench = Bench(tmp_path, [])
    state, queues = bench.parts.state, bench.log.fake_queues
    await state.propose(PutGroup(SubscriptionGroupConfig("here")), PutTopic(TopicConfig("KEPT")))
    system = ["rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"]
    for topic in ("GONE", "FULL", "KEPT", *system):
        bench.log.put([Message(topic, 0, b"", b"DELAY\x011\x02")], lambda _: None)
    bench.log.commit()
    await state.propose(CommitOffsets("here", "OFFSET", {0: 5}), CommitOffsets("here", "KEPT", {0: 5}))
    request = RemotingCommand(RequestCode.CLEAN_UNUSED_TOPIC)
    answer = await RetentionAdmin(bench.retention).clean_topics(request, FakeConnection().as_connection)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "3 topics deleted")
    assert set(queues.topics()) - {STATE_TOPIC} == {"KEPT", *system}
    assert [topic for topic, _, _ in state.offsets.items()] == ["KEPT"]
    assert await bench.retention.clean_unused_topics() == 0
    bench.log.set_writable(False)
    queues.raise_to("GONE", 0, 5, 0)
    assert await bench.retention.clean_unused_topics() == 0


async def test_a_topic_that_is_being_made_is_not_taken_for_one_that_is_gone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [])
    bench.log.auto_commit = False
    bench.log.put([Message("T", 0, b"early")], lambda _: None)
    bench.log.commit()
    made = bench.parts.state.propose(PutTopic(TopicConfig("T")))
    await asyncio.sleep(0)
    bench.log.time_out()
    await asyncio.sleep(0)
    assert made.result() is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    assert await bench.retention.clean_unused_topics() == 0
    bench.log.commit()
    assert bench.log.fake_queues.next_offset("T", 0) == 1


async def test_operators_are_told_how_much_went(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [OLD_MS, NOW_MS], deleteWhen=NOT_NOW)
    processor = RetentionAdmin(bench.retention)
    connection = FakeConnection().as_connection
    deleted = await processor.delete_files(RemotingCommand(RequestCode.DELETE_EXPIRED_COMMITLOG), connection)
    cleaned = await processor.clean_queues(
        RemotingCommand(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE), connection
    )
    assert [(each.code, each.remark) for each in (deleted, cleaned)] == [
        (ResponseCode.SUCCESS, "1 files deleted"), (ResponseCode.SUCCESS, "0 queues lose files"),
    ]  # fmt: skip


async def test_plain_log_says_that_it_keeps_everything() -> None:
    processor = RetentionAdmin(None)
    request = RemotingCommand(RequestCode.DELETE_EXPIRED_COMMITLOG)
    with pytest.raises(RequestError, match="keeps everything"):
        await processor.delete_files(request, FakeConnection().as_connection)
