"""What is pushed is read once, and is one message, for all peers that get the same."""

from dledger.core.config import Config
from dledger.core.epochs import EpochCache
from dledger.core.messages import AppendRequest
from dledger.core.ports import LogReader


class PushCache:
    """Of one leadership. Peers that keep up get the same entries in the same pump."""

    def __init__(self, term: int, config: Config, log: EpochCache, reader: LogReader) -> None:
        self._term = term
        self._bytes_max = config.push_bytes_max
        self._log = log
        self._reader = reader
        self._asked: tuple[int, int, int] | None = None
        self._request: AppendRequest | None = None

    def forget(self) -> None:
        """The log may be another by the next push."""
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
