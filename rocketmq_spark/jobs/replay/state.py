"""The progress of a replay in one small file, so that a batch is repeated with the same messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import fsspec
import orjson

from rocketmq_spark.errors import JobError
from rocketmq_spark.jobs.archive.manifest import QueueName
from rocketmq_spark.jobs.archive.store import is_local, sync, sync_folder
from rocketmq_spark.jobs.replay.plan import Slice

STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ReplayState:
    """`planned` is the current batch: what each of its tasks sends. It is empty between two batches.

    `what` names source and target: a state file of another replay is refused. `bound` limits what the
    replay sends: the archive's newest batch, or the topic's ranges, when the replay began.
    """

    replay_id: str
    what: Mapping[str, Any]
    bound: Mapping[str, Any]
    batch: int
    positions: Mapping[QueueName, int]
    planned: Sequence[Sequence[Slice]]
    sent: int
    delivery: str = ""
    """What `auto` means in this replay, once decided: a batch is repeated with the same delivery."""


class StateFile:
    """One state file, local or wherever fsspec reaches."""

    def __init__(self, path: str) -> None:
        self._fs, self._path = fsspec.core.url_to_fs(path)
        self.path = path

    def read(self, what: Mapping[str, Any]) -> ReplayState | None:
        """The state, None when there is none yet.

        Raises: JobError when the file is unreadable or of another replay.
        """
        if not self._fs.exists(self._path):
            return None
        try:
            state = parse_state(bytes(self._fs.cat_file(self._path)))
        except (ValueError, KeyError, TypeError) as error:
            raise JobError(f"the state {self.path} is unreadable: {error!r}.") from None
        different = [name for name in what if state.what.get(name) != what[name]]
        if different:
            differences = ", ".join(
                f"{name} {state.what.get(name)!r} there and {what[name]!r} here" for name in different
            )
            raise JobError(
                f"the state {self.path} is of another replay: {differences}. Give another --state."
            )
        return state

    def write(self, state: ReplayState) -> None:
        """Replace the whole file; a local one is synced, so it survives a power failure."""
        folder = self._path.rpartition("/")[0]
        if folder:
            self._fs.makedirs(folder, exist_ok=True)
        if is_local(self._fs):
            _replace(Path(self._path), format_state(state))
        else:
            self._fs.pipe_file(self._path, format_state(state))


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(data)
        sync(file, is_local=True)
    # Synced before the rename: after a power failure the file has the old content or the new one.
    new.replace(path)
    sync_folder(str(path.parent))


def format_state(state: ReplayState) -> bytes:
    """The file's text."""
    return orjson.dumps(
        {
            "state": STATE_VERSION,
            "replay_id": state.replay_id,
            "what": dict(state.what),
            "bound": dict(state.bound),
            "batch": state.batch,
            "positions": [[*queue, offset] for queue, offset in sorted(state.positions.items())],
            "planned": [list(part) for part in state.planned],
            "sent": state.sent,
            "delivery": state.delivery,
        },
        option=orjson.OPT_INDENT_2,
    )


def parse_state(text: bytes) -> ReplayState:
    """The state in a file's text. Raises: ValueError, KeyError, TypeError."""
    fields = orjson.loads(text)
    if fields["state"] != STATE_VERSION:
        raise ValueError(f"version {fields['state']!r}, known is {STATE_VERSION}")
    return ReplayState(
        replay_id=fields["replay_id"],
        what=fields["what"],
        bound=fields["bound"],
        batch=fields["batch"],
        positions={QueueName(*queue): offset for *queue, offset in fields["positions"]},
        planned=tuple(tuple(Slice(**one) for one in part) for part in fields["planned"]),
        sent=fields["sent"],
        delivery=str(fields.get("delivery", "")),
    )
