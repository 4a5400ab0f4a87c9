"""What a node has promised, as its disk knows it: term and vote, and whether that is all it promised."""

import logging
from pathlib import Path

from dledger.core.config import Config
from dledger.core.types import NO_TERM, HardState, Impairment, LogState
from dledger.environment import Environment
from dledger.hard_state import FILE_NAME, CorruptHardStateError, HardStateFile
from dledger.impairment import ImpairmentFile

logger = logging.getLogger(__name__)

_DAMAGED_SUFFIX = ".damaged"


class Promises:
    """Vote file and mark of one node. `load` before the node starts; the rest on the writer thread."""

    def __init__(self, config: Config, folder: Path, environment: Environment) -> None:
        self._config = config
        self._folder = folder
        self._fs = environment.fs
        self._vote = HardStateFile(folder, environment.fs)
        self._mark = ImpairmentFile(environment.fs, folder, environment)

    def load(self, log: LogState) -> tuple[HardState, Impairment | None]:
        """Marks the node durably when term and vote are lost, or may be.

        An empty disk may belong to a new member or be one that was put in place of another: both look the
        same, so both begin impaired. Raises CorruptHardStateError in a group of one, which nobody can tell
        its term; OSError.
        """
        last_term = log.epochs[-1].term if log.epochs else NO_TERM
        reason: str | None = None
        try:
            state = self._vote.load()
            if not self._vote.exists():
                reason = "there is no vote file" if log.end_index >= 0 else "its disk is empty"
            elif state.term < last_term:
                reason = f"the vote file says term {state.term}, the log {last_term}"
        except CorruptHardStateError as error:
            if not self._config.others:
                raise
            state, reason = HardState(NO_TERM, None), str(error)
        if not self._config.others:
            return HardState(max(state.term, last_term), state.voted_for), None
        if reason is None:
            return state, self._mark.load()
        logger.warning("[%s] term and vote are not known: %s", self._config.self_id, reason)
        impairment = self._mark.mark(reason, is_vote_lost=True)
        self._put_aside()
        return HardState(last_term, None), impairment

    def _put_aside(self) -> None:
        """What is wrong is kept for whoever looks for the cause; the mark stands already."""
        if self._vote.exists():
            path = self._folder / FILE_NAME
            self._fs.rename(path, path.with_name(FILE_NAME + _DAMAGED_SUFFIX))
            self._fs.fsync_directory(self._folder)

    def save(self, state: HardState) -> None:
        """Durable when it returns. Raises OSError; the node must stop then."""
        self._vote.save(state)

    def heal(self) -> None:
        """The mark is gone, durably, when it returns. Raises OSError."""
        self._mark.remove()
