"""What leaves the core: one Output for each turn, and the Outbox in which the parts of the core collect it.

The host carries out an Output in this order and skips nothing: log_ops into the store (in memory), send_now,
then hard_state and log durable, then send_after_persist, then Node.persisted(). This order is the durability
argument of the whole engine: no promise leaves a node before the write behind it is on its disk (Raft Figure
2, "updated on stable storage before responding to RPCs"). etcd-raft calls the same thing Ready.
"""

from dataclasses import dataclass

from dledger.core.events import Event as Event
from dledger.core.events import RoleChanged as RoleChanged
from dledger.core.messages import Message
from dledger.core.types import EntryRange, HardState, ResponseCode


@dataclass(frozen=True, slots=True)
class Append:
    entries: EntryRange


@dataclass(frozen=True, slots=True)
class TruncateFrom:
    """Drop the entries >= index."""

    index: int


@dataclass(frozen=True, slots=True)
class Reset:
    """Drop everything; the log begins at begin_index, empty, its first entry at begin_position."""

    begin_index: int
    begin_position: int


LogOp = TruncateFrom | Reset | Append


@dataclass(frozen=True, slots=True)
class Envelope:
    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Proposal:
    """The leader's next `count` entries, from first_index on, which the host lays out in the log."""

    first_index: int
    count: int
    term: int

    @property
    def last_index(self) -> int:
        return self.first_index + self.count - 1


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a proposal was refused, and the leader as far as this node knows."""

    code: ResponseCode
    leader_id: str | None


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of one Proposal made by `propose`; there is exactly one for each."""

    first_index: int
    last_index: int
    code: ResponseCode


@dataclass(frozen=True, slots=True)
class ReadDone:
    """The end of one read of `read_index`; there is exactly one for each id. With SUCCESS the host may answer
    once it has applied the entry `index`; otherwise that is NO_INDEX.
    """

    read_id: int
    index: int
    code: ResponseCode


@dataclass(frozen=True, slots=True)
class Output:
    hard_state: HardState | None
    log_ops: tuple[LogOp, ...]
    send_now: tuple[Envelope, ...]
    send_after_persist: tuple[Envelope, ...]
    commit_index: int
    completions: tuple[Completion, ...]
    events: tuple[Event, ...]
    is_healed: bool = False
    """Once hard state and log of this output are durable, the host removes the mark of the impairment, and
    then calls Node.healed()."""
    reads: tuple[ReadDone, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Nothing to do; the commit index may have moved all the same."""
        return not (
            self.hard_state
            or self.log_ops
            or self.send_now
            or self.send_after_persist
            or self.completions
            or self.events
            or self.is_healed
            or self.reads
        )


class Outbox:
    """Collects one Output. All parts of the core write into the same one."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.hard_state: HardState | None = None
        self.log_ops: list[LogOp] = []
        self.now: list[Envelope] = []
        self.after_persist: list[Envelope] = []
        self.completions: list[Completion] = []
        self.events: list[Event] = []
        self.is_healed = False
        self.reads: list[ReadDone] = []

    def send_now(self, to: str, message: Message) -> None:
        """For what promises nothing about this node's disk."""
        self.now.append(Envelope(to, message))

    def send_after_persist(self, to: str, message: Message) -> None:
        """For votes, requests for votes, and everything that says what this node's disk holds."""
        self.after_persist.append(Envelope(to, message))

    @property
    def is_empty(self) -> bool:
        return not (
            self.completions
            or self.now
            or self.after_persist
            or self.log_ops
            or self.events
            or self.hard_state
            or self.is_healed
            or self.reads
        )

    def report(self, event: Event) -> None:
        self.events.append(event)

    def take_log_ops(self) -> list[LogOp]:
        operations, self.log_ops = self.log_ops, []
        return operations

    def take(self, commit_index: int) -> Output:
        output = Output(
            self.hard_state,
            tuple(self.log_ops),
            tuple(self.now),
            tuple(self.after_persist),
            commit_index,
            tuple(self.completions),
            tuple(self.events),
            self.is_healed,
            tuple(self.reads),
        )
        self._clear()
        return output
