"""Which versions the files of a node's store have, and whether this release reads them. Only reads; a store
that a running node uses may be looked at, too.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from broker.state.snapshot import SNAPSHOT_VERSION
from broker.timer.index_store import VERSION as TIMER_VERSION
from commitlog.checkpoint import EPOCHS_VERSION, FORMAT_VERSION, MEMBERS_FORMAT_VERSION
from commitlog.consume_queues import CHECKPOINT_VERSION as QUEUES_VERSION
from commitlog.key_segment import VERSION as KEYS_VERSION
from dledger.durable_state import FORMAT_VERSION as VOTE_VERSION
from ledgermq.errors import UserError

_HEAD_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of file: where it is below the store, how its version is read, and which this release reads."""

    pattern: str
    version: Callable[[bytes], int]
    known: tuple[int, ...]
    is_derived: bool = False
    """Built again from the log when its version is not known."""


def _json_version(head: bytes) -> int:
    return int(orjson.loads(head.partition(b"\n")[0])["version"])


def _vote_version(head: bytes) -> int:
    fields = dict(line.split(b"=", 1) for line in head.splitlines() if b"=" in line)
    return int(fields[b"formatVersion"])


def _version_behind_magic(layout: str) -> Callable[[bytes], int]:
    def read(head: bytes) -> int:
        return int(struct.unpack_from(layout, head, 8)[0])

    return read


_KINDS: Final = (
    _Kind("dledger-*/format", _json_version, (FORMAT_VERSION, MEMBERS_FORMAT_VERSION)),
    _Kind("dledger-*/currterm", _vote_version, (VOTE_VERSION,)),
    _Kind("dledger-*/epochs", _json_version, (EPOCHS_VERSION,), is_derived=True),
    _Kind("consumequeue/.checkpoint", _json_version, (2, QUEUES_VERSION), is_derived=True),
    _Kind("keyindex/*", _version_behind_magic(">H"), (KEYS_VERSION,), is_derived=True),
    _Kind("state/snapshot", _version_behind_magic(">I"), (SNAPSHOT_VERSION,), is_derived=True),
    _Kind("timer/checkpoint", _version_behind_magic(">I"), (TIMER_VERSION,), is_derived=True),
)


def read_store(folder: Path) -> dict[str, Any]:
    """What was found, as `ledgermq upgrade-check --json` shows it.

    Raises: UserError when there is no store.
    """
    if not any(folder.glob("dledger-*")) and not (folder / "commitlog").is_dir():
        raise UserError(
            f"{folder} is no store of a node: it has no folder dledger-… "
            "(storePathRootDir of its broker.toml)."
        )
    files = [file for kind in _KINDS for file in _files(folder, kind)]
    unreadable = [file["file"] for file in files if not file["isKnown"]]
    summary = f"this release does not read {', '.join(unreadable)}" if unreadable else "this release reads it"
    return {"folder": str(folder), "isReadable": not unreadable, "summary": summary, "files": files}


def _files(folder: Path, kind: _Kind) -> Iterator[dict[str, Any]]:
    """One row for each version that the files of a kind have: the first file that has it."""
    seen: set[int | None] = set()
    for path in sorted(folder.glob(kind.pattern)):
        version = _version(path, kind)
        if version not in seen:
            seen.add(version)
            yield {
                "file": str(path.relative_to(folder)),
                "version": version,
                "known": list(kind.known),
                "isKnown": version in kind.known or kind.is_derived,
                "isDerived": kind.is_derived,
            }


def _version(path: Path, kind: _Kind) -> int | None:
    """None: it cannot be read; the node says at its start what is wrong with it."""
    try:
        with path.open("rb") as file:
            return kind.version(file.read(_HEAD_BYTES))
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None
