"""What must hold after every event, checked from outside the core.

The checker keeps its own record of what was ever appended and committed, so that a node can't be wrong and
agree with itself. All checks are incremental: an event costs in proportion to what it changed.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from dledger.core.membership import ConfigurationEntry, voters_changed
from dledger.core.messages import VoteRequest, VoteResponse, VoteResult
from dledger.core.output import Completion, Envelope
from dledger.core.types import NO_INDEX, Epoch, ResponseCode, Role
from tests.simulation.host import Host
from tests.support.memory_log import StoredEntry

EPOCH_CHECK_CHANGES = 64
"""The epoch cache is compared with every entry after this many appends, and after each truncation."""


class InvariantError(AssertionError):
    """Something that must never happen; the message has the numbers."""


def require(condition: object, *numbers: object) -> None:
    """Raises InvariantError with the numbers unless the condition holds."""
    if not condition:
        raise InvariantError(" ".join(str(number) for number in numbers))


@dataclass(slots=True)
class NodeRecord:
    """What the checker remembers of one life of one node, and of what its disk ever held."""

    term: int = 0
    commit_index: int = NO_INDEX
    role: Role = Role.FOLLOWER
    was_alone: bool = False
    """It was the only voter at some time in this life."""
    led_term: int = 0
    has_led: bool = False
    """It leads, and did before its last input: a follower may hear of a commit and be elected in one turn."""
    durable_term: int = 0
    votes: dict[int, str] = field(default_factory=dict)
    told_votes: dict[int, str] = field(default_factory=dict)
    changes: int = 0
    newest: ConfigurationEntry | None = None
    """The configuration that was checked last."""
    lost: dict[int, StoredEntry] = field(default_factory=dict)
    """What its disk held durably and lost, while it is impaired."""


class Checker:
    """The Watcher of a world. `hosts` is filled by the world."""

    def __init__(self, *, is_tracing: bool = False) -> None:
        self.hosts: dict[str, Host] = {}
        self.committed: list[StoredEntry] = []
        self.commit_terms: list[int] = []
        self.leaders: dict[int, str] = {}
        self.records: dict[str, NodeRecord] = {}
        self.lines: list[str] = []
        self.elections = 0
        self._is_tracing = is_tracing
        self._entries: dict[tuple[int, int], tuple[bytes, int]] = {}

    @property
    def commit_index(self) -> int:
        """The highest index any node ever called committed."""
        return len(self.committed) - 1

    def trace(self, host: Host, *parts: object) -> None:
        if self._is_tracing:
            text = " ".join(str(part) for part in parts)
            self.lines.append(f"{host.world.clock.now_us:>10} {host.name} {text}")

    # ---- steps

    def started(self, host: Host) -> None:
        self.trace(host, "start", host.hard_state, host.store.log_state())
        was_alone = host.name in self.records and self.records[host.name].was_alone
        if was_alone or host.configuration.voters == (host.name,):
            self._forget_after(host)
        old = self.records.get(host.name, NodeRecord())
        node = host.node
        require(node.term >= old.durable_term, host.name, "restarts at term", node.term, old.durable_term)
        require(node.role is not Role.LEADER, host.name, "starts as leader")
        self.records[host.name] = replace(
            old, term=node.term, commit_index=NO_INDEX, role=node.role, changes=EPOCH_CHECK_CHANGES
        )
        self.checked(host)

    def _forget_after(self, host: Host) -> None:
        """The only voter of a group may use a term again of which nothing became durable, if no learner got
        anything of it.
        """
        others = [other.store for other in self.hosts.values() if other is not host]

        def is_known(index: int, term: int) -> bool:
            found = (store.entry(index) for store in others)
            return any(entry is not None and entry.term == term for entry in found)

        end_index = host.store.end_index
        self._entries = {
            key: value for key, value in self._entries.items() if key[0] <= end_index or is_known(*key)
        }

    def appended(self, host: Host, first_index: int) -> None:
        """Log matching (Raft §5.3): index and term name one entry and one predecessor."""
        self.records[host.name].changes += 1
        previous = host.store.entry(first_index - 1)
        for index in range(first_index, host.store.end_index + 1):
            entry = host.store.entry(index)
            assert entry is not None, (host.name, index)
            previous_term = previous.term if previous is not None else NO_INDEX
            data, known_term = self._entries.setdefault((index, entry.term), (entry.data, previous_term))
            require(data == entry.data, host.name, "other bytes at", index, "of term", entry.term)
            if NO_INDEX not in (known_term, previous_term):
                require(known_term == previous_term, host.name, "log matching broken at", index, entry.term)
            elif known_term == NO_INDEX:
                self._entries[index, entry.term] = (data, previous_term)
            require(previous_term <= entry.term, host.name, "term falls at", index, previous_term, entry.term)
            previous = entry

    def cut(self, host: Host) -> None:
        """Entries were dropped, at one end or the other."""
        self.records[host.name].changes = EPOCH_CHECK_CHANGES

    def durable(self, host: Host) -> None:
        """One vote a term, and terms that never fall, on the disk."""
        record = self.records[host.name]
        state = host.hard_state
        require(state.term >= record.durable_term, host.name, "durable term falls to", state)
        record.durable_term = state.term
        if state.voted_for is not None:
            first = record.votes.setdefault(state.term, state.voted_for)
            require(first == state.voted_for, host.name, "votes twice in term", state.term, first, state)
        else:
            require(state.term not in record.votes, host.name, "forgets its vote of term", state.term)

    def sent(self, host: Host, envelope: Envelope) -> None:
        """One vote a term, as the others hear of it: what a crash makes forgotten was said all the same."""
        match envelope.message:
            case VoteRequest(ballot_term=term, is_pre_vote=False):
                candidate = host.name
            case VoteResponse(ballot_term=term, is_pre_vote=False, result=VoteResult.ACCEPT):
                candidate = envelope.to
            case _:
                return
        first = self.records[host.name].told_votes.setdefault(term, candidate)
        require(first == candidate, host.name, "tells of two votes in term", term, first, candidate)

    def completed(self, host: Host, completion: Completion) -> None:
        """What is acknowledged is committed, with the bytes that were proposed."""
        if completion.code is not ResponseCode.SUCCESS:
            return
        self._advance_commit(host)
        require(completion.last_index <= self.commit_index, host.name, "acknowledges", completion)
        for index in range(completion.first_index, completion.last_index + 1):
            entry = host.store.entry(index)
            if entry is None:
                require(index < host.store.begin_index, host.name, "acknowledges missing", index)
            else:
                require(entry == self.committed[index], host.name, "acknowledges other bytes at", index)

    def checked(self, host: Host) -> None:
        """After every input of a node."""
        node = host.node
        node.check_invariants()
        record = self.records[host.name]
        require(node.term >= record.term, host.name, "term falls", record.term, node.term)
        record.term = node.term
        record.was_alone |= node.members.is_alone
        # The only voter of a group leads before its vote is durable, but nothing of it leaves until then.
        is_hidden = node.members.is_alone and node.persisted_index < node.term_start_index
        if node.role is Role.LEADER and not is_hidden:
            first = self.leaders.setdefault(node.term, host.name)
            require(first == host.name, "two leaders in term", node.term, first, host.name)
            if record.role is not Role.LEADER:
                self.elections += 1
                self._check_leader_completeness(host)
        was_leader = (record.role, record.led_term) == (Role.LEADER, node.term)
        record.has_led, record.led_term = was_leader and node.role is Role.LEADER, node.term
        record.role = node.role
        self._check_members(host)
        self._advance_commit(host)

    def _check_members(self, host: Host) -> None:
        """Majorities of configurations that follow each other in a log share a member (thesis 4.1)."""
        history = host.node.members.history
        if history is None or history.entries[-1] == self.records[host.name].newest:
            return
        self.records[host.name].newest = history.entries[-1]
        for one, other in pairwise(history.entries):
            changed = voters_changed(one.configuration, other.configuration)
            require(one.index < 0 or len(changed) <= 1, host.name, "changes voters", changed, one, other)

    def turned(self, host: Host) -> None:
        """At the end of a turn, when the store has every operation of the node."""
        node, store = host.node, host.store
        ends = (node.begin_index, node.end_index)
        require(ends == (store.begin_index, store.end_index), host.name, "node and log disagree", ends)
        record = self.records[host.name]
        if record.changes >= EPOCH_CHECK_CHANGES:
            record.changes = 0
            known = node.status(host.now_ms).epochs
            epochs = tuple(Epoch(e.term, max(e.first_index, store.begin_index)) for e in known)
            require(epochs == store.epochs(), host.name, "epoch cache", known, store.epochs())

    # ---- damage

    def lost_entries(self, host: Host, first_index: int) -> None:
        """Its disk holds no entry from this one on any more.

        What it has acknowledged still counts as stored until it is healed: nobody can be elected with its
        help before, and the others that stored it are a majority but one.
        """
        self.trace(host, "loses entries from", first_index)
        record = self.records.setdefault(host.name, NodeRecord())
        for entry in host.store.disk.entries[max(0, first_index - host.store.disk.begin_index) :]:
            record.lost[entry.index] = entry

    def lost_vote(self, host: Host) -> None:
        self.trace(host, "loses its vote")
        record = self.records.setdefault(host.name, NodeRecord())
        record.durable_term = host.hard_state.term
        record.votes = {}
        # Two may lose theirs, one of them a candidate that no other node knew; or this one was removed.
        if len(self.hosts) > 3 or host.first is not None:
            record.told_votes = {}
        else:  # its own candidacies are over: had one been won, a voter that is sound would know the term
            told = record.told_votes
            record.told_votes = {term: name for term, name in told.items() if name != host.name}

    def healed(self, host: Host) -> None:
        self.trace(host, "is healed")
        self.records[host.name].lost.clear()

    # ---- commit

    def _advance_commit(self, host: Host) -> None:
        record, node = self.records[host.name], host.node
        commit_index = node.commit_index
        if commit_index == record.commit_index:
            return
        known_index = record.commit_index
        require(commit_index > known_index, host.name, "commit falls", known_index, commit_index)
        require(commit_index <= node.end_index, host.name, "commit above end", commit_index, node.end_index)
        first_index = max(record.commit_index + 1, host.store.begin_index)
        for index in range(first_index, min(commit_index, host.store.end_index) + 1):
            entry = host.store.entry(index)
            assert entry is not None, (host.name, index)
            self._commit(host, entry)
        last = host.store.entry(commit_index)
        if record.has_led and node.role is Role.LEADER and last is not None:
            require(last.term == node.term, host.name, "commits term", last.term, "by counting", commit_index)
        record.commit_index = min(commit_index, host.store.end_index)

    def _commit(self, host: Host, entry: StoredEntry) -> None:
        if entry.index <= self.commit_index:
            known = self.committed[entry.index]
            require(
                entry == known,
                host.name, "commits term", entry.term, "at", entry.index, "after term", known.term,
            )  # fmt: skip
            return
        require(entry.index == self.commit_index + 1, host.name, "commits", entry.index, "with a gap")
        # Of the voters of the leader's newest configuration, committed or not (thesis 4.1): it commits first.
        voters = host.node.members.voters
        holders = [name for name in voters if self._has_stored(self.hosts[name], entry)]
        require(
            2 * len(holders) > len(voters),
            host.name, "commits", entry.index, "of term", entry.term, "that is on the disks of", holders,
            "of", voters,
        )  # fmt: skip
        self.committed.append(entry)
        self.commit_terms.append(max([host.node.term, *self.commit_terms[-1:]]))

    def _has_stored(self, host: Host, entry: StoredEntry) -> bool:
        """On its disk, or lost by a node that is still impaired."""
        if self.records[host.name].lost.get(entry.index) == entry:
            return True
        disk = host.store.disk
        return disk.begin_index > entry.index or disk.get(entry.index) == entry

    def _check_leader_completeness(self, host: Host) -> None:
        """Raft §5.4.3: a new leader has every entry that was committed in an earlier term.

        It may be elected when a newer leader has committed already, and then know nothing of that.
        """
        store, node = host.store, host.node
        end_index = bisect_left(self.commit_terms, node.term) - 1
        require(node.end_index >= end_index, host.name, "leads without", end_index)
        for entry in store.entries()[: max(0, end_index + 1 - store.begin_index)]:
            require(entry == self.committed[entry.index], host.name, "leads with a wrong entry", entry.index)

    # ---- whole-world checks, for the end of a run

    def check_logs(self) -> None:
        """Every durable log agrees with the committed one, and every epoch list with its entries."""
        for name, host in self.hosts.items():
            for entry in host.store.disk.entries:
                if entry.index <= host.node.commit_index:
                    require(entry == self.committed[entry.index], name, "holds other bytes at", entry.index)

    def bodies(self) -> Mapping[int, bytes]:
        """The committed bodies by index."""
        return {entry.index: entry.body for entry in self.committed}
