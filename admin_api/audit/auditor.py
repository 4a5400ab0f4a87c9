"""Writes audit entries for changes, for exports, and for requests that the guard refused."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from admin_api.audit.log import AuditEntry, AuditError, AuditLog, AuditOutcome
from admin_api.schema import EffectView
from admin_api.security.actor import Actor

REFUSED_MAX: Final = 5
"""Refused requests of one name that are written within `REFUSED_WINDOW_S`; the others are counted."""
REFUSED_WINDOW_S: Final = 60.0
REFUSED_TEXT_MAX: Final = 200
"""Characters of a path or a reason: the refused caller chooses this text."""
UNKNOWN_ACTOR: Final = "unknown"
"""The name and the role of a caller without a known token."""

_log = logging.getLogger(__name__)


class Auditor:
    """Over one log. `now_s` is Unix time."""

    def __init__(self, audit: AuditLog, now_s: Callable[[], float] = time.time) -> None:
        self._audit = audit
        self._now_s = now_s

    def entry(
        self,
        action: str,
        target: str,
        actor: Actor | None,
        outcome: AuditOutcome,
        problem: str | None = None,
        *,
        remote: str = UNKNOWN_ACTOR,
    ) -> AuditEntry:
        """`remote` is the address, used where there is no actor."""
        return AuditEntry(
            id=secrets.token_hex(8),
            at_ms=self._now_ms(),
            actor=UNKNOWN_ACTOR if actor is None else actor.name,
            role=UNKNOWN_ACTOR if actor is None else actor.role.label,
            remote=remote if actor is None else actor.remote,
            action=str(action),
            target=target,
            outcome=outcome,
            problem=problem,
        )

    async def append(self, entry: AuditEntry) -> None:
        """Raises: AuditError."""
        await self._audit.append(entry)

    async def end(
        self,
        begun: AuditEntry,
        how: AuditOutcome,
        problem: str | None,
        effects: Sequence[EffectView] | None = None,
    ) -> None:
        """It is done and stays so: that its end cannot be audited goes to the process's own log only."""
        changed: dict[str, object] = {"outcome": how, "problem": problem, "ended_at_ms": self._now_ms()}
        if effects is not None:
            changed["effects"] = list(effects)
        try:
            await self._audit.append(begun.model_copy(update=changed))
        except AuditError as error:
            _log.error("the end of %s of %s (%s) is not audited: %s", begun.action, begun.target, how, error)

    def _now_ms(self) -> int:
        return int(self._now_s() * 1000)


class Export:
    """One entry for what is taken out: begun before the first byte leaves, ended with how much it was."""

    def __init__(self, auditor: Auditor, action: str, target: str, actor: Actor) -> None:
        self._auditor = auditor
        self._begun = auditor.entry(action, target, actor, AuditOutcome.BEGUN)

    async def begin(self) -> None:
        """Raises: AuditError, and then nothing may leave."""
        await self._auditor.append(self._begun)

    async def end(self, what: str, count: int, *, is_whole: bool) -> None:
        how = AuditOutcome.APPLIED if is_whole else AuditOutcome.PARTIAL
        problem = None if is_whole else "broken off"
        effect = EffectView(subject=what, before=None, after=str(count))
        await self._auditor.end(self._begun, how, problem, [effect])


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was to change something. `actor` is None where the sender is unknown."""

    method: str
    path: str
    status: int
    detail: str
    actor: Actor | None
    remote: str


@dataclass(slots=True)
class _Window:
    """`closing` ends it; `actor` and `remote` are those of the first request in it."""

    closing: asyncio.TimerHandle
    actor: Actor | None
    remote: str
    written: int = 0
    left_out: int = 0


@dataclass(slots=True)
class Refusals:
    """Writes the first few refusals of each name within a time, and at its end how many more there were: a
    refused caller can neither fill the disk nor push other entries out of the log.

    All without a token share one name, however many addresses they have.
    """

    auditor: Auditor
    action: str
    window_s: float = REFUSED_WINDOW_S
    _windows: dict[str | None, _Window] = field(default_factory=dict)
    _writing: set[asyncio.Task[None]] = field(default_factory=set)

    async def add(self, refusal: Refusal) -> None:
        """A log that cannot be written is said in the process's own."""
        name = None if refusal.actor is None else refusal.actor.name
        window = self._windows.get(name)
        if window is None:
            closing = asyncio.get_running_loop().call_later(self.window_s, self._close, name)
            window = self._windows[name] = _Window(closing, refusal.actor, refusal.remote)
        if window.written >= REFUSED_MAX:
            window.left_out += 1
            return
        window.written += 1
        problem = f"{refusal.status}: {refusal.detail}"
        await self._write(f"{refusal.method} {refusal.path}", problem, refusal.actor, refusal.remote)

    async def close(self) -> None:
        """Writes how many were left out so far."""
        for name in tuple(self._windows):
            self._close(name)
        while self._writing:
            await asyncio.gather(*self._writing)

    def _close(self, name: str | None) -> None:
        window = self._windows.pop(name)
        window.closing.cancel()
        if window.left_out:
            problem = f"{window.left_out} more were refused within {self.window_s:g} s"
            task = asyncio.create_task(self._write("other requests", problem, window.actor, window.remote))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def _write(self, target: str, problem: str, actor: Actor | None, remote: str) -> None:
        target, problem = target[:REFUSED_TEXT_MAX], problem[:REFUSED_TEXT_MAX]
        entry = self.auditor.entry(self.action, target, actor, AuditOutcome.REFUSED, problem, remote=remote)
        try:
            await self.auditor.append(entry)
        except AuditError as error:
            _log.error("a refused request is not audited: %s", error)
