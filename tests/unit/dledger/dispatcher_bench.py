"""A dispatcher of one peer over a log of which only terms and places matter."""

from collections.abc import Sequence
from typing import Any

from dledger.core.config import Config
from dledger.core.dispatcher import EntryDispatcher, PushCache
from dledger.core.epochs import EpochCache
from dledger.core.flow_control import CatchUp
from dledger.core.membership import Configuration, ConfigurationEntry, ConfigurationLog, first_configuration
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    CompareRequest,
    CompareResponse,
    Message,
)
from dledger.core.output import Outbox
from dledger.core.types import EntryRange, Epoch, LogState, ResponseCode

TERM = 9
ENTRY_BYTES = 10


class TermReader:
    """A log of ten bytes an entry; only terms and places matter."""

    def __init__(self, log: EpochCache) -> None:
        self.log = log
        self.entries_max = 1_000

    @property
    def end_position(self) -> int:
        return (self.log.end_index + 1) * ENTRY_BYTES

    def position_of(self, index: int) -> int:
        assert self.log.begin_index <= index <= self.log.end_index, index
        return index * ENTRY_BYTES

    def read_range(self, first_index: int, last_index: int, bytes_max: int) -> EntryRange:
        term = self.log.term_at(first_index)
        last_index = min(last_index, first_index + max(1, bytes_max // ENTRY_BYTES) - 1)
        last_index = min(last_index, self.log.end_index_for(term)[1], first_index + self.entries_max - 1)
        size_bytes = (last_index - first_index + 1) * ENTRY_BYTES
        return EntryRange(first_index, last_index, term, bytes(size_bytes))

    def configurations_in(self, entries: EntryRange) -> Sequence[ConfigurationEntry]:
        return ()

    def continues(self, entries: EntryRange, after: EntryRange | None) -> bool:
        return True


class Bench:
    """A dispatcher to n1 over a log of the given terms."""

    def __init__(
        self, *terms: int, begin_index: int = 0, prev_term: int | None = None, **limits: Any
    ) -> None:
        epochs = tuple(
            Epoch(term, begin_index + at) for at, term in enumerate(terms) if at == 0 or terms[at - 1] != term
        )
        self.log = EpochCache(LogState(begin_index, begin_index + len(terms) - 1, epochs, -1))
        if prev_term is not None:
            self.log.prev_term = prev_term
        self.outbox = Outbox()
        config = Config("g", "n0", ("n0", "n1"), **limits)
        self.reader = TermReader(self.log)
        self.push_cache = PushCache(TERM, config, self.log, self.reader)
        members = ConfigurationLog("n0", first_configuration(Configuration.of_voters(config.peers)))
        catch_up = CatchUp(config.catch_up_bytes_per_s_min)
        self.dispatcher = EntryDispatcher(
            "n1", TERM, config, self.log, members, self.reader, self.outbox, catch_up, self.push_cache
        )
        self.now_ms = 0
        self.commit_index = -1
        self.is_optional = False

    def pump(self, wait_ms: int = 0) -> list[Message]:
        """What it sends after so long."""
        self.now_ms += wait_ms
        self.push_cache.clear()
        self.dispatcher.pump(self.now_ms, self.commit_index, self.is_optional)
        self.dispatcher.check_invariants()
        output = self.outbox.take(self.commit_index)
        return [envelope.message for envelope in output.send_now]

    def answer_compare(self, code: str, begin: int, end: int, end_term: int, *conflict: int) -> list[Message]:
        """The peer's answer to the compare that was sent last, and what follows."""
        self.dispatcher.on_compare_response(
            CompareResponse(
                TERM,
                ResponseCode[code],
                self.compare_index,
                begin,
                end,
                end_term,
                *(conflict or (end, end_term)),
            )
        )
        return self.pump()

    def start(self) -> None:
        """COMPARE goes out."""
        (compare,) = self.pump()
        assert isinstance(compare, CompareRequest)
        self.compare_index = compare.compare_index

    def match(self, index: int) -> list[Message]:
        """COMPARE finds the peer's log to end there, as ours."""
        self.start()
        return self.answer_compare("SUCCESS", 0, index, self.log.term_at(index))

    def answer_append(self, code: str, first_index: int, last_index: int) -> list[Message]:
        response = AppendResponse(TERM, ResponseCode[code], first_index, last_index, last_index)
        self.dispatcher.on_append_response(response)
        return self.pump()


def ranges(messages: list[Message]) -> list[tuple[int, int]]:
    return [
        (message.entries.first_index, message.entries.last_index)
        for message in messages
        if isinstance(message, AppendRequest)
    ]
