"""Finds the logs below a path: their format, and up to where each is committed.

A path may be a broker's store root, its `dledger-<id>` folder, the `data` folder in it, or a plain
`commitlog` folder. A root may hold both kinds: a broker that was switched to DLedger keeps its old files.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from commitlog.checkpoint import Checkpoint, LogBegin, decode_checkpoint, decode_log_begin, unseal
from commitlog.entry import ENTRY_MAGIC
from commitlog.recovery import FILLER_MAGIC
from remoting.record_layout import MAGIC_V1, MAGIC_V2
from rocketmq_spark.log.storage import FileRow, GoneError, Storage, file_row

Kind = Literal["dledger", "commitlog"]
Format = Literal["auto", "dledger", "commitlog"]

_FLUSHED_AT: Final = 24
_INT64: Final = struct.Struct(">q")
_WORDS: Final = struct.Struct(">iI")


class NoLogError(Exception):
    """A path holds no log, or its log cannot be read as requested."""


@dataclass(frozen=True, slots=True)
class Log:
    """The files of one log as they were found; `storage` reads them."""

    kind: Kind
    name: str
    """The path of the log's folder; it identifies the log."""
    storage: Storage
    data: FileRow
    index: FileRow | None
    """DLedger's index files."""
    queues: str | None
    """The folder of the consume queues, if it is there."""
    checkpoint: Checkpoint | None
    """DLedger's checkpoint; None when none can be read."""
    begin: LogBegin | None
    """The content of our `epochs` file."""
    flushed_position: int = 0
    """In a plain log: all bytes before it are synced, according to its checkpoint."""

    def read(self, position: int, size_bytes: int) -> bytes:
        """Bytes of one data file. Raises GoneError, OSError."""
        return self.data.read(self.storage, position, size_bytes)


def find_logs(url: str, format_wanted: Format, storage_options: Mapping[str, Any]) -> list[Log]:
    """The logs at one URL or pattern, in the order of their paths; older files of a root first.

    Raises NoLogError when one of the paths holds none.
    """
    storage = Storage(url, storage_options)
    folders = storage.glob()
    if not folders:
        raise NoLogError(f"there is nothing at {url}")
    found = []
    for folder in folders:
        logs = [log for log in _logs_at(storage, folder) if format_wanted in ("auto", log.kind)]
        if not logs:
            wanted = "log" if format_wanted == "auto" else f"log of the format {format_wanted}"
            raise NoLogError(f"there is no {wanted} at {folder}")
        found += logs
    storage.close()
    return found


def _logs_at(storage: Storage, folder: str) -> Iterator[Log]:
    names = storage.list(folder)
    if _row_files(names):
        yield _log_of_files(storage, folder, names)
        return
    if names.get("commitlog") == -1:
        files = storage.list(f"{folder}/commitlog")
        if _row_files(files):
            yield _plain_log(storage, f"{folder}/commitlog", files)
    if names.get("data") == -1 and ("index" in names or _row_files(storage.list(f"{folder}/data"))):
        yield _dledger_log(storage, folder)
    for name in sorted(names):
        if name.startswith("dledger-") and names[name] == -1:
            yield _dledger_log(storage, f"{folder}/{name}")


def _row_files(names: Mapping[str, int]) -> Sequence[int]:
    return file_row("", names).starts


def _log_of_files(storage: Storage, folder: str, names: Mapping[str, int]) -> Log:
    """The log whose data files are in `folder` itself: their first bytes show the format."""
    row = file_row(folder, names)
    for start in row.starts:
        head = _head(storage, row, start)
        first, second = _WORDS.unpack(head) if len(head) == _WORDS.size else (0, 0)
        if second in (MAGIC_V1, MAGIC_V2, FILLER_MAGIC):
            return _plain_log(storage, folder, names)
        if first in (ENTRY_MAGIC, -1):
            return _dledger_log(storage, folder.rpartition("/")[0])
    if folder.rpartition("/")[2] == "data":
        return _dledger_log(storage, folder.rpartition("/")[0])
    return _plain_log(storage, folder, names)


def _head(storage: Storage, row: FileRow, start: int) -> bytes:
    try:
        return row.read(storage, start, _WORDS.size)
    except GoneError:
        return b""


def _dledger_log(storage: Storage, folder: str) -> Log:
    # The checkpoint is read before the files are listed: a running broker writes entries before it counts
    # them in the checkpoint, so every entry that is committed by this checkpoint is in the listed files.
    checkpoint = _checkpoint(storage, folder)
    begin = decode_log_begin(storage.read_small(f"{folder}/epochs"))
    sizes = unseal(storage.read_small(f"{folder}/format")) or {}
    data = file_row(f"{folder}/data", storage.list(f"{folder}/data"), _number(sizes, "dataFileBytes"))
    index_names = storage.list(f"{folder}/index")
    index = file_row(f"{folder}/index", index_names, _number(sizes, "indexFileBytes"))
    return Log(
        kind="dledger",
        name=folder,
        storage=storage,
        data=data,
        index=index if index.starts else None,
        queues=_queues_beside(storage, folder.rpartition("/")[0]),
        checkpoint=checkpoint,
        begin=begin,
    )


def _checkpoint(storage: Storage, folder: str) -> Checkpoint | None:
    """None when none can be read. DLedger in Java deletes its checkpoint before it renames the new one to
    that name (IOUtils.string2File). If it is killed between the two, the previous checkpoint is in
    `checkpoint.bak`. Entries that this one counts as committed still are.
    """
    for name in ("checkpoint", "checkpoint.bak"):
        content = storage.read_small(f"{folder}/{name}")
        checkpoint = decode_checkpoint(content)
        if checkpoint != Checkpoint() or b"committedIndex=-1" in (content or b""):
            return checkpoint
    return None


def _plain_log(storage: Storage, folder: str, names: Mapping[str, int]) -> Log:
    root = folder.rpartition("/")[0]
    page = storage.read_small(f"{root}/checkpoint") or b""
    flushed = _INT64.unpack_from(page, _FLUSHED_AT)[0] if len(page) >= _FLUSHED_AT + 8 else 0
    return Log(
        kind="commitlog",
        name=folder,
        storage=storage,
        data=file_row(folder, names),
        index=None,
        queues=_queues_beside(storage, root),
        checkpoint=None,
        begin=None,
        flushed_position=int(flushed),
    )


def _queues_beside(storage: Storage, root: str) -> str | None:
    folder = f"{root}/consumequeue"
    return folder if storage.list(folder) else None


def _number(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and value > 0 else None
