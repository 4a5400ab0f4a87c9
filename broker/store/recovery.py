"""What an operator does after a majority of a group is gone for good: look at what is left on the stopped
nodes, and make one of them the only voter, which leads alone and fills up new members.

The decision is one entry of the log, a configuration of a newer generation. Before that entry is durable the
node is what it was before, afterwards the decision is in force: no crash leaves anything in between.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from broker.config import BrokerConfig
from broker.store.message_log import StoreLock, engine_config, entry_config, stored_ms
from commitlog.dledger_commit_log import members_record, store_directory
from commitlog.entry import write_physical_offset
from commitlog.entry_store import EntryStore, open_entry_store
from commitlog.record import host_bytes
from dledger.core.epochs import EpochCache
from dledger.core.membership import (
    CHANGING_MEMBERS_LEVEL,
    Configuration,
    ConfigurationEntry,
    ConfigurationHistory,
    Member,
    encode_configuration,
)
from dledger.core.node import recovered_configurations
from dledger.core.types import NO_TERM, HardState, Impairment
from dledger.durable_state import DurableState
from dledger.environment import Environment
from dledger.fs import Fs
from dledger.server import first_members

TERM_STEP: Final = 1000
"""The decision's term is above any that the stores know by so much: the gone members may have had more
elections. Name servers prefer the leader of the higher term, and they refuse a step of a million.
"""
JOURNAL_NAME: Final = "recovery.log"
_PREFIX: Final = "dledger-"


class RecoveryError(Exception):
    """It cannot be done; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class Remains:
    """What one stopped node has. Indexes are -1 where there is nothing, times are ms since 1970."""

    node_id: str
    store: Path
    begin_index: int
    end_index: int
    end_term: int
    commit_index: int
    """Known here to be committed; more may be."""
    last_stored_ms: int | None
    term: int
    voted_for: str | None
    configurations: tuple[ConfigurationEntry, ...]
    taken_generation: int
    """Heard from other members; the log may not name it yet."""
    impairment: Impairment | None

    @property
    def newest(self) -> ConfigurationEntry:
        return self.configurations[-1]

    @property
    def generation(self) -> int:
        """Which the node is of."""
        return max(self.taken_generation, self.newest.configuration.generation)

    @property
    def is_alone(self) -> bool:
        return self.newest.configuration.voters == (self.node_id,)


@dataclass(frozen=True, slots=True)
class Plan:
    """What deciding on one store means. `lost` and `warnings` are sentences for the operator."""

    confirmation: str
    """What the operator has to repeat."""
    term: int
    index: int
    configuration: Configuration
    lost: tuple[str, ...]
    warnings: tuple[str, ...]


def found_node_id(store: Path, fs: Fs) -> str:
    """The node whose store this is. Raises RecoveryError."""
    ids = [name.removeprefix(_PREFIX) for name in fs.list(store) if name.startswith(_PREFIX)]
    if len(ids) != 1:
        raise RecoveryError(f"{store} is the store of no node: it has {len(ids)} folders {_PREFIX}*.")
    return ids[0]


@contextmanager
def stopped_store(config: BrokerConfig, store: Path, environment: Environment) -> Iterator["StoppedStore"]:
    """One node's store, `config` that of a member of its group. It is locked, and opened as the node does at
    its start, which removes an entry that was written half.

    Raises RecoveryError, StoreLockedError, CorruptLogError when entries are damaged, OSError.
    """
    node_id = found_node_id(store, environment.fs)
    lock = StoreLock(store, environment.fs)
    try:
        directory = store_directory(store, node_id)
        entries = open_entry_store(directory, entry_config(config), write_physical_offset, environment.fs)
        try:
            yield StoppedStore(config, store, node_id, entries, environment)
        finally:
            entries.close()
    finally:
        lock.release()


class StoppedStore:
    """Made by `stopped_store`."""

    def __init__(
        self, config: BrokerConfig, store: Path, node_id: str, entries: EntryStore, environment: Environment
    ) -> None:
        self._entries = entries
        self._environment = environment
        self._store_host = host_bytes(config.broker_ip, config.listen_port)
        peers = {peer.id: (peer.host, peer.port) for peer in config.peers}
        first = first_members(node_id, peers, is_joining=False)
        engine = replace(engine_config(config), self_id=node_id)
        self._durable = DurableState(engine, entries.directory, environment, first)
        log = entries.log_state()
        state, impairment = self._durable.inspect(log, entries.find_configurations)
        self.remains = Remains(
            node_id,
            store,
            log.begin_index,
            log.end_index,
            log.epochs[-1].term if log.epochs else NO_TERM,
            log.commit_index,
            stored_ms(entries, log.end_index),
            state.term,
            state.voted_for,
            recovered_configurations(state, EpochCache(log), first),
            state.generation,
            impairment,
        )

    def decide(self, plan: Plan, note: Mapping[str, object]) -> None:
        """Makes this node the only voter, durably. `note`: who decided, for the log. Raises OSError."""
        remains = self.remains
        entry = ConfigurationEntry(plan.index, plan.term, plan.configuration)
        history = ConfigurationHistory((*remains.configurations, entry))
        record = {"index": plan.index, "term": plan.term, "lost": plan.lost, **note}
        self._note("begun", record)
        # Not the new generation: that begins with the entry.
        state = HardState(plan.term, remains.node_id, history, remains.taken_generation)
        self._durable.decide(state, remains.impairment, lambda: self._append(entry, record))
        self._note("decided", record)

    def _append(self, entry: ConfigurationEntry, record: Mapping[str, object]) -> None:
        """Durable when it returns. The record is of the group for ever; readers of configurations pass it."""
        content = json.loads(encode_configuration(entry.configuration)) | {"recovered": record}
        now_ms = self._environment.wall_clock_ms()
        body = members_record(json.dumps(content).encode(), self._store_host, now_ms)
        self._entries.append_configuration(entry.index, entry.term, body)
        writes = self._entries.take_writes()
        assert writes is not None, "an entry was appended"
        self._entries.write(writes, sync=True)
        self._entries.written(writes)
        self._entries.save_checkpoint(entry.index, self.remains.commit_index)

    def _note(self, event: str, record: Mapping[str, object]) -> None:
        """One line more in the journal, durable. One that a crash cut is ended first."""
        fs, path = self._environment.fs, self.remains.store / JOURNAL_NAME
        line = json.dumps({"event": event, "atMs": self._environment.wall_clock_ms(), **record}) + "\n"
        descriptor = fs.open(path)
        try:
            size = fs.size(descriptor)
            is_cut = size > 0 and fs.pread(descriptor, 1, size - 1) != b"\n"
            fs.pwrite(descriptor, [b"\n" * is_cut + line.encode()], size)
            fs.fsync(descriptor)
        finally:
            fs.close(descriptor)
        fs.fsync_directory(path.parent)


def most_complete(remains: Sequence[Remains]) -> Remains:
    """The one whose log is newest, by the rule of elections (Raft 5.4.1); the first of several."""
    return max(remains, key=lambda each: (each.end_term, each.end_index))


def plan_decision(
    config: BrokerConfig, own: Remains, others: Sequence[Remains], *, is_impaired_trusted: bool
) -> Plan:
    """What deciding on `own` means; `others`: copies of what is left of other members.

    Raises RecoveryError.
    """
    _check(own, others, is_impaired_trusted=is_impaired_trusted)
    old = own.newest.configuration
    address = next(((each.host, each.port) for each in config.peers if each.id == own.node_id), ("", 0))
    newest = max(each.generation for each in (own, *others))
    highest = max(max(each.term, each.end_term) for each in (own, *others))
    return Plan(
        f"{config.group}/{own.end_index}/{own.end_term}",
        highest + TERM_STEP,
        own.end_index + 1,
        Configuration(
            (Member(own.node_id, *address),), max(old.format_level, CHANGING_MEMBERS_LEVEL), newest + 1
        ),
        _lost(own),
        tuple(_warnings(own)),
    )


def _check(own: Remains, others: Sequence[Remains], *, is_impaired_trusted: bool) -> None:
    best = most_complete((own, *others))
    if best is not own:
        raise RecoveryError(
            f"{best.node_id} has the more complete log (entry {best.end_index} of term {best.end_term}, "
            f"{own.node_id} ends with {own.end_index} of {own.end_term}): decide on that node."
        )
    if own.end_index < own.begin_index:
        raise RecoveryError(f"The log of {own.node_id} is empty: there is nothing that could count.")
    if own.is_alone and own.impairment is None:
        raise RecoveryError(
            f"{own.node_id} is the only voter already (generation {own.generation}) and leads alone when it "
            "starts: there is nothing to decide."
        )
    if own.impairment is not None and not is_impaired_trusted:
        raise RecoveryError(
            f"{own.node_id} may have forgotten promises or entries ({own.impairment.reason}): what it lacks "
            "is lost too. If nothing better is left, add --trust-impaired."
        )


def _lost(own: Remains) -> tuple[str, ...]:
    """What may be lost, as far as it can be known."""
    unknown = own.end_index - own.commit_index
    maybe = (
        f"The {unknown} entries after {own.commit_index} are not known here to be committed, and will be: "
        "they are kept, and a client may have seen its send fail. If the gone members have others in their "
        "place, those are lost."
    )
    return (
        f"Every entry after {own.end_index} is lost: acknowledged messages that only the gone members have. "
        "How many is not known.",
        f"Everything up to entry {own.end_index} is kept, of which {own.commit_index} is known to be "
        "committed.",
        *((maybe,) if unknown > 0 else ()),
    )


def _warnings(own: Remains) -> Iterator[str]:
    if not own.newest.configuration.is_voter(own.node_id):
        yield f"{own.node_id} has no vote in the newest members that it knows: it may be far behind."
    if own.impairment is not None:
        yield f"{own.node_id} may have lost entries before its last one's time, too: {own.impairment.reason}."
    gone = [each for each in own.newest.configuration.ids if each != own.node_id]
    if gone:
        yield (
            f"{', '.join(gone)} must never start again with their old files: the ones of them that are a "
            "majority would lead a second group of this name. Empty their stores first."
        )
