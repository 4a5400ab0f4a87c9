"""The changes of role a node reports, and the leaders it has known."""

from collections import deque

from dledger.core.events import RoleChanged
from dledger.core.output import Outbox
from dledger.core.status import ElectionRecord
from dledger.core.types import Role

ELECTIONS_KEPT = 32


class RoleHistory:
    """Reports a change once, and keeps the last elections for the admin page."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._last: tuple[Role, int, str | None] | None = None
        self._elections: deque[ElectionRecord] = deque(maxlen=ELECTIONS_KEPT)
        self.elections_total = 0
        """Those too that are not kept any more."""

    @property
    def elections(self) -> tuple[ElectionRecord, ...]:
        return tuple(self._elections)

    def changed(self, role: Role, term: int, leader_id: str | None, reason: str, now_ms: int) -> None:
        if (role, term, leader_id) == self._last:
            return
        self._last = (role, term, leader_id)
        self._outbox.report(RoleChanged(role, term, leader_id, reason))
        if leader_id is not None:
            self.elections_total += 1
            self._elections.append(ElectionRecord(now_ms, term, leader_id, reason))
