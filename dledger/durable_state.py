"""The durable state of a node: term and vote, and the mark that some of it may be lost. Each is on the disk
before any message leaves that depends on it.

Raft (section 5.1, Figure 2: persistent state) lets a node answer only after term and vote are on stable
storage, since a vote that was forgotten can be given twice in one term, to two candidates.

Two small files beside the log:

    currterm   term and vote, in the properties file of DLedger's MemberState, the configurations of the log,
               and the generation of the group, unless it is 0. Java writes the first two keys without fsync;
               those added here (`generation`, `members`, `formatVersion`, `crc32`) are ignored by its reader.
    impaired   the node may have forgotten a promise. One line of JSON, then `crc32=`.

Each is replaced in four steps (`dledger.fs.replace_file`): write a temporary file, fsync it, rename it over
the old one, fsync the directory. A crash leaves the old content or the new, never neither.
"""

import json
import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import index
from pathlib import Path

from dledger.codec import NUMBER_MAX
from dledger.core.config import Config
from dledger.core.epochs import EpochCache
from dledger.core.membership import (
    Configuration,
    ConfigurationEntry,
    ConfigurationHistory,
    decode_configuration,
    encode_configuration,
    first_configuration,
)
from dledger.core.node import recovered_configurations
from dledger.core.ports import Rng
from dledger.core.types import NO_TERM, HardState, Impairment, LogState
from dledger.environment import Environment
from dledger.fs import Fs, OsFs, read_replaced_file, replace_file

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
VOTE_FILE_NAME = "currterm"
MARK_FILE_NAME = "impaired"
REPAIR_ID_MAX = (1 << 62) - 1
UNMARKED = -1
"""The repair id of an impairment that is not marked durably yet."""
_VOTE_FILE_BYTES_MAX = 16 * 1024 * 1024
"""Enough for ten thousand changes of the members within the time that the log is kept."""
_MARK_FILE_BYTES_MAX = 8192
_REASON_CHARACTERS_MAX = 1024
_DAMAGED_SUFFIX = ".damaged"


class CorruptHardStateError(ValueError):
    """The vote file does not hold what was written: the node must not vote as if it had not voted yet."""


class HardStateFile:
    """Reads and replaces `<folder>/currterm`. Not thread-safe: one caller, the node's writer thread."""

    def __init__(self, folder: Path, fs: Fs | None = None) -> None:
        self._fs = fs or OsFs()
        self._folder = folder
        self._path = folder / VOTE_FILE_NAME

    def exists(self) -> bool:
        return VOTE_FILE_NAME in self._fs.list(self._folder)

    def load(self) -> HardState:
        """The last saved state; term 0 and no vote when there is no file. It is durable when this returns:
        the node repeats a vote that it found without saving it again.

        Raises CorruptHardStateError when the content is damaged or of an unknown version, OSError.
        """
        content = read_replaced_file(self._fs, self._path, _VOTE_FILE_BYTES_MAX)
        if content is None:
            return HardState(term=0, voted_for=None)
        return _parse_vote(content, self._path)

    def save(self, state: HardState) -> None:
        """Durable when it returns. Raises OSError; the node must stop then."""
        replace_file(self._fs, self._path, _format_vote(state))


def _format_vote(state: HardState) -> bytes:
    lines = f"currTerm={state.term}\nvoteLeader={state.voted_for or ''}\nformatVersion={FORMAT_VERSION}\n"
    if state.generation > 0:
        lines += f"generation={state.generation}\n"
    history = state.configurations
    if history is not None:
        lists = [[_entry_to_json(entry) for entry in part] for part in (history.entries, history.dropped)]
        lines += f"members={json.dumps(lists, separators=(',', ':'))}\n"
    body = lines.encode()
    return body + b"crc32=%d\n" % zlib.crc32(body)


def _entry_to_json(entry: ConfigurationEntry) -> list[object]:
    return [entry.index, entry.term, encode_configuration(entry.configuration).decode()]


def _parse_history(text: str) -> ConfigurationHistory:
    """Raises KeyError, TypeError, ValueError."""
    entries, dropped = (
        tuple(
            ConfigurationEntry(index(at), index(term), decode_configuration(content.encode()))
            for at, term, content in part
        )
        for part in json.loads(text)
    )
    return ConfigurationHistory(entries, dropped)


def _parse_vote(content: bytes, path: Path) -> HardState:
    body, separator, checksum = content.rpartition(b"crc32=")
    if not separator or checksum.strip() != b"%d" % zlib.crc32(body):
        raise CorruptHardStateError(f"{path}: the checksum does not match, so the last vote is unknown")
    values = dict(line.partition("=")[::2] for line in body.decode(errors="replace").splitlines())
    if values.get("formatVersion") != str(FORMAT_VERSION):
        raise CorruptHardStateError(f"{path}: format version {values.get('formatVersion')} is not known here")
    try:
        history = _parse_history(values["members"]) if "members" in values else None
        generation = int(values.get("generation", 0))
        state = HardState(int(values["currTerm"]), values["voteLeader"] or None, history, generation)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CorruptHardStateError(f"{path}: no term and vote: {error!r}") from None
    for name, number in (("term", state.term), ("generation", state.generation)):
        if not 0 <= number <= NUMBER_MAX:
            # A node that took part with it could never be followed: its peers refuse such numbers.
            raise CorruptHardStateError(f"{path}: no group reaches {name} {number}")
    return state


class ImpairmentFile:
    """Reads, writes and removes `<folder>/impaired`. One caller at a time.

    The mark is on the disk before anything that was lost is overwritten, and is removed when the node is
    healed.
    """

    def __init__(self, fs: Fs, folder: Path, rng: Rng) -> None:
        """`rng` makes the repair ids: with a reused id, answers to an earlier impairment would count."""
        self._fs = fs
        self._folder = folder
        self._path = folder / MARK_FILE_NAME
        self._rng = rng

    def load(self) -> Impairment | None:
        """None when there is no mark. A damaged mark says that everything may be lost. Raises OSError."""
        content = read_replaced_file(self._fs, self._path, _MARK_FILE_BYTES_MAX)
        if content is None:
            return None
        return _parse_mark(content) or Impairment(self._new_id(), True, f"{MARK_FILE_NAME} is damaged")

    def mark(self, reason: str, is_vote_lost: bool) -> Impairment:
        """Durable when it returns. A vote that is lost by an earlier mark stays lost. Raises OSError."""
        earlier = self.load()
        is_vote_lost = is_vote_lost or (earlier is not None and earlier.is_vote_lost)
        impairment = Impairment(self._new_id(), is_vote_lost, reason[:_REASON_CHARACTERS_MAX])
        replace_file(self._fs, self._path, _format_mark(impairment))
        return impairment

    def remove(self) -> None:
        """Durable when it returns. Raises OSError."""
        # The directory also when there is no file: an earlier process may have deleted it without the sync.
        if MARK_FILE_NAME in self._fs.list(self._folder):
            self._fs.delete(self._path)
        self._fs.fsync_directory(self._folder)

    def _new_id(self) -> int:
        return self._rng.between(0, REPAIR_ID_MAX)


def _format_mark(impairment: Impairment) -> bytes:
    fields = {
        "version": FORMAT_VERSION,
        "repairId": impairment.repair_id,
        "isVoteLost": impairment.is_vote_lost,
        "reason": impairment.reason,
    }
    body = json.dumps(fields).encode() + b"\n"
    return body + b"crc32=%d\n" % zlib.crc32(body)


def _parse_mark(content: bytes) -> Impairment | None:
    """None for what this program did not write."""
    body, separator, checksum = content.rpartition(b"crc32=")
    if not separator or checksum != b"%d\n" % zlib.crc32(body):
        return None
    try:
        fields = json.loads(body)
        if fields["version"] != FORMAT_VERSION:
            return None
        return Impairment(index(fields["repairId"]), bool(fields["isVoteLost"]), str(fields["reason"]))
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


class DurableState:
    """Both files of one node. `load` runs before the node starts; `save` and `heal` on the writer thread."""

    def __init__(
        self, config: Config, folder: Path, environment: Environment, first: Configuration | None = None
    ) -> None:
        """`first`: the members before the log names others; None: the configured peers."""
        self._first = first or Configuration.of_voters(config.peers)
        self._config = config
        self._folder = folder
        self._fs = environment.fs
        self._vote = HardStateFile(folder, environment.fs)
        self._mark = ImpairmentFile(environment.fs, folder, environment)

    def load(
        self, log: LogState, find_configurations: Callable[[], Sequence[ConfigurationEntry]] = tuple
    ) -> tuple[HardState, Impairment | None]:
        """Marks the node durably when term and vote are lost, or may be.

        An empty disk may belong to a new member or may have replaced a full one: both look the same, so both
        start impaired. `find_configurations` reads the whole log for them, where the file that has them is
        lost. Raises CorruptHardStateError in a group of one, which has no peer that knows its term; OSError.
        """
        state, reason, failure = self._read(log, find_configurations)
        last_term = log.epochs[-1].term if log.epochs else NO_TERM
        newest = recovered_configurations(state, EpochCache(log), self._first)[-1].configuration
        if newest.voters == (self._config.self_id,) and not self._is_filled_up(state):
            if failure is not None:
                raise failure
            return replace(state, term=max(state.term, last_term)), None
        if reason is None:
            return state, self._mark.load()
        return replace(state, term=last_term, voted_for=None), self._lose_vote(reason)

    def _is_filled_up(self, state: HardState) -> bool:
        """Whether a node whose log says that it is the only voter gets that log from others, who are its
        group by now. It lost its vote and gave none since; who was made the only voter (`decide`) has voted
        for itself, and its mark has no effect.
        """
        mark = self._mark.load()
        return mark is not None and mark.is_vote_lost and state.voted_for != self._config.self_id

    def inspect(
        self, log: LogState, find_configurations: Callable[[], Sequence[ConfigurationEntry]] = tuple
    ) -> tuple[HardState, Impairment | None]:
        """As `load`, with nothing written: a mark that is not on the disk has no valid repair id. Raises
        OSError.
        """
        state, reason, _ = self._read(log, find_configurations)
        if reason is not None:
            return state, Impairment(UNMARKED, True, reason)
        return state, self._mark.load()

    def _read(
        self, log: LogState, find_configurations: Callable[[], Sequence[ConfigurationEntry]]
    ) -> tuple[HardState, str | None, CorruptHardStateError | None]:
        """The state, and why it is not what this node promised last."""
        last_term = log.epochs[-1].term if log.epochs else NO_TERM
        failure: CorruptHardStateError | None = None
        state = HardState(NO_TERM, None)
        try:
            state = self._vote.load()
            reason = self._doubt(state, log, last_term)
        except CorruptHardStateError as error:
            failure, reason = error, str(error)
        if reason is not None:
            state = replace(state, configurations=self._found(find_configurations()))
        return state, reason, failure

    def decide(self, state: HardState, impairment: Impairment | None, append: Callable[[], None]) -> None:
        """Saves what an operator has decided: `append` makes the log's entry for it durable, with which it
        is in force. Until then a node whose promises are in doubt is marked, and the decision has no
        effect; after it the node is the only voter, and the mark has none. Raises OSError.
        """
        if impairment is not None and impairment.repair_id == UNMARKED:
            self._lose_vote(impairment.reason)
        self._vote.save(state)
        append()
        self._mark.remove()

    def _doubt(self, state: HardState, log: LogState, last_term: int) -> str | None:
        """Why term and vote are not those that this node had last."""
        if not self._vote.exists():
            return "there is no vote file" if log.end_index >= 0 else "its disk is empty"
        # A node saves a term before it stores entries of it (DiskWriter._write): the file is an old copy.
        if state.term < last_term:
            return f"the vote file says term {state.term}, the log {last_term}"
        return None

    def _found(self, entries: Sequence[ConfigurationEntry]) -> ConfigurationHistory | None:
        return ConfigurationHistory((*first_configuration(self._first), *entries)) if entries else None

    def _lose_vote(self, reason: str) -> Impairment:
        logger.warning("[%s] term and vote are not known: %s", self._config.self_id, reason)
        # The mark first: were the damaged file moved away before, a crash in between would leave a node that
        # looks new, with a reason that no longer says what happened.
        impairment = self._mark.mark(reason, is_vote_lost=True)
        self._keep_damaged_vote()
        return impairment

    def _keep_damaged_vote(self) -> None:
        """Renames the damaged file, for an operator who searches for the cause."""
        if self._vote.exists():
            path = self._folder / VOTE_FILE_NAME
            self._fs.rename(path, path.with_name(VOTE_FILE_NAME + _DAMAGED_SUFFIX))
            self._fs.fsync_directory(self._folder)

    def save(self, state: HardState) -> None:
        """Durable when it returns. Raises OSError; the node must stop then."""
        self._vote.save(state)

    def heal(self) -> None:
        """The mark is removed, durably, when it returns. Raises OSError."""
        self._mark.remove()
