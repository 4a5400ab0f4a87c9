"""The folder of an archive, and the atomic commit of a batch.

    PATH/topic=T/date=2026-01-31/hour=05/00000012-3f2a9c01-00003-0.parquet   rows
    PATH/_manifest/00000012.jsonl                                            what batch 12 added
    PATH/_manifest/00000000-00000999.jsonl                                   a thousand of these, merged
    PATH/_staging/…                                                          files of the current batch
    PATH/_checkpoint/…                                                       Spark's

Tasks write into _staging. Then the driver writes what the batch is going to add as _manifest/_pending.jsonl,
moves the files into place, and renames that file to the batch's number: this is the commit. A batch that was
interrupted before is removed by the next start.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

import fsspec

from rocketmq_spark.errors import ArchiveError, ManifestError
from rocketmq_spark.jobs.archive.manifest import Batch, Head, format_batch, parse_batches, parse_last_head

BATCHES_FOLDED: Final = 1000
"""Manifest files of one batch that are merged into one file."""
NO_BATCH: Final = Head(sequence=-1, query="", batch=-1, committed_ms=0, spans={})
_MANIFEST: Final = "_manifest"
_PENDING: Final = f"{_MANIFEST}/_pending.jsonl"
_LOCK: Final = f"{_MANIFEST}/_lock"
_STAGING: Final = "_staging"
CHECKPOINT: Final = "_checkpoint"

T = TypeVar("T")


class ArchiveStore:
    """One archive, on this machine or wherever fsspec reaches. Only one process at a time may write to it."""

    def __init__(self, path: str) -> None:
        """Raises: ArchiveError when fsspec cannot use the path."""
        try:
            self._fs, root = fsspec.core.url_to_fs(path)
        except (ImportError, ValueError) as error:
            raise ArchiveError(f"{path} is not reachable: {error}") from None
        self.path = path
        self.root = str(root).rstrip("/")
        self.is_local = is_local(self._fs)
        self.token = secrets.token_hex(4)
        """Part of the name of every file that this run writes: it never replaces a file of another run."""

    def has_checkpoint(self) -> bool:
        """Whether the archive contains the checkpoint of an earlier run."""
        return bool(self._fs.exists(self.full(f"{CHECKPOINT}/metadata")))

    def is_delta(self) -> bool:
        """Whether the archive is also a Delta table."""
        return bool(self._fs.exists(self.full("_delta_log")))

    def full(self, name: str) -> str:
        """A name of the archive as a path of its file system."""
        return f"{self.root}/{name}"

    def url(self, name: str) -> str:
        """A name of the archive as a URL for Spark."""
        return str(self._fs.unstrip_protocol(self.full(name)))

    def staged_name(self, sequence: int, task: int, attempt: int, number: int) -> str:
        """Where a task writes its file before the batch is committed.

        Attempts of a task may run side by side: each has a folder of its own, so that none writes into a file
        that the batch accepted from another.
        """
        return f"{_STAGING}/{self.token}/{attempt}/{sequence:08d}-{self.token}-{task:05d}-{number}.parquet"

    def create(self, name: str) -> Any:
        """A new file of the archive, open for writing bytes."""
        self._fs.makedirs(self.full(name).rpartition("/")[0], exist_ok=True)
        return self._fs.open(self.full(name), "wb")

    def open(self, name: str) -> Any:
        """A file of the archive, open for reading."""
        return self._fs.open(self.full(name), "rb")

    @contextmanager
    def writing(self, is_committed: Callable[[Batch], bool] = lambda _: False) -> Iterator[None]:
        """Lock out other writers, as far as the file system can, and clean up after an interrupted run.

        `is_committed`: whether another log (Delta's) has committed the prepared batch. If so,
        the batch is committed here too, else removed.

        Raises: ArchiveError when another process of this machine is writing.
        """
        self._fs.makedirs(self.full(_MANIFEST), exist_ok=True)
        if not self.is_local:
            self._tidy_up(is_committed)
            yield
            return
        import fcntl

        lock = os.open(self.full(_LOCK), os.O_CREAT | os.O_RDWR, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArchiveError(f"another process is writing to the archive {self.path}.") from None
            self._tidy_up(is_committed)
            yield
        finally:
            os.close(lock)

    def last(self) -> Head:
        """The newest batch, NO_BATCH in an empty archive. Raises: ManifestError."""
        names = self._manifest_names()
        return self._parse(names[-1], parse_last_head) if names else NO_BATCH

    def batches(self) -> Iterator[Batch]:
        """Every batch, by number. Raises: ManifestError naming the file."""
        for name in self._manifest_names():
            yield from self._read(name)

    def has_manifest(self) -> bool:
        """Whether anything was ever archived here."""
        return bool(self._manifest_names())

    def data_files(self) -> set[str]:
        """The names of all Parquet files that a plain reader of the folder would read."""
        self._fs.invalidate_cache()
        prefix = f"{self.root}/"
        names = (str(path).removeprefix(prefix) for path in self._fs.find(self.root))
        return {
            name
            for name in names
            if name.endswith(".parquet")
            and not any(part.startswith(("_", ".")) for part in PurePosixPath(name).parts)
        }

    def prepare(self, batch: Batch) -> None:
        """Write the pending note of the batch, then move its files into place.

        Raises: ArchiveError when a file differs from what its task wrote.
        """
        for file in batch.files:
            size = self._fs.size(self.full(file.staged))
            if size != file.file_bytes:
                raise ArchiveError(
                    f"{file.staged} has {size} bytes, its task wrote {file.file_bytes}: the batch is refused."
                )
        # The note comes before the first move: after a crash it names the files that have to be removed.
        final = replace(batch, files=tuple(replace(file, staged="") for file in batch.files))
        self._put(_PENDING, format_batch(final))
        folders = set()
        for file in batch.files:
            folder = self.full(file.name).rpartition("/")[0]
            if folder not in folders:
                self._fs.makedirs(folder, exist_ok=True)
                folders.add(folder)
            self._fs.mv(self.full(file.staged), self.full(file.name))
        self._sync_folders(folders)

    def commit(self, sequence: int) -> None:
        """Commit the prepared batch: it is in the archive when this returns."""
        self._rename(_PENDING, f"{_MANIFEST}/{sequence:08d}.jsonl")
        if (sequence + 1) % BATCHES_FOLDED == 0:
            self._fold(sequence + 1 - BATCHES_FOLDED, sequence)

    def pending(self) -> Batch | None:
        """The batch that was prepared and not committed. If its note is incomplete, no file was moved yet."""
        if not self._fs.exists(self.full(_PENDING)):
            return None
        try:
            return self._read(_PENDING)[0]
        except (ManifestError, IndexError):
            return None

    def clear_staging(self) -> None:
        """Remove staged files that do not belong to a committed batch."""
        if self._fs.exists(self.full(_STAGING)):
            self._fs.rm(self.full(_STAGING), recursive=True)

    def _tidy_up(self, is_committed: Callable[[Batch], bool]) -> None:
        """Remove the files of a batch that was not committed: Spark repeats it.

        Where a rename is a copy and a removal (object stores), the note may still exist after its commit.
        """
        pending = self.pending()
        if pending is not None and pending.head.sequence <= self.last().sequence:
            pending = None
        if pending is not None and is_committed(pending):
            self.commit(pending.head.sequence)
            pending = None
        for file in pending.files if pending is not None else ():
            if self._fs.exists(self.full(file.name)):
                self._fs.rm(self.full(file.name))
        if self._fs.exists(self.full(_PENDING)):
            self._fs.rm(self.full(_PENDING))
        self.clear_staging()

    def _fold(self, first: int, last: int) -> None:
        """Join manifest files."""
        # Readers ignore the single files as soon as the joined one exists, so a crash between the rename and
        # the removals does no harm.
        singles = [f"{_MANIFEST}/{number:08d}.jsonl" for number in range(first, last + 1)]
        data = b"".join(bytes(self._fs.cat_file(self.full(name))) for name in singles)
        self._put(f"{_MANIFEST}/_folding.jsonl", data)
        self._rename(f"{_MANIFEST}/_folding.jsonl", f"{_MANIFEST}/{first:08d}-{last:08d}.jsonl")
        for name in singles:
            self._fs.rm(self.full(name))

    def _manifest_names(self) -> list[str]:
        """The manifest files in order, without single ones that were merged into another."""
        self._fs.invalidate_cache()
        if not self._fs.exists(self.full(_MANIFEST)):
            return []
        stems = [PurePosixPath(path).name for path in self._fs.ls(self.full(_MANIFEST), detail=False)]
        stems = sorted(stem for stem in stems if stem.endswith(".jsonl") and not stem.startswith("_"))
        folded = [stem.removesuffix(".jsonl").split("-") for stem in stems if "-" in stem]
        return [
            f"{_MANIFEST}/{stem}"
            for stem in stems
            if "-" in stem or not any(first <= stem[:8] <= last for first, last in folded)
        ]

    def _read(self, name: str) -> list[Batch]:
        return self._parse(name, parse_batches)

    def _parse(self, name: str, parse: Callable[[bytes], T]) -> T:
        try:
            return parse(bytes(self._fs.cat_file(self.full(name))))
        except ManifestError as error:
            raise ManifestError(f"{name}: {error}") from None

    def _put(self, name: str, data: bytes) -> None:
        with self._fs.open(self.full(name), "wb") as file:
            file.write(data)
            sync(file, self.is_local)

    def _rename(self, old: str, new: str) -> None:
        if self.is_local:
            Path(self.full(old)).replace(self.full(new))
            self._sync_folders({self.full(_MANIFEST)})
        else:
            self._fs.mv(self.full(old), self.full(new))

    def _sync_folders(self, folders: set[str]) -> None:
        if not self.is_local:
            return
        for folder in folders:
            sync_folder(folder)


def sync(file: Any, is_local: bool) -> None:
    """Sync a local file to the disk; elsewhere, closing it is all that can be done."""
    file.flush()
    if is_local:
        os.fsync(file.fileno())


def sync_folder(folder: str) -> None:
    """Sync the names in a local folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def absolute(path: str) -> str:
    """A path without a scheme made absolute: tasks may run in another folder."""
    return path if "://" in path else str(Path(path).expanduser().resolve())


def is_local(fs: Any) -> bool:
    """Whether files of this file system are files of this machine."""
    return "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol))
