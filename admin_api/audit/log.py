"""The audit log: who changed what. One JSON object per line, appended and synced to disk before it counts.

A change has two lines with the same id, one when it begins and one when it ends. Readers get the second line,
or the first where the second is missing. The file is rotated at a size limit and a few old files are kept
(`audit.jsonl.1` is the newest of them). Without a file the last entries are kept in memory.

Readers do not block writers: a reader opens the files as they are and reads them in a thread.
"""

import asyncio
import fcntl
import logging
import os
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import orjson
from pydantic import Field, ValidationError

from admin_api.schema import EffectView, Page, Schema
from admin_api.security.policy import Actor


class AuditOutcome(StrEnum):
    """BEGUN: its end was not recorded, the process ended meanwhile. PARTIAL: done in part, `problem` has the
    rest. REFUSED: not tried. FAILED: tried, nothing done as far as is known."""

    BEGUN = "begun"
    APPLIED = "applied"
    PARTIAL = "partial"
    REFUSED = "refused"
    FAILED = "failed"


class AuditEntry(Schema):
    """One change that a user made or tried to make."""

    id: str
    at_ms: int = Field(description="Unix time in ms at which it began")
    ended_at_ms: int | None = None
    actor: str = Field(description="the token's name; `local` where none are used")
    role: str
    remote: str = Field(description="the address it came from")
    action: str
    target: str
    outcome: AuditOutcome
    effects: list[EffectView] = Field(default=[])
    effects_total: int = Field(default=0, description="with many effects the first ones are kept")
    warnings: list[str] = Field(default=[])
    problem: str | None = None


class AuditPage(Page[AuditEntry]):
    """Changes, newest first."""

    is_kept: bool = Field(description="written to a file; false: the last ones, in memory only")


FILE_BYTES_MAX: Final = 4 * 1024 * 1024
FILES_MAX: Final = 5
"""The one written to, and the old ones."""
IN_MEMORY_MAX: Final = 2_000
EFFECTS_MAX: Final = 100
"""Of one change; the total number is kept too."""
TEXT_MAX: Final = 2_000
"""Characters of one text."""

Row = Mapping[str, Any]
T = TypeVar("T")
_log = logging.getLogger(__name__)


class AuditError(Exception):
    """The audit log cannot be written or read; the text is a sentence."""


class AuditLog:
    """Appends and reads. The file belongs to one process: a second one is refused."""

    def __init__(
        self, path: Path | None, *, file_bytes_max: int = FILE_BYTES_MAX, files_max: int = FILES_MAX
    ) -> None:
        """Raises: AuditError when the file cannot be opened."""
        self.path = path
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._recent: deque[AuditEntry] = deque(maxlen=IN_MEMORY_MAX)
        self._busy = threading.Lock()
        self._reading = asyncio.Semaphore(1)
        self._file: IO[bytes] | None = None
        if path is not None:
            self._file = _open(path)
            try:
                for number in range(1, files_max):
                    _close_old(_old(path, number))
            except AuditError:
                self.close()
                raise

    async def append(self, entry: AuditEntry) -> None:
        """On the disk when this returns. Raises: AuditError."""
        entry = bounded(entry)
        if self.path is None:
            self._recent.append(entry)
        else:
            await asyncio.to_thread(self._write, entry)

    async def newest(self, first: int, count: int) -> tuple[list[AuditEntry], int]:
        """`count` changes from number `first` (from 0, newest first), and how many there are.

        Raises: AuditError.
        """
        if self.path is None:
            return _window(((entry.id, entry) for entry in reversed(self._recent)), first, count)
        async with self._reading:  # one thread for all readers, so that those who write find one
            return await asyncio.to_thread(self._read, self.path, first, count)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, entry: AuditEntry) -> None:
        line = entry.model_dump_json(by_alias=True, exclude_defaults=True).encode() + b"\n"
        try:
            with self._busy:
                _append(self._turned_over(len(line)), line)
        except (OSError, ValueError) as error:
            raise AuditError(f"the audit log {self.path} cannot be written: {error}") from error

    def _turned_over(self, more_bytes: int) -> IO[bytes]:
        """The file to append to, a new one if the line would make this one too long."""
        assert self.path is not None
        if self._file is None:
            raise ValueError("it is closed")
        if self._file.tell() and self._file.tell() + more_bytes > self._file_bytes_max:
            # Not again where an earlier turn failed after this: each would cost an old file.
            if _is_at(self._file, self.path):
                self._move_old_files(self.path)
            fresh = _open(self.path)
            self._file.close()
            self._file = fresh
        return self._file

    def _move_old_files(self, path: Path) -> None:
        oldest = _old(path, self._files_max - 1)
        if oldest.exists():
            _log.warning("%s is dropped for newer entries; copy such files away to keep them", oldest)
        for number in range(self._files_max - 1, 0, -1):
            older = path if number == 1 else _old(path, number - 1)
            with suppress(FileNotFoundError):
                older.replace(_old(path, number))

    def _read(self, path: Path, first: int, count: int) -> tuple[list[AuditEntry], int]:
        try:
            with ExitStack() as opened:
                files = self._as_of_now(path, opened)
                rows = (row for file, size in files for row in _rows_backwards(file, size))
                chosen, total = _window(rows, first, count)
        except OSError as error:
            raise AuditError(f"the audit log {path} cannot be read: {error.strerror}") from error
        return [entry for entry in map(_entry, chosen) if entry is not None], total

    def _as_of_now(self, path: Path, opened: ExitStack) -> list[tuple[IO[bytes], int]]:
        """The youngest file first, and how much of each to read: files that are turned over meanwhile keep
        what they hold, and what is appended later is another page's.
        """
        found: list[tuple[IO[bytes], int]] = []
        with self._busy:
            for each in (path, *(_old(path, number) for number in range(1, self._files_max))):
                with suppress(FileNotFoundError):
                    file = opened.enter_context(each.open("rb"))
                    found.append((file, os.fstat(file.fileno()).st_size))
        return found


def bounded(entry: AuditEntry) -> AuditEntry:
    """The entry with no more and no longer texts than a line may have."""
    effects = [
        effect.model_copy(
            update={
                "subject": effect.subject[:TEXT_MAX],
                "before": effect.before and effect.before[:TEXT_MAX],
                "after": effect.after and effect.after[:TEXT_MAX],
            }
        )
        for effect in entry.effects[:EFFECTS_MAX]
    ]
    return entry.model_copy(
        update={
            "target": entry.target[:TEXT_MAX],
            "effects": effects,
            "effects_total": max(len(entry.effects), entry.effects_total),
            "warnings": [warning[:TEXT_MAX] for warning in entry.warnings[:EFFECTS_MAX]],
            "problem": entry.problem and entry.problem[:TEXT_MAX],
        }
    )


def _open(path: Path) -> IO[bytes]:
    """For appending, by its owner only, locked against a second process; a torn last line is ended.

    Raises: AuditError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        file = os.fdopen(handle, "ab+", buffering=0)  # what could not be written is not tried again later
        try:
            _take_over(file)
            _close_to_others(path, file)
            _sync_folder(path.parent)
        except OSError:
            file.close()
            raise
    except BlockingIOError as error:
        raise AuditError(f"the audit log {path} is in use by another process") from error
    except OSError as error:
        raise AuditError(f"the audit log {path} cannot be opened: {error.strerror}") from error
    return file


def _take_over(file: IO[bytes]) -> None:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


def _append(file: IO[bytes], line: bytes) -> None:
    """All of it on the disk, or nothing of it in the file.

    Raises: OSError.
    """
    begin = file.seek(0, os.SEEK_END)
    rest = line
    try:
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    except OSError:
        file.truncate(begin)
        file.seek(begin)
        raise


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether the path leads to this file and no other one, such as a fresh one."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _close_to_others(path: Path, file: IO[bytes]) -> None:
    """A file that was there may be open to others: its mode was another's choice, or its umask's.

    Raises: OSError.
    """
    mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    if not mode & 0o077:
        return
    refusal = "it has no such modes"
    try:
        os.fchmod(file.fileno(), 0o600)
    except PermissionError as error:
        refusal = str(error.strerror)
    left = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    if left & 0o022:
        raise OSError(0, f"others may write to it (mode {left:o}), and that cannot be changed: {refusal}")
    if left & 0o077:
        _log.warning(
            "%s can be read by others (mode %o), and that cannot be changed: %s", path, left, refusal
        )


def _close_old(path: Path) -> None:
    """Raises: AuditError."""
    try:
        with path.open("rb") as file:
            _close_to_others(path, file)
    except FileNotFoundError:
        return
    except OSError as error:
        raise AuditError(f"the old audit log {path} cannot be kept: {error.strerror}") from error


def _sync_folder(folder: Path) -> None:
    """So that the file's name is on the disk, too."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _old(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _rows_backwards(file: IO[bytes], size: int) -> Iterator[tuple[str, Row]]:
    """Id and object of each line of the first `size` bytes."""
    for line in reversed(file.read(size).split(b"\n")):
        if line:
            try:
                row = orjson.loads(line)
                yield str(row["id"]), row
            except (orjson.JSONDecodeError, KeyError, TypeError):
                _log.warning("the audit log has a line that cannot be read; it is left out")


def _entry(row: Row) -> AuditEntry | None:
    try:
        return AuditEntry.model_validate(row)
    except ValidationError:
        _log.warning("the audit log has a line that is no entry; it is left out")
        return None


def _window(rows: Iterable[tuple[str, T]], first: int, count: int) -> tuple[list[T], int]:
    """One for each id, its newest; those from `first` on, and the number of all."""
    seen: set[str] = set()
    chosen: list[T] = []
    for row_id, row in rows:
        if row_id not in seen:
            if first <= len(seen) < first + count:
                chosen.append(row)
            seen.add(row_id)
    return chosen, len(seen)


REFUSED_MAX: Final = 5
"""Refused requests of one name that are written within `REFUSED_WINDOW_S`; the others are counted."""
REFUSED_WINDOW_S: Final = 60.0
REFUSED_TEXT_MAX: Final = 200
"""Characters of a path or a reason: the refused caller chooses this text."""
UNKNOWN_ACTOR: Final = "unknown"
"""The name and the role of a caller without a known token."""


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
        """Failures to write the audit log are logged."""
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
