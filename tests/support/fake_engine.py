"""A replication engine in one process for tests of the log above it: entries go into a real entry store, and
the test says when they are committed, when leadership changes and what appends are answered.

Keeps the part of `dledger.server.DLedgerServer` that `DLedgerCommitLog` uses.
"""

from collections.abc import Callable, Sequence
from typing import cast

from commitlog.dledger_commit_log import term_start_record
from commitlog.entry_store import EntryStore
from dledger.core.status import NodeStatus
from dledger.core.types import NO_INDEX, ResponseCode, Role
from dledger.server import AppendResult, DLedgerServer, Observer
from tests.support.log_entries import write_all


class FakeEngine:
    """A group of one, in the test's hand."""

    def __init__(self, store: EntryStore) -> None:
        self.store = store
        self.role = Role.FOLLOWER
        self.term = 0
        self.term_start_index = NO_INDEX
        self.commit_index = NO_INDEX
        self.append_code = ResponseCode.SUCCESS
        self.appended: list[Sequence[bytes]] = []
        self._observer: Observer | None = None
        self._pending: list[tuple[int, Callable[[ResponseCode], None]]] = []

    @property
    def observer(self) -> Observer:
        assert self._observer is not None
        return self._observer

    def set_observer(self, observer: Observer) -> None:
        self._observer = observer

    def has_lease(self) -> bool:
        return self.role is Role.LEADER

    async def start(self) -> None:
        """Nothing runs."""

    async def stop(self) -> None:
        self.store.close()

    def status(self) -> NodeStatus:
        end = self.store.end_index
        return NodeStatus(self.role, self.term, None, 0, end, end, end, self.term_start_index, (), (), {}, ())

    async def remove_before(self, begin_index: int) -> int:
        self.store.begin_at(begin_index)
        return self.store.remove_files()

    def lead(self, term: int) -> None:
        """Win an election: the entry of the term's start is in the log, not yet committed."""
        self.role, self.term = Role.LEADER, term
        self.term_start_index = self.store.end_index + 1
        body = term_start_record(term, "n0", bytes(8), 1)
        self.store.append_bodies(self.term_start_index, term, [body])
        self.observer.on_role_change(self.role, term, "n0")

    def follow(self, term: int) -> None:
        """Lose leadership: what waits fails."""
        self.role, self.term, self.term_start_index = Role.FOLLOWER, term, NO_INDEX
        pending, self._pending = self._pending, []
        for _, on_done in pending:
            on_done(ResponseCode.TERM_CHANGED)
        self.observer.on_role_change(self.role, term, None)

    def commit(self, last_index: int | None = None) -> None:
        """Write all, and commit up to an index."""
        write_all(self.store)
        if last_index is None:
            last_index = self.store.end_index
        self.commit_index = last_index
        while self._pending and self._pending[0][0] <= last_index:
            self._pending.pop(0)[1](ResponseCode.SUCCESS)
        self.observer.on_readable(last_index)

    def handle_append(self, bodies: Sequence[bytes], on_done: Callable[[ResponseCode], None]) -> AppendResult:
        code = self.append_code if self.role is Role.LEADER else ResponseCode.NOT_LEADER
        if code is not ResponseCode.SUCCESS:
            return AppendResult(code, NO_INDEX, self.term, [])
        self.appended.append(bodies)
        first_index = self.store.end_index + 1
        positions = self.store.append_bodies(first_index, self.term, bodies)
        self._pending.append((self.store.end_index, on_done))
        return AppendResult(ResponseCode.SUCCESS, first_index, self.term, positions)


def as_server(engine: FakeEngine) -> DLedgerServer:
    """For `DLedgerCommitLog`, which asks for the engine itself."""
    return cast("DLedgerServer", engine)
