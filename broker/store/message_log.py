"""Opens the store of a broker: locks it against a second process, and recovers the log that the configuration
asks for, a member of a replica group or the plain log of one node.
"""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from zlib import crc32

from broker.config import MESSAGE_BYTES_MAX, BrokerConfig
from commitlog.commit_log import CommitLog, RecordStoreConfig
from commitlog.consume_queues import ConsumeQueueConfig
from commitlog.dledger_commit_log import (
    DLedgerCommitLog,
    members_record,
    store_directory,
    term_start_record,
)
from commitlog.entry import HEADER_BYTES, write_physical_offset
from commitlog.entry_files import EntryStoreConfig
from commitlog.entry_store import EntryStore, open_entry_store
from commitlog.errors import CorruptLogError
from commitlog.indexed_log import MessageLogConfig, store_timestamp_of
from commitlog.log import MessageLog
from commitlog.log_removal import LogRemoval
from commitlog.record import CorruptRecordError, record_size
from dledger.core.config import Config
from dledger.core.types import DamagedEntryError
from dledger.credentials import MemberCredentials
from dledger.durable_state import CorruptHardStateError, HardStateFile, ImpairmentFile
from dledger.environment import Environment
from dledger.fs import Fs, OsFs
from dledger.server import DLedgerServer
from dledger.writer import Durability, WriteMetrics
from remoting.record_layout import RECORD_BYTES_MIN
from telemetry.histogram import Histogram
from telemetry.release import own_release

PREFERRED_STEADY_MS: Final = 10_000
PREFERRED_SPREAD_MS: Final = 4_000
"""A machine that returns may be preferred by many groups, which hand over one after the other within this."""
SMALL_PUSHES_MAX: Final = 2
"""One that a follower's disk is busy with, and one that waits there already for its turn."""

logger = logging.getLogger(__name__)


class StoreLockedError(Exception):
    """Another process uses the store."""


class StoreLock:
    """Held from its making to `release`. Raises StoreLockedError, OSError."""

    def __init__(self, root: Path, fs: Fs | None = None) -> None:
        self._fs = fs or OsFs()
        self._fs.make_directory(root)
        try:
            self._descriptor = self._fs.lock(root / "lock")
        except BlockingIOError:
            raise StoreLockedError(f"another process uses the store {root}") from None

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._fs.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class LogMetrics:
    """`dispatch`: seconds from the commit of entries until every listener was called."""

    dispatch: Histogram = field(default_factory=Histogram)
    writes: WriteMetrics = field(default_factory=WriteMetrics)


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """A log, recovered but not started. `last_index` is the last entry found on the disk, -1 for none."""

    log: MessageLog
    engine: DLedgerServer | None
    last_index: int
    end_position: Callable[[], int | None]
    metrics: LogMetrics
    position_of: Callable[[int], int]
    """Position (bytes) at which an entry begins. In a log without replication the positions are the entry
    indexes.
    """
    removal: LogRemoval | None = None
    """None for a log whose files are never deleted."""
    stored_ms_of: Callable[[int], int | None] = lambda index: None
    """When an entry was stored (ms since 1970), committed or not; None when it cannot be read."""


def open_log(
    config: BrokerConfig,
    store_host: bytes,
    environment: Environment,
    on_fatal: Callable[[BaseException], None],
) -> OpenedLog:
    """Recover what is on the disk. `on_fatal` is called once when the node must stop.

    Raises CorruptLogError, CorruptHardStateError, OSError.
    """
    message_config = MessageLogConfig(
        queues=ConsumeQueueConfig(file_bytes=config.queue_file_bytes),
        message_bytes_max=MESSAGE_BYTES_MAX,
        delay_levels_ms=config.delay_levels_ms,
    )
    if config.enable_dledger:
        return _open_group_log(config, message_config, store_host, environment, on_fatal)
    record_config = RecordStoreConfig(
        file_bytes=config.data_file_bytes, pending_messages_max=config.pending_appends_max
    )
    log = CommitLog(
        config.store_path_root_dir,
        message_config,
        record_config,
        on_fatal=on_fatal,
        fs=environment.fs,
        clock=environment.wall_clock_ms,
    )
    metrics = LogMetrics(log.dispatch_seconds, log.write_metrics)
    return OpenedLog(log, None, log.end_position - 1, lambda: log.end_position, metrics, lambda index: index)


def _open_group_log(
    config: BrokerConfig,
    message_config: MessageLogConfig,
    store_host: bytes,
    environment: Environment,
    on_fatal: Callable[[BaseException], None],
) -> OpenedLog:
    directory = store_directory(config.store_path_root_dir, config.dledger_self_id)
    entries = open_entry_store(
        directory,
        entry_config(config),
        write_physical_offset,
        environment.fs,
        lambda: environment.monotonic_ms() / 1000,
        on_damage=_damage_marker(directory, environment)
        if _has_others(config, directory, environment.fs)
        else None,
    )
    last_index = entries.end_index
    try:
        engine = _make_engine(config, entries, store_host, environment)
        log = DLedgerCommitLog(
            engine,
            entries,
            config.store_path_root_dir,
            message_config,
            on_fatal=on_fatal,
            fs=environment.fs,
            clock=environment.wall_clock_ms,
        )
        log.set_on_damaged(engine.on_damaged)
    except BaseException:
        entries.close()
        raise
    metrics = LogMetrics(log.dispatch_seconds, engine.write_metrics)
    position_of = entries.position_of
    return OpenedLog(
        log,
        engine,
        last_index,
        lambda: entries.end_position,
        metrics,
        position_of,
        log.removal,
        lambda index: stored_ms(entries, index),
    )


def entry_config(config: BrokerConfig) -> EntryStoreConfig:
    """The part of the configuration that the store of a group's member has."""
    return EntryStoreConfig(
        data_file_bytes=config.data_file_bytes,
        index_file_bytes=config.index_file_bytes,
        cache_bytes_max=config.entry_cache_bytes,
        disk_full_ratio=config.disk_full_percent / 100,
    )


def stored_ms(entries: EntryStore, index: int) -> int | None:
    """Store time (ms) of the entry's record, by the clock of the leader that wrote it; None when it cannot be
    read. May be called on the event loop: only the record's first bytes are read, without a CRC check.
    """
    if not entries.begin_index <= index <= entries.end_index:
        return None
    try:
        head = bytes(entries.read(entries.position_of(index) + HEADER_BYTES, RECORD_BYTES_MIN))
        record_size(head)  # raises where no record is
        return store_timestamp_of(head) if len(head) == RECORD_BYTES_MIN else None
    except (CorruptRecordError, CorruptLogError, DamagedEntryError, OSError):
        return None


def _has_others(config: BrokerConfig, directory: Path, fs: Fs) -> bool:
    """Whether the node has had other members to fill up its log. The log that names them is not open yet:
    what is kept of it beside the vote counts. A vote that cannot be read is the engine's to judge.
    """
    if len(config.peers) > 1:
        return True
    with contextlib.suppress(CorruptHardStateError):
        history = HardStateFile(directory, fs).load().configurations
        return history is not None and any(len(each.configuration.ids) > 1 for each in history.entries)
    return False


def _damage_marker(directory: Path, environment: Environment) -> Callable[[str], None]:
    """Recovery drops what is damaged and what follows: the node then must not vote before it is healed."""
    mark = ImpairmentFile(environment.fs, directory, environment)

    def on_damage(reason: str) -> None:
        logger.error("the log is damaged, and cut there; the group has to fill it up again: %s", reason)
        mark.mark(reason, is_vote_lost=False)

    return on_damage


def _make_engine(
    config: BrokerConfig, entries: EntryStore, store_host: bytes, environment: Environment
) -> DLedgerServer:
    self_id = config.dledger_self_id
    return DLedgerServer(
        engine_config(config),
        listen=(config.replication_host, config.own_peer.port),
        peers={peer.id: (peer.host, peer.port) for peer in config.peers},
        store=entries,
        state_dir=entries.directory,
        term_start_body=lambda term: term_start_record(
            term, self_id, store_host, environment.wall_clock_ms()
        ),
        members_body=lambda configuration: members_record(
            configuration, store_host, environment.wall_clock_ms()
        ),
        durability=Durability(config.durability),
        client_address=config.broker_address,
        environment=environment,
        credentials=environment.credentials or _credentials(config),
        is_joining=config.dledger_join,
        release=own_release() or "",
    )


def _credentials(config: BrokerConfig) -> MemberCredentials | None:
    """Raises TlsFilesError."""
    files = config.replication_tls
    return None if files is None else MemberCredentials.load(files, config.replication_tls_age_max_ms)


def engine_config(config: BrokerConfig) -> Config:
    """The part of the configuration that the replication engine has."""
    return Config(
        group=config.group,
        self_id=config.dledger_self_id,
        peers=tuple(
            peer.id
            for peer in config.peers
            if not (config.dledger_join and peer.id == config.dledger_self_id)
        ),
        heartbeat_interval_ms=config.heartbeat_interval_ms,
        election_timeout_min_ms=config.election_timeout_min_ms,
        election_timeout_max_ms=config.election_timeout_max_ms,
        wait_ack_timeout_ms=config.wait_ack_timeout_ms,
        pending_appends_max=config.pending_appends_max,
        throttle_bytes_per_s=config.peer_push_quota or None,
        throttle_lag_bytes=config.peer_push_throttle_point,
        small_pushes_max=SMALL_PUSHES_MAX,
        preference=lambda: config.preferred_leader_id,
        preferred_steady_ms=PREFERRED_STEADY_MS + crc32(config.group.encode()) % PREFERRED_SPREAD_MS,
    )
