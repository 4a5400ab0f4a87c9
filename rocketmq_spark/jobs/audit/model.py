"""What an audit's tasks find and its driver judges. Pure."""

from dataclasses import dataclass, field, replace
from typing import Final

from rocketmq_spark.log.discovery import Log
from rocketmq_spark.log.entries import LogRange

QueueKey = tuple[str, int]
"""(topic, queue id)."""
PROBLEMS_KEPT_MAX: Final = 100
"""Maximum kept of one range; all are counted."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One store under audit: it must hold `begin` … `end_position`."""

    name: str
    log: Log
    begin_position: int
    begin_index: int
    end_position: int
    last_index: int
    """Index of the last committed entry; UNKNOWN in a plain log."""

    def part_of(self, cell: LogRange) -> LogRange | None:
        """The part of a range that the replica must hold, or None."""
        first = max(cell.first_position, self.begin_position)
        end = min(cell.end_position, self.end_position)
        if first >= end:
            return None
        index = cell.first_index if first == cell.first_position else self.begin_index
        last = cell.last_index if end == cell.end_position else self.last_index
        return replace(cell, first_position=first, first_index=index, end_position=end, last_index=last)


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault that the audit found. `field` names the field of the entry, where one can be named.

    kind: divergence, corrupt, missing, index, blank, term, offset, queue.
    """

    kind: str
    replica: str
    position: int
    index: int
    field: str
    detail: str


@dataclass(slots=True)
class QueueRun:
    """Consecutive messages of one queue, by offset and by position."""

    first_offset: int
    next_offset: int
    first_position: int
    last_position: int
    messages: int


@dataclass(frozen=True, slots=True)
class QueueUnits:
    """How a replica's consume queue holds the messages of a range."""

    replica: str
    key: QueueKey
    present: int
    absent: int
    first_absent: int
    """Offset of the first unit that is not written; UNKNOWN when all are."""
    last_present: int
    superseded: int
    """Units that point to a later message: the topic was deleted and created again."""


@dataclass(slots=True)
class RangeResult:
    """What one task found in one range."""

    cell: LogRange
    entries: int = 0
    size_bytes: int = 0
    sha256: str = ""
    """Of the entries back to back, as most replicas hold them."""
    states: dict[str, str] = field(default_factory=dict)
    """By replica: same, different, partial (holds a part, the same) or absent."""
    epochs: list[tuple[int, int, int]] = field(default_factory=list)
    """(term, index, position) of the first entry of each term in the range."""
    runs: dict[QueueKey, list[QueueRun]] = field(default_factory=dict)
    """More than one run where the offsets do not continue."""
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0
    queue_units: list[QueueUnits] = field(default_factory=list)

    def add(self, problem: Problem) -> None:
        """Keep the first PROBLEMS_KEPT_MAX, count all."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_KEPT_MAX:
            self.problems.append(problem)
