"""The replicated state: topics, subscription groups, consumer and delay offsets, kept in the log itself; and
the progress of sequenced writers, which is read from their own records.

A change is a record of the system topic rmq_sys_LEDGERMQ_STATE. It is acknowledged once it is committed and
applied here; every node applies the same records in log order, so after a failover no table is older than
what was acknowledged. With a snapshot file a node need not read the complete log at its start. See
docs/decisions/replicated_state.md#topics-groups-and-offsets-are-records-of-the-log.

The changes that are proposed in one turn of the event loop are joined in one record. Each proposer's future
resolves once its record is committed and applied on this node, or once writing it has failed. A record's body
holds at most RECORD_BYTES_MAX (a larger turn makes several records), and at most PROPOSALS_WAITING_MAX
proposals wait at a time; one more is answered OS_PAGE_CACHE_BUSY at once.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.config import BrokerConfig, take_settings
from broker.state.changes import (
    Change,
    CommitOffsets,
    DeleteTopic,
    InvalidChangeError,
    PutGroup,
    PutSettings,
    PutTopic,
    TrimQueues,
    decode_changes,
    encode_change,
    format_level_of,
    join_changes,
)
from broker.state.checkpoints import CHECKPOINT_TOPIC, Base, BaseKeeper
from broker.state.groups import SubscriptionGroupConfig, group_name_error, static_groups
from broker.state.snapshot import (
    CorruptSnapshotError,
    Snapshot,
    drop_snapshot,
    read_snapshot,
    write_snapshot,
)
from broker.state.tables import (
    AccessTable,
    OffsetTable,
    PendingResets,
    QueueLocks,
    RequestModes,
    StateTables,
    check_room,
)
from broker.state.topics import STATE_TOPIC, DataVersion, TopicConfig, static_topics
from broker.state.writers import WriterTable
from commitlog.dispatch import NAMES_BYTES_MAX, DispatchBatch, DispatchRequest
from commitlog.log import MessageLog, PutStatus
from commitlog.log_machine import LogMachine, is_snapshot_due
from commitlog.record import Message, Record, decode_record, host_bytes
from commitlog.sequences import SequenceRun
from dledger.fs import Fs, OsFs
from remoting.topic_names import topic_name_error

RECORD_BYTES_MAX = 1024 * 1024


@dataclass(slots=True)
class _Proposal:
    encoded: Sequence[bytes]
    size_bytes: int
    made_topics: Sequence[str]
    deleted_topics: Sequence[str]
    names_bytes: int
    """Bytes of the deleted topics' names in the record's properties."""
    future: asyncio.Future[PutStatus]


@dataclass(slots=True, eq=False)
class _Record:
    """A record that was written to the log, with its proposals that are not answered yet."""

    proposals: Sequence[_Proposal]
    queue_offset: int = -1
    is_committed: bool = False


class ProposalQueue:
    """Owns the proposals of this node that are not yet answered."""

    def __init__(self, log: MessageLog, make_message: Callable[[bytes], Message], waiting_max: int) -> None:
        self._log = log
        self._make_message = make_message
        self._waiting_max = waiting_max
        self._queued: list[_Proposal] = []
        self._records: deque[_Record] = deque()
        self._waiting = 0
        self._applied_offset = -1
        self._queued_made: set[str] = set()
        self._queued_deleted: set[str] = set()
        self._made: dict[str, int] = {}
        self._deleted: dict[str, int] = {}
        """Topics that records which were put, and not applied, make or delete: the last one's offset."""

    def is_changing(self, topic: str) -> bool:
        """Whether the topic is made, changed or deleted by what is not applied yet, answered or not."""
        return topic in self._queued_made or topic in self._made or self.is_deleting(topic)

    def is_deleting(self, topic: str) -> bool:
        """The same of its deletion."""
        return topic in self._queued_deleted or topic in self._deleted

    def clear_topics(self) -> None:
        """What was put under another leadership is applied by now, or will never be."""
        self._made.clear()
        self._deleted.clear()

    def add(
        self, encoded: Sequence[bytes], made_topics: Sequence[str] = (), deleted_topics: Sequence[str] = ()
    ) -> asyncio.Future[PutStatus]:
        """Put these encoded changes in the log together; see the module for when the future resolves. They
        make or change some topics, and delete others.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[PutStatus] = loop.create_future()
        size_bytes = sum(map(len, encoded)) + len(encoded)
        names_bytes = sum(map(len, deleted_topics)) + len(deleted_topics)
        if self._waiting >= self._waiting_max:
            future.set_result(PutStatus.OS_PAGE_CACHE_BUSY)
        elif size_bytes > RECORD_BYTES_MAX or names_bytes > NAMES_BYTES_MAX:
            future.set_result(PutStatus.MESSAGE_ILLEGAL)
        else:
            if not self._queued:
                loop.call_soon(self._flush)
            self._queued.append(
                _Proposal(encoded, size_bytes, made_topics, deleted_topics, names_bytes, future)
            )
            self._waiting += 1
            self._queued_made.update(made_topics)
            self._queued_deleted.update(deleted_topics)
        return future

    def applied(self, queue_offset: int) -> None:
        """The record with this offset in the state queue is applied to the tables."""
        self._applied_offset = queue_offset
        for names in (self._made, self._deleted):
            for name in [name for name, offset in names.items() if offset <= queue_offset]:
                del names[name]
        self._answer_finished()

    def close(self) -> None:
        """Answer all that still wait: whether their changes get into the log is not known."""
        queued, self._queued = self._queued, []
        self._answer(queued, PutStatus.SERVICE_NOT_AVAILABLE)
        while self._records:
            self._answer(self._records.popleft().proposals, PutStatus.UNKNOWN_ERROR)

    def _flush(self) -> None:
        queued, self._queued = self._queued, []
        start = size_bytes = names_bytes = 0
        for position, proposal in enumerate(queued):
            size_bytes += proposal.size_bytes
            names_bytes += proposal.names_bytes
            if size_bytes > RECORD_BYTES_MAX or names_bytes > NAMES_BYTES_MAX:
                self._put(queued[start:position])
                start, size_bytes, names_bytes = position, proposal.size_bytes, proposal.names_bytes
        if queued:
            self._put(queued[start:])
        self._queued_made.clear()
        self._queued_deleted.clear()

    def _put(self, proposals: Sequence[_Proposal]) -> None:
        record = _Record(proposals)
        body = join_changes([change for proposal in proposals for change in proposal.encoded])
        self._records.append(record)
        deleted = list(dict.fromkeys(name for each in proposals for name in each.deleted_topics))
        message = self._make_message(body)
        result = self._log.put([message], lambda status: self._done(record, status), deleted)
        if result.status is not PutStatus.PUT_OK:
            self._records.remove(record)
            self._answer(proposals, result.status)
            return
        record.queue_offset = result.queue_offsets[0]
        self._deleted.update(dict.fromkeys(deleted, record.queue_offset))
        for proposal in proposals:
            self._made.update(dict.fromkeys(proposal.made_topics, record.queue_offset))
        self._answer_finished()

    def _done(self, record: _Record, status: PutStatus) -> None:
        if status is PutStatus.PUT_OK:
            record.is_committed = True
            self._answer_finished()
        elif record in self._records:
            self._records.remove(record)
            self._answer(record.proposals, status)

    def _answer_finished(self) -> None:
        while self._records:
            record = self._records[0]
            if not record.is_committed or not 0 <= record.queue_offset <= self._applied_offset:
                return
            self._records.popleft()
            self._answer(record.proposals, PutStatus.PUT_OK)

    def _answer(self, proposals: Sequence[_Proposal], status: PutStatus) -> None:
        self._waiting -= len(proposals)
        for proposal in proposals:
            if not proposal.future.done():
                proposal.future.set_result(status)


PROPOSALS_WAITING_MAX = 10_000
_OWN_TOPICS = frozenset({STATE_TOPIC, CHECKPOINT_TOPIC})
SNAPSHOT_ENTRIES_MAX = 100_000
"""A snapshot is also written when this many entries passed, or as many as there are offsets if that is more,
so that a start replays no more.
"""

logger = logging.getLogger(__name__)


class StateChangeError(Exception):
    """A change did not get into the log, or it is not known whether it did."""

    def __init__(self, status: PutStatus) -> None:
        super().__init__(f"state change failed: {status.name}")
        self.status = status


def _resolved(status: PutStatus) -> "asyncio.Future[PutStatus]":
    future: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
    future.set_result(status)
    return future


class ReplicatedState(LogMachine):
    """This node's copy of the tables, and the only way to change them. A table of every node: a leader adds
    only the proposals that are not applied yet.
    """

    def __init__(
        self, config: BrokerConfig, log: MessageLog, clock: Callable[[], int], fs: Fs | None = None
    ) -> None:
        self._config = config
        self._fs = fs or OsFs()
        super().__init__(log)
        self._clock = clock
        self._host = host_bytes(config.broker_ip, config.listen_port)
        self._tables = StateTables(static_topics(config), static_groups())
        self.topics: Mapping[str, TopicConfig] = self._tables.topics
        self.groups: Mapping[str, SubscriptionGroupConfig] = self._tables.groups
        self._proposals = ProposalQueue(log, self._record_message, PROPOSALS_WAITING_MAX)
        self._creating: dict[object, asyncio.Future[PutStatus]] = {}
        self._topic_callbacks: list[Callable[[], None]] = []
        self._settings_callbacks: list[Callable[[], None]] = []
        self._deletion_callbacks: list[Callable[[str], None]] = []
        self._change_callbacks: dict[type[Change], list[Callable[[Change, int], None]]] = {}
        self.on_replaced: Callable[[], None] = lambda: None
        """Called when all tables were replaced by those of a checkpoint."""
        self._snapshot_path: Path = config.store_path_root_dir / "state" / "snapshot"
        self._snapshot_task: asyncio.Task[None] | None = None
        self._snapshot_write: asyncio.Task[None] | None = None
        self._snapshot_wanted = asyncio.Event()
        self._saved_index = -1
        self._is_changed = False
        self._keeper = BaseKeeper(log, lambda: self._tables.deleted_at)
        self._is_suspended = False
        self.saved_covered_index = -1
        """Index of the last entry covered by the newest checkpoint that this node's snapshot file records;
        -1: none.
        """
        self.applied_index = -1

    @property
    def offsets(self) -> OffsetTable:
        """Read only: changed by CommitOffsets."""
        return self._tables.offsets

    @property
    def resets(self) -> PendingResets:
        """Read only: changed by CommitOffsets."""
        return self._tables.resets

    @property
    def delay_offsets(self) -> Mapping[int, int]:
        """Delay level → next offset to deliver."""
        return self._tables.delay_offsets

    @property
    def writers(self) -> WriterTable:
        """Read only: changed by sequenced records."""
        return self._tables.writers

    @property
    def base(self) -> Base:
        """The newest complete checkpoint in the log."""
        return self._keeper.base

    @property
    def trim_position(self) -> int:
        """The log's files that end here or before may be deleted."""
        return self._tables.trim_position

    @property
    def first_shown(self) -> Mapping[str, Mapping[int, int]]:
        """Topic → queue → the first offset that is shown, where a topic keeps messages for its own time."""
        return self._tables.first_shown

    @property
    def deleted_at(self) -> Mapping[str, int]:
        """Topic → position of the record that deleted it last: messages before that are not its any more."""
        return self._tables.deleted_at

    @property
    def request_modes(self) -> RequestModes:
        """Read only: changed by SetRequestMode."""
        return self._tables.request_modes

    @property
    def access(self) -> AccessTable:
        """Read only: changed by the changes of users and their rights."""
        return self._tables.access

    @property
    def locks(self) -> QueueLocks:
        """Read only: changed by LockQueues."""
        return self._tables.locks

    @property
    def data_version(self) -> DataVersion:
        """Version of the topic table."""
        return self._tables.topics_version

    @property
    def groups_version(self) -> DataVersion:
        return self._tables.groups_version

    @property
    def static_topics(self) -> Mapping[str, TopicConfig]:
        return self._tables.static_topics

    def on_topics_changed(self, callback: Callable[[], None]) -> None:
        """Call back after records that changed the topic table were applied, at most once per batch of
        records.
        """
        self._topic_callbacks.append(callback)

    def on_settings_changed(self, callback: Callable[[], None]) -> None:
        """Register a callback, called after changed run-time settings have come into force; for values that
        are computed from the configuration.
        """
        self._settings_callbacks.append(callback)

    def on_applied(self, callback: Callable[[Change, int], None], *kinds: type[Change]) -> None:
        """Call back with each applied change of these kinds, in order, and its record's store time."""
        for kind in kinds:
            self._change_callbacks.setdefault(kind, []).append(callback)

    def on_topic_deleted(self, callback: Callable[[str], None]) -> None:
        """Call back with the name of each topic that a record deletes, even if it is there again by the end
        of the batch of records; and with those that a checkpoint loaded from the log does not have.
        """
        self._deletion_callbacks.append(callback)

    def is_changing(self, topic: str) -> bool:
        """Whether a record that creates, changes or deletes the topic is proposed or in the log, and not yet
        applied.
        """
        return self._proposals.is_changing(topic)

    def propose(self, *changes: Change) -> asyncio.Future[PutStatus]:
        """Put the changes in the log, all in one record.

        Resolves with PUT_OK once they are committed and applied on this node. MESSAGE_ILLEGAL: a change is
        not valid or a table is full (topicsMax, groupsMax, offsetsMax). FORMAT_LEVEL_TOO_LOW: a member of the
        group may be of a release that does not know such a change. Any other status: as of MessageLog.put.
        """
        if any(format_level_of(change) > self._log.format_level for change in changes):
            return _resolved(PutStatus.FORMAT_LEVEL_TOO_LOW)
        try:
            for change in changes:
                check_room(change, self._tables, self._config)
                if isinstance(change, DeleteTopic) and (error := topic_name_error(change.name)) is not None:
                    raise InvalidChangeError(error)
            if any(self._is_of_deleted(change) for change in changes):
                return _resolved(PutStatus.OS_PAGE_CACHE_BUSY)
            ordered = self._behind_deletions(changes)
            deleted = [
                change.name
                for change in ordered
                if isinstance(change, DeleteTopic)
                and change.has_messages_gone
                and change.name not in self._tables.static_topics
            ]
            made = [change.config.name for change in ordered if isinstance(change, PutTopic)]
            return self._proposals.add([encode_change(change) for change in ordered], made, deleted)
        except InvalidChangeError as error:
            logger.warning("state change refused: %s", error)
            return _resolved(PutStatus.MESSAGE_ILLEGAL)

    def _is_of_deleted(self, change: Change) -> bool:
        """Whether the change holds offsets of a topic that is being deleted. Its record would follow the
        deletion in the log, and the offsets would apply to the next topic of that name.
        """
        if isinstance(change, CommitOffsets | TrimQueues):
            return self._proposals.is_deleting(change.topic)
        return False

    def _behind_deletions(self, changes: Sequence[Change]) -> list[Change]:
        """When a deleted topic is created again, a second deletion is written before the creation: it removes
        offsets that were committed after the first deletion.
        """
        ordered: list[Change] = []
        for change in changes:
            if isinstance(change, PutTopic):
                name = change.config.name
                is_there = name in self._tables.topics or self._proposals.is_changing(name)
                if not is_there and name in self._tables.deleted_at:
                    ordered.append(DeleteTopic(name))
            ordered.append(change)
        return ordered

    async def ensure_topic_config(self, config: TopicConfig) -> TopicConfig:
        """The topic of that name, created as `config` when it is missing. Raises StateChangeError."""
        if config.name not in self.topics:
            await self._create(("topic", config.name), PutTopic(config))
        return self.topics.get(config.name, config)

    async def ensure_group(self, name: str) -> SubscriptionGroupConfig | None:
        """The group, created with default values when it is missing; None when it may not be created
        (autoCreateSubscriptionGroup is off, or the name is bad). Raises StateChangeError."""
        existing = self.groups.get(name)
        if existing is not None:
            return existing
        if not self._config.auto_create_subscription_group or group_name_error(name) is not None:
            return None
        config = SubscriptionGroupConfig(name)
        await self._create(("group", name), PutGroup(config))
        return self.groups.get(name, config)

    async def _create(self, key: object, change: Change) -> None:
        future = self._creating.get(key)
        if future is None:
            future = self._creating[key] = self.propose(change)
            future.add_done_callback(lambda _: self._creating.pop(key, None))
        status = await asyncio.shield(future)
        if status is not PutStatus.PUT_OK:
            raise StateChangeError(status)

    async def write_checkpoint(self, part_bytes: int) -> PutStatus:
        """Put the state, and each queue's next offset, into the log. PUT_OK: all of it is committed."""
        rows = self._tables.copy().rows()
        return await self._keeper.write(self.applied_index, rows, part_bytes, self._record_message)

    def _record_message(self, body: bytes, topic: str = STATE_TOPIC) -> Message:
        return Message(
            topic=topic,
            queue_id=0,
            body=body,
            born_timestamp_ms=self._clock(),
            born_host=self._host,
            store_host=self._host,
        )

    def become_leader(self) -> None:
        """What was proposed under earlier leaders is applied by now, or never will be."""
        self._change_role()

    def become_follower(self) -> None:
        """Proposals are answered by their puts."""
        self._change_role()

    def _change_role(self) -> None:
        self._proposals.clear_topics()
        # The log's last entries may hold no message, like the first of a new leader: no batch follows then.
        self._keeper.raise_due()

    def apply(self, batch: DispatchBatch) -> None:
        """As LogMachine. Most batches hold nothing of the state: they only move `applied_index`."""
        follows = batch.last_index - batch.message_count == self.applied_index
        if not follows and self._log.begin_index > self.applied_index + 1:
            self._load_checkpoint(batch)
            return
        if batch.sequences or self._keeper.is_waiting or not batch.topics.isdisjoint(_OWN_TOPICS):
            self._apply_records(batch)
        elif batch.last_index > self.applied_index:
            self.applied_index = batch.last_index
        if self.applied_index - self._saved_index >= SNAPSHOT_ENTRIES_MAX and self._is_far():
            self._snapshot_wanted.set()

    def _apply_records(self, batch: DispatchBatch) -> None:
        version = self._tables.topics_version
        # All are decoded before any is applied: a node that stops at one must not save a part of the batch.
        records = [
            (request, decode_record(batch.record(request)))
            for request in (batch if STATE_TOPIC in batch.topics else ())
            if request.topic == STATE_TOPIC and request.index > self.applied_index
        ]
        runs = deque(batch.sequences)
        for request, record in records:
            self._apply_runs(runs, request.index)
            self._apply(request, record)
        self._apply_runs(runs, batch.last_index + 1)
        self.applied_index = max(self.applied_index, batch.last_index)
        if self._keeper.is_waiting or CHECKPOINT_TOPIC in batch.topics:
            self._is_changed |= self._keeper.follow(batch)
        if self._tables.topics_version != version:
            for callback in self._topic_callbacks:
                callback()

    def _load_checkpoint(self, batch: DispatchBatch) -> None:
        """The log begins after the last entry that this state covers: load the state from a checkpoint in the
        log, then apply the entries after it.
        """
        if not self._is_suspended:
            logger.warning(
                "the log begins with entry %d, the state is that of entry %d: waiting for a checkpoint",
                self._log.begin_index,
                self.applied_index,
            )
            self._is_suspended = True
            self._log.suspend_writes(True)
        snapshot = self._keeper.find(batch)
        if snapshot is None:
            return
        self._log.redeliver_from(self.apply, snapshot.applied_index + 1)
        topics_before = set(self.topics)
        self._tables.load_json(snapshot.tables)
        self._apply_settings(self._tables.settings)
        self.on_replaced()
        self._keeper.begin_behind(snapshot)
        logger.info("the state is taken from the checkpoint of entry %d", snapshot.applied_index)
        self.applied_index = snapshot.applied_index
        self._is_changed, self._is_suspended = True, False
        self._log.suspend_writes(False)
        for topic in topics_before.difference(self.topics):
            self._report_deleted(topic)
        for callback in self._topic_callbacks:
            callback()

    def _apply_runs(self, runs: deque[SequenceRun], end_index: int) -> None:
        """Those before that entry: a writer ends behind what it wrote, on every node."""
        while runs and runs[0][4] < end_index:
            self._tables.writers.apply(runs.popleft(), self.applied_index)
            self._is_changed = True

    def _apply(self, request: DispatchRequest, record: Record) -> None:
        for change in decode_changes(bytes(record.body)):
            self._tables.apply(change, request.store_timestamp_ms, request.position)
            if isinstance(change, DeleteTopic):
                self._report_deleted(change.name)
            if isinstance(change, PutSettings):
                self._apply_settings(change.values)
            for callback in self._change_callbacks.get(type(change), ()):
                callback(change, request.store_timestamp_ms)
        self._is_changed = True
        self._proposals.applied(request.queue_offset)

    def _report_deleted(self, topic: str) -> None:
        for callback in self._deletion_callbacks:
            callback(topic)

    def _apply_settings(self, settings: Mapping[str, str]) -> None:
        take_settings(self._config, settings)
        self._tables.set_static_topics(static_topics(self._config))
        for callback in self._settings_callbacks:
            callback()

    def restore(self, log_end_index: int | None = None) -> None:
        """Load the snapshot and subscribe to the log from the next entry on. Call it before MessageLog.start.

        A snapshot that is damaged, or of an entry behind the log's end (the log was wiped, and its numbers
        may come to mean other entries), is not used, and the state is rebuilt from the log. A snapshot behind
        the log's end is removed: by the next start the log may have grown past its entry. Raises OSError.
        """
        snapshot = self._read_snapshot()
        if snapshot is not None and log_end_index is not None and snapshot.applied_index > log_end_index:
            text = "state snapshot of entry %d is not used: the log ends at %d"
            logger.warning(text, snapshot.applied_index, log_end_index)
            drop_snapshot(self._fs, self._snapshot_path)
            snapshot = None
        if snapshot is not None:
            self._load(snapshot)
        self._log.replay_from(self.applied_index + 1)
        self.follow_log()

    def _read_snapshot(self) -> Snapshot | None:
        try:
            return read_snapshot(self._fs, self._snapshot_path)
        except CorruptSnapshotError as error:
            logger.error("state snapshot %s is not used: %s", self._snapshot_path, error)
            return None

    def _load(self, snapshot: Snapshot) -> None:
        try:
            base = Base.from_json(snapshot.tables)
            self._tables.load_json(snapshot.tables)
        except (ValueError, KeyError, TypeError) as error:
            logger.error("state snapshot %s is not used: its tables: %r", self._snapshot_path, error)
        else:
            self.applied_index = self._saved_index = snapshot.applied_index
            self.saved_covered_index = base.covered_index
            self._keeper.begin_with(base, snapshot.applied_index)
            self._apply_settings(self._tables.settings)

    async def start(self) -> None:
        """Begin to write snapshots."""
        await super().start()
        self._snapshot_task = asyncio.create_task(self._keep_snapshots(), name="state snapshots")

    async def stop(self) -> None:
        """Answer all proposals that wait and write a last snapshot."""
        await super().stop()
        self._proposals.close()
        if self._snapshot_task is not None:
            self._snapshot_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._snapshot_task
        await self._save_snapshot()

    def _is_far(self) -> bool:
        entries = self.applied_index - self._saved_index
        return is_snapshot_due(entries, len(self._tables.offsets), SNAPSHOT_ENTRIES_MAX)

    async def _keep_snapshots(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.state_snapshot_interval_ms / 1000):
                    await self._snapshot_wanted.wait()
            self._snapshot_wanted.clear()
            await self._save_snapshot()

    async def _save_snapshot(self) -> None:
        """Only one write at a time: all writes use the same temporary file. A write continues when this call
        is cancelled.
        """
        if self._snapshot_write is not None:
            await asyncio.shield(self._snapshot_write)
        if not self._is_changed and not self._is_far():
            return
        self._is_changed = False
        self._saved_index = self.applied_index
        base = self._keeper.base
        snapshot = Snapshot(self.applied_index, {**self._tables.copy().rows(), **base.rows()})
        writing = self._write_snapshot(snapshot, base.covered_index)
        self._snapshot_write = asyncio.create_task(writing, name="state snapshot")
        await asyncio.shield(self._snapshot_write)

    async def _write_snapshot(self, snapshot: Snapshot, covered_index: int) -> None:
        try:
            await asyncio.to_thread(write_snapshot, self._fs, self._snapshot_path, snapshot)
        except OSError as error:
            self._is_changed = True
            logger.error("cannot write the state snapshot %s: %s", self._snapshot_path, error)
        else:
            self.saved_covered_index = covered_index
