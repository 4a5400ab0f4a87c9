"""The folder of a node's timer index: its runs and its checkpoint."""

import logging
from contextlib import suppress
from pathlib import Path

from broker.timer.checkpoint import (
    CHECKPOINT_BYTES_MAX,
    Checkpoint,
    CheckpointError,
    decode_checkpoint,
    encode_checkpoint,
)
from broker.timer.runs import DamagedRunError, Run, RunWriter
from dledger.fs import Fs, read_file

FOLDER = "timer"
_CHECKPOINT = "checkpoint"
_SIDE_FILE = "checkpoint.tmp"
_RUN_PREFIX = "run-"

logger = logging.getLogger(__name__)


class RunStore:
    """Everything raises OSError."""

    def __init__(self, fs: Fs, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._next_number = 0

    def load(self) -> tuple[Checkpoint, list[Run]] | None:
        """What was saved; None when there is nothing, or nothing of use. Deletes all other files."""
        names = set(self._fs.list(self._directory))
        data = read_file(self._fs, self._directory / _CHECKPOINT, CHECKPOINT_BYTES_MAX)
        found: tuple[Checkpoint, list[Run]] | None = None
        if data is not None:
            try:
                found = self._checked(decode_checkpoint(data), names)
            except (CheckpointError, DamagedRunError) as error:
                logger.warning("the timer index is built from the log again: %s", error)
        runs = found[1] if found is not None else []
        kept = {_name(run.extent.number) for run in runs} | ({_CHECKPOINT} if found is not None else set())
        for name in names - kept:
            self._fs.delete(self._directory / name)
        self._next_number = max((run.extent.number + 1 for run in runs), default=0)
        return found

    def new_run(self) -> RunWriter:
        self._fs.make_directory(self._directory, is_durable=False)
        number = self._next_number
        self._next_number += 1
        return RunWriter(self._fs, self._directory / _name(number), number)

    def save(self, checkpoint: Checkpoint) -> None:
        self._fs.make_directory(self._directory, is_durable=False)
        side_file = self._directory / _SIDE_FILE
        fd = self._fs.open(side_file)
        try:
            self._fs.set_size(fd, 0)
            self._fs.pwrite(fd, [encode_checkpoint(checkpoint)], 0)
        finally:
            self._fs.close(fd)
        self._fs.rename(side_file, self._directory / _CHECKPOINT)

    def clear(self) -> None:
        """Delete everything, as far as it can be."""
        for name in self._fs.list(self._directory):
            with suppress(FileNotFoundError):
                self._fs.delete(self._directory / name)

    def _checked(self, checkpoint: Checkpoint, names: set[str]) -> tuple[Checkpoint, list[Run]]:
        runs = []
        for extent in checkpoint.runs:
            name = _name(extent.number)
            if name not in names:
                raise CheckpointError(f"{name} is missing")
            run = Run(self._fs, self._directory / name, extent)
            run.verify()
            runs.append(run)
        return checkpoint, runs


def _name(number: int) -> str:
    return f"{_RUN_PREFIX}{number:012d}"
