"""The words for what a history shows, which of them are faults, and the report.

The words are those of Maelstrom's kafka workload and of Jepsen's Redpanda analysis; `G0` and `G1c`, about
cycles of transactions, have no counterpart here. Delivery is at least once, and that decides what is allowed:

* A producer that tries again after a lost answer may store its message twice. A value at more places than its
  send had tries is `duplicate`, a fault; at no more places than tries it is `repeated`, which is allowed
  unless the broker is said to tell repeated tries apart (`Rules.is_deduplicated`).
* A consumer that begins anew (assign, seek, crash) may read what it or another of its group has read before.
  Within one assignment it may not.
* What was acknowledged and is read by nobody is a `lost-write` if something behind it was read, or if the
  queue was read to its end. Otherwise nobody may have asked yet: `unseen`, allowed.
* A send of unknown outcome may be there or not. A read of it settles that: if it is not in a later reading of
  the whole queue, the read was a `dirty-read`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from tests.histories.operations import Queue

KEPT_MAX = 20
"""Findings of one word that a report keeps; all are counted."""


class Word(StrEnum):
    """What can be found."""

    LOST_WRITE = "lost-write"
    """Acknowledged, and not there: below something that was read, or in a reading of the whole queue."""
    UNSEEN = "unseen"
    """Acknowledged, read by nobody, and nobody read anything behind it."""
    DUPLICATE = "duplicate"
    """One value at more places than it was sent."""
    REPEATED = "repeated"
    """One value at several places, not more than the producer tried."""
    INCONSISTENT_OFFSETS = "inconsistent-offsets"
    """Two values at one offset of a queue, by what sends and polls were told."""
    ABORTED_READ = "aborted-read"
    """A value was read whose send definitely failed (G1a)."""
    DIRTY_READ = "dirty-read"
    """A value was read that a later reading of the whole queue has no longer: it was not committed."""
    UNKNOWN_VALUE = "unknown-value"
    """A value was read that nobody sent."""
    GAP = "gap"
    """An offset at which nobody ever saw a value, between two at which values are."""
    POLL_SKIP = "poll-skip"
    """A consumer's poll began behind values that it had not got."""
    INT_POLL_SKIP = "int-poll-skip"
    """The same within one poll."""
    NONMONOTONIC_POLL = "nonmonotonic-poll"
    """A consumer's poll gave what the same consumer was past already, or sent it back."""
    INT_NONMONOTONIC_POLL = "int-nonmonotonic-poll"
    """The same within one poll."""
    NONMONOTONIC_SEND = "nonmonotonic-send"
    """A message stands before one that was acknowledged before it was sent."""
    INT_NONMONOTONIC_SEND = "int-nonmonotonic-send"
    """The messages of a batch stand in another order."""
    INT_SEND_SKIP = "int-send-skip"
    """The messages of a batch do not stand side by side."""
    STALE_OFFSET = "stale-offset"
    """A group's offset was fetched that acknowledged commits had replaced before the fetch began."""
    UNKNOWN_OFFSET = "unknown-offset"
    """A group's offset was fetched that nobody committed."""


ALLOWED = frozenset({Word.UNSEEN, Word.REPEATED})


@dataclass(frozen=True, slots=True)
class Rules:
    """What the history's system promises. `may_expire`: retention removes messages at the front of queues."""

    is_deduplicated: bool = False
    may_expire: bool = False

    def is_fault(self, word: Word) -> bool:
        """The one place where that is decided."""
        if word is Word.REPEATED:
            return self.is_deduplicated
        return word not in ALLOWED


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found; `operations` are numbers of lines of the history, from 0."""

    word: Word
    where: str
    text: str
    operations: tuple[int, ...]

    def __str__(self) -> str:
        numbers = ", ".join(f"#{number}" for number in self.operations)
        return f"{self.word} in {self.where}: {self.text} ({numbers})"


@dataclass(slots=True)
class Report:
    """What was found in a history, and how much of what was looked at."""

    rules: Rules
    operations: Counter[str] = field(default_factory=Counter)
    """By kind and outcome: `send ok`, `poll info` …; `values acknowledged`, `values read`."""
    counts: Counter[Word] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, word: Word, where: Queue | str, text: str, operations: Iterable[int | None]) -> None:
        self.counts[word] += 1
        if self.counts[word] <= KEPT_MAX:
            numbers = tuple(sorted({number for number in operations if number is not None}))
            self.findings.append(Finding(word, str(where), text, numbers))

    @property
    def faults(self) -> list[Finding]:
        return [finding for finding in self.findings if self.rules.is_fault(finding.word)]

    @property
    def is_clean(self) -> bool:
        return not any(self.rules.is_fault(word) for word in self.counts)

    def __str__(self) -> str:
        done = ", ".join(f"{count} {what}" for what, count in sorted(self.operations.items()))
        found = ", ".join(
            f"{count} {word}{'' if self.rules.is_fault(word) else ' (allowed)'}"
            for word, count in sorted(self.counts.items())
        )
        lines = [f"history: {done or 'empty'}", f"found: {found or 'nothing'}"]
        return "\n".join([*lines, *(f"  {finding}" for finding in self.faults)])

    def assert_clean(self) -> None:
        """Raises AssertionError with the report when there is a fault."""
        assert self.is_clean, str(self)
