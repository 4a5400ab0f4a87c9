"""Retention: deletes old files of the log, the queue files that refer to them, and what is left of deleted
topics; hides messages that are older than their own topic allows.

The leader decides which files are old enough and writes that to the log (TrimLog), so that all nodes delete
the same; each node does so once it no longer needs the file itself. A node whose disk is nearly full deletes
its oldest files without the leader. Before a file is deleted, a checkpoint of the state is in a later part of
the log. A file with records that are still needed, such as messages that wait for delivery, is held by a pin.
See docs/retention.md and docs/decisions/storage.md#retention-and-checkpoints-of-state.

A topic may have a shorter retention time than the log: its queues then show no older message, though the log
may still have it. That too is decided by the leader (TrimQueues, DropOffsets), so that the first message
shown is the same on all nodes.

Age is measured by the wall clock, unless it was just set ahead: a deletion cannot be undone, and a clock that
jumps by days is more often wrong than right.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from broker.config import BrokerConfig
from broker.feature import Core, Feature
from broker.state.changes import DeleteTopic, DropOffsets, TrimLog, TrimQueues
from broker.state.checkpoints import PART_BYTES_MAX
from broker.state.state import ReplicatedState
from broker.state.topics import SYSTEM_PREFIX, SYSTEM_TOPICS, TopicConfig
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog, PutStatus
from commitlog.log_removal import LogRemoval, OldFile
from dledger.core.types import NO_INDEX
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.router import Handlers
from remoting.topic_names import topic_name_error

RETENTION_ATTRIBUTE: Final = "retention.ms"
"""A topic attribute: how long the topic shows its messages."""
OFFSETS_PER_TURN: Final = 500
CHANGES_AT_ONCE: Final = 1_000
STEP_MAX_MS: Final = 60_000
"""A clock moves on by no more than this beyond the time that passed, unless it is set."""
DOUBT_MS: Final = 24 * 3_600_000
"""A clock that was set ahead is trusted after this time: until then an operator can correct it."""
FILES_PER_ROUND: Final = 10
QUEUES_PER_TURN: Final = 200
PARTS_PER_FILE: Final = 8
"""A part of a checkpoint is at most a data file's size divided by this."""
CHECKPOINT_SHARE: Final = 8
"""A checkpoint is written when the log has grown by this many times the size of the last checkpoint."""
KEEPS_ALL = "a plain log keeps everything: set enableDLegerCommitLog to have old files deleted"

logger = logging.getLogger(__name__)


RetentionPin = Callable[[], int | None]
"""The position of the earliest record that is still needed; None for none. It depends only on what all nodes
share, the replicated state and the queues: every node must delete the same files.
"""


def earliest_pin(pins: Iterable[RetentionPin]) -> int | None:
    """The position of the earliest record that must stay; None when none must."""
    return min((position for pin in pins if (position := pin()) is not None), default=None)


def retention_ms(topic: TopicConfig) -> int | None:
    """The topic's own time; None when it has none, or one that cannot be read."""
    text = topic.attributes.get(RETENTION_ATTRIBUTE, "")
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) <= 15 else None


def is_system(topic: str) -> bool:
    """Whether the broker itself counts on the topic's offsets."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


class TopicRetention:
    """One node's."""

    def __init__(
        self,
        log: MessageLog,
        state: ReplicatedState,
    ) -> None:
        self._log = log
        self._state = state
        log.on_writable_change(lambda _: self.show())

    def show(self) -> None:
        """Set the first shown offset of this node's queues from the replicated state, unless the queues are
        ahead of the state: a topic may have been deleted and created again.
        """
        log = self._log
        if log.applied_index < log.queued_index:
            return
        queues = log.queues
        for topic, offsets in self._state.first_shown.items():
            for queue_id, offset in offsets.items():
                queue = queues.get(topic, queue_id)
                if queue is not None:
                    queue.hide_before(offset)

    async def decide(self, now_ms: int) -> None:
        """On the leader: hide what is older than its topic allows."""
        state = self._state
        changes = []
        for topic in list(state.topics.values()):
            kept_ms = retention_ms(topic)
            is_certain = kept_ms is not None and not state.is_changing(topic.name)
            offsets = self._first_kept(topic.name, now_ms - (kept_ms or 0)) if is_certain else {}
            if offsets:
                changes.append(TrimQueues(topic.name, offsets))
        if changes:
            await state.propose(*changes[:CHANGES_AT_ONCE])
            self.show()

    def _first_kept(self, topic: str, oldest_kept_ms: int) -> dict[int, int]:
        """Of the topic's queues that show messages stored before: the first offset that stays."""
        queues = self._log.queues
        kept: dict[int, int] = {}
        for queue_id in queues.queue_ids(topic):
            queue = queues.get(topic, queue_id)
            if queue is not None and queue.min_offset < queue.max_offset:
                offset = queue.offset_by_time(oldest_kept_ms)
                assert offset <= queue.max_offset, f"{topic}@{queue_id}: {offset} of {queue.max_offset}"
                if offset > queue.min_offset:
                    kept[queue_id] = offset
        return kept

    async def delete_remains(self) -> int:
        """On the leader: delete the remains of deleted topics: messages that arrived during the deletion, or
        that an earlier version left, and offsets of late consumers. Returns the number of topics.
        """
        log, state = self._log, self._state
        if not log.is_writable():
            return 0
        names = dict.fromkeys(log.queues.topics())
        names.update((topic, None) for topic, _ in state.offsets.pairs())
        remains = [
            name
            for name in names
            if name not in state.topics
            and not is_system(name)
            and topic_name_error(name) is None
            and not state.is_changing(name)
        ]
        deletions = [state.propose(DeleteTopic(name)) for name in remains[:CHANGES_AT_ONCE]]
        return sum(status is PutStatus.PUT_OK for status in await asyncio.gather(*deletions))

    async def drop_stale_offsets(self) -> None:
        """On the leader: drop the offsets of groups that do not exist, once the messages that they refer to
        are deleted.
        """
        log, state = self._log, self._state
        if not log.is_writable():
            return
        stale = []
        for number, (topic, group, offsets) in enumerate(list(state.offsets.items()), 1):
            if self._is_stale(group, topic, offsets):
                stale.append((group, topic))
            if number % OFFSETS_PER_TURN == 0:
                await asyncio.sleep(0)
        # Meanwhile a group may exist again, or a consumer may have stored another offset.
        rows = [(group, topic, state.offsets.queues(group, topic)) for group, topic in stale]
        drops = [
            DropOffsets(group, topic)
            for group, topic, offsets in rows
            if self._is_stale(group, topic, offsets)
        ]
        if drops:
            await state.propose(*drops[:CHANGES_AT_ONCE])

    def _is_stale(self, group: str, topic: str, offsets: Mapping[int, int]) -> bool:
        return group not in self._state.groups and all(
            self._is_behind(topic, queue_id, offset) for queue_id, offset in offsets.items()
        )

    def _is_behind(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a group that starts again without this offset misses no message."""
        queue = self._log.queues.get(topic, queue_id)
        return queue is None or offset < queue.min_offset


class RetentionClock:
    """Compares two clocks at each call, so it has to be called regularly. After a suspension of the machine
    the wall clock appears to have been set.
    """

    def __init__(self, wall_ms: Callable[[], int], monotonic_s: Callable[[], float]) -> None:
        self._wall_ms = wall_ms
        self._monotonic_s = monotonic_s
        self._last: tuple[int, float] | None = None
        """The two clocks' values at the last call."""
        self._doubt: tuple[int, float] | None = None
        """The time from which to continue, and the monotonic time of that moment."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        wall_ms, at_s = self._wall_ms(), self._monotonic_s()
        if self._last is not None:
            expected_ms = self._last[0] + _ms(at_s - self._last[1])
            if self._doubt is None and wall_ms > expected_ms + STEP_MAX_MS:
                ahead_s = (wall_ms - expected_ms) // 1_000
                logger.warning(
                    "the clock was set ahead by %d s: retention does not use it for a day", ahead_s
                )
                self._doubt = expected_ms, at_s
        self._last = wall_ms, at_s
        if self._doubt is None:
            return wall_ms
        passed_ms = _ms(at_s - self._doubt[1])
        believed_ms = self._doubt[0] + passed_ms
        if passed_ms < DOUBT_MS and wall_ms > believed_ms + STEP_MAX_MS:
            return believed_ms
        self._doubt = None
        return wall_ms


def _ms(seconds: float) -> int:
    return int(seconds * 1_000)


class Retention:
    """One node's. `round` at the interval; the other methods are for requests of operators."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        clock: Callable[[], int],
        removal: LogRemoval,
        pins: Sequence[RetentionPin],
        rewriters: Sequence[Callable[[int], None]],
    ) -> None:
        self._config = config
        self._log = log
        self._state = state
        self._rewriters = rewriters
        self._removal = removal
        self._topics = TopicRetention(log, state)
        self._wall_clock = clock
        self._pins = pins
        self._clock = RetentionClock(clock, lambda: asyncio.get_running_loop().time())
        self._task: asyncio.Task[None] | None = None
        self._round_under_way = asyncio.Lock()
        self._cleaned_position = -1

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="retention")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._config.clean_interval_ms / 1000)
            try:
                await self.round()
            except (OSError, DamagedRecordError) as error:
                # A file of the log that cannot be written stops the node; damage is being repaired.
                logger.warning("retention failed, tried again: %s", error)
            except Exception:
                logger.exception("retention failed, tried again")

    # -- requests of operators ------------------------------------------------------------------------------

    async def delete_expired(self, force: bool = False) -> int:
        """DELETE_EXPIRED_COMMITLOG: delete the expired files, whatever the hour; with `force` also
        those that a follower still needs. Returns the number of files deleted here; other nodes follow.
        """
        return await self.round(is_asked_for=True, is_forced=force)

    async def clean_queues(self) -> int:
        """CLEAN_EXPIRED_CONSUMEQUEUE: delete the queue files of deleted messages; of how many queues."""
        async with self._round_under_way:
            return await self._clean_queues()

    async def clean_unused_topics(self) -> int:
        """On the leader: delete what is left of deleted topics; returns of how many topics.
        CLEAN_UNUSED_TOPIC.
        """
        async with self._round_under_way:
            return await self._topics.delete_remains()

    async def round(self, *, is_asked_for: bool = False, is_forced: bool = False) -> int:
        """Decide and delete what is due; how many files of the log were deleted. Raises OSError."""
        async with self._round_under_way:
            self._topics.show()
            now_ms = self._clock.now_ms()
            if self._log.is_writable():
                # First the checkpoint and the snapshots of other tables, then the decision: a file may be
                # deleted only when everything it says is said again behind it.
                await self._write_checkpoint_if_due()
                covered = self._removal.position_of(self._state.base.covered_index + 1)
                for rewrite in self._rewriters:
                    rewrite(covered)
                await self._topics.decide(now_ms)
                await self._topics.delete_remains()
                await self._decide(now_ms, is_asked_for, is_forced)
            removed = await self._remove()
            if self._removal.begin_position != self._cleaned_position:
                self._cleaned_position = self._removal.begin_position
                await self._clean_queues()
                await self._topics.drop_stale_offsets()
            return removed

    # -- the leader ----------------------------------------------------------------------------------------

    async def _write_checkpoint_if_due(self) -> None:
        """Write one checkpoint for each data file, soon after the file was begun: then all earlier files can
        be deleted.
        """
        removal, state = self._removal, self._state
        file_bytes = removal.file_bytes
        begin = removal.position_of(state.base.covered_index + 1)
        end = removal.position_of(state.base.known_index + 1)
        grown_bytes = removal.end_position - end
        is_in_same_file = removal.end_position // file_bytes == begin // file_bytes
        if is_in_same_file or grown_bytes < max(file_bytes // 2, CHECKPOINT_SHARE * (end - begin)):
            return
        part_bytes = min(PART_BYTES_MAX, file_bytes // PARTS_PER_FILE)
        status = await state.write_checkpoint(part_bytes)
        if status is not PutStatus.PUT_OK:
            logger.info("no checkpoint was written (%s), tried again", status.name)

    async def _decide(self, now_ms: int, is_asked_for: bool, is_forced: bool) -> None:
        """Write to the log which files may be deleted because they are older than the retention time."""
        config = self._config
        is_short = self._used_percent() >= config.disk_max_used_percent
        if not (is_short or is_asked_for or self._is_hour()):
            return
        spared_index = None if is_short or is_forced else self._slowest_index()
        oldest_kept_ms = now_ms - config.file_reserved_hours * 3_600_000
        position = 0
        for number, file in enumerate(self._removable()):
            is_spared = spared_index is not None and file.next_index > spared_index + 1
            is_old = file.newest_ms is not None and file.newest_ms < oldest_kept_ms
            if not is_old or is_spared or number >= FILES_PER_ROUND:
                break
            position = file.end_position
        if position > self._state.trim_position:
            logger.info("the log may begin at position %d: older files have expired", position)
            await self._state.propose(TrimLog(position))

    def _slowest_index(self) -> int:
        """Up to here every follower has the log."""
        status = self._log.status()
        ends = [peer.match_index for peer in status.peers] if status is not None else []
        return min((NO_INDEX if end is None else end for end in ends), default=1 << 62)

    def _is_hour(self) -> bool:
        now = datetime.fromtimestamp(self._wall_clock() / 1000)  # noqa: DTZ006 (an hour of the place's own day)
        return now.hour in self._config.delete_hours

    def _used_percent(self) -> float:
        return 100 * self._removal.used_ratio()

    # -- every node ----------------------------------------------------------------------------------------

    def _removable(self) -> Iterator[OldFile]:
        """The oldest files that this node can do without: state and queues are on its disk without them, the
        next checkpoint is behind them, and no pin needs them.
        """
        state = self._state
        index_max = min(state.saved_covered_index, self._removal.dispatched_index(), state.applied_index) + 1
        pin = earliest_pin(self._pins)
        for file in self._removal.old_files():
            if file.next_index > index_max or (pin is not None and file.end_position > pin):
                return
            yield file

    async def _remove(self) -> int:
        removed = 0
        while removed < FILES_PER_ROUND:
            file = self._next_to_go()
            if file is None:
                break
            removed += await self._removal.remove_before(file)
        if removed:
            logger.info("deleted %d files: the log begins at %d", removed, self._removal.begin_position)
        return removed

    def _next_to_go(self) -> OldFile | None:
        file = next(self._removable(), None)
        if file is None or file.end_position <= self._state.trim_position:
            return file
        config = self._config
        if not config.clean_forcibly_enable or self._used_percent() < config.disk_clean_percent:
            return None
        logger.warning("the disk is %.0f %% full: deleting the oldest file", self._used_percent())
        return file

    async def _clean_queues(self) -> int:
        queues = self._log.queues
        cut = 0
        for number, queue in enumerate(list(queues), 1):
            if queues.get(queue.topic, queue.queue_id) is queue:
                cut += queues.cut_files(queue)
            if number % QUEUES_PER_TURN == 0:
                await asyncio.sleep(0)
        return cut


class RetentionAdmin:
    """Requests by which operators delete files and topics at once. The answer's remark reports how much was
    deleted.
    """

    def __init__(self, retention: Retention | None) -> None:
        self._retention = retention

    def handlers(self) -> Handlers:
        return {
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_files,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_topics,
        }

    async def delete_files(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """DELETE_EXPIRED_COMMITLOG."""
        files = await self._known().delete_expired()
        return success_response(request, remark=f"{files} files deleted")

    async def clean_queues(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """CLEAN_EXPIRED_CONSUMEQUEUE."""
        queues = await self._known().clean_queues()
        return success_response(request, remark=f"{queues} queues lose files")

    async def clean_topics(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """CLEAN_UNUSED_TOPIC. A deleted topic lost its configuration and offsets at once; its queues are
        deleted when none of their messages is left: until then a topic created again continues at their
        offsets.
        """
        topics = 0 if self._retention is None else await self._retention.clean_unused_topics()
        return success_response(request, remark=f"{topics} topics deleted")

    def _known(self) -> Retention:
        if self._retention is None:
            raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, KEEPS_ALL)
        return self._retention


def retention_feature(core: Core, others: Feature) -> Feature:
    """`others`: what all features together pin in the log. A log without replication is never trimmed."""
    removal = core.opened.removal
    if removal is None:
        return Feature(handlers=RetentionAdmin(None).handlers())
    retention = Retention(
        config=core.config,
        log=core.log,
        state=core.state,
        clock=core.clock,
        removal=removal,
        pins=others.retention_pins,
        rewriters=others.log_rewriters,
    )
    return Feature(handlers=RetentionAdmin(retention).handlers(), services=(retention,))
