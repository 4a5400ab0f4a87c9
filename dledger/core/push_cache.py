"""The cache of the last push: a range that several peers get is read, checked and encoded once."""

from dledger.core.config import Config
from dledger.core.epochs import EpochCache
from dledger.core.messages import AppendRequest
from dledger.core.ports import LogReader


class PushCache:
    """The last range pushed, in one leadership.

    One range is enough: peers that keep up get the same entries within the same pump, one after the other.
    """

    def __init__(self, term: int, config: Config, log: EpochCache, reader: LogReader) -> None:
        self._term = term
        self._bytes_max = config.push_bytes_max
        self._log = log
        self._reader = reader
        self._asked: tuple[int, int, int] | None = None
        self._request: AppendRequest | None = None

    def clear(self) -> None:
        """Called after each pump: the range may be longer at the next one, and its bytes must not be kept
        alive.
        """
        self._asked = self._request = None

    def request(self, first_index: int, last_index: int, commit_index: int) -> AppendRequest:
        """As many of these entries as fit into one push. Raises DamagedEntryError."""
        asked = first_index, last_index, commit_index
        if self._request is None or asked != self._asked:
            entries = self._reader.read_range(first_index, last_index, self._bytes_max)
            assert entries.first_index == first_index <= entries.last_index <= last_index, (
                f"asked for {first_index}..{last_index}, read {entries.first_index}..{entries.last_index}"
            )
            prev_term = self._log.term_at(first_index - 1)
            self._request = AppendRequest(self._term, commit_index, prev_term, entries)
            self._asked = asked
        return self._request
