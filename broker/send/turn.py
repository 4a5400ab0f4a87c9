"""The sends that are written to the log with one put, in order, and the handling of each one's result."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter

from broker.send.admission import Admitted
from broker.send.sequencing import Flight
from commitlog.log import PutResult
from commitlog.record import Message
from remoting.command import RemotingCommand
from remoting.connection import Connection


@dataclass(slots=True)
class PlainRun:
    """Sends of one connection, one message each: those of `requests` from `first` to `end`."""

    connection: Connection
    requests: list[RemotingCommand]
    first: int
    end: int

    @property
    def message_count(self) -> int:
        return self.end - self.first

    def sends(self) -> Iterator[tuple[Connection, RemotingCommand]]:
        return ((self.connection, request) for request in self.requests[self.first : self.end])


@dataclass(slots=True)
class SingleSend:
    """One send, a batch perhaps."""

    connection: Connection
    request: RemotingCommand
    admitted: Admitted

    @property
    def message_count(self) -> int:
        return len(self.admitted.messages)

    def sends(self) -> Iterator[tuple[Connection, RemotingCommand]]:
        yield self.connection, self.request


@dataclass(slots=True)
class SequencedSend(SingleSend):
    """`repeats`: number of messages of the request that were in the log already; they are not among the
    admitted.
    """

    repeats: int


@dataclass(slots=True)
class Turn:
    """`messages` are those of all parts, in order; `body_bytes` those of their bodies; `flights` the appends
    of sequenced sends; `begun_s` and `laid_out_s` are moments of the performance counter.
    """

    parts: list[PlainRun | SingleSend] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    body_bytes: int = 0
    result: PutResult | None = None
    flights: list[Flight] = field(default_factory=list)
    begun_s: float = field(default_factory=perf_counter)
    laid_out_s: float = 0.0

    def add(self, part: "SingleSend") -> None:
        messages = part.admitted.messages
        self.parts.append(part)
        self.messages += messages
        self.body_bytes += sum(len(message.body) for message in messages)

    def sends(self) -> Iterator[tuple[Connection, RemotingCommand]]:
        return (send for part in self.parts for send in part.sends())
