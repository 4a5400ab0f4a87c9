"""Decides which sequenced sends are new, which repeat messages in the log, and which arrived before earlier
ones.

The replicated state holds the last committed number of each writer (broker/state/writers.py). The leader also
holds what it has appended since: the tips here. A tip advances when the log accepts its append, and is
dropped when the state has reached it, or when the node loses leadership: then another leader's log
decides, and a node leads again only after it has applied all that earlier leaders wrote.

A sender that gives a digest of its rows is refused when a repeat differs from what it sent before: if only
numbers were compared, different rows would count as repeats and be lost. The digest of a partial repeat is
compared where the log ends; that of a full repeat by the next request that reaches further, or at the end of
the batch by `differences`.

An append that no majority acknowledged in time stays in this leader's log as long as it leads. So its tip
stays too, as not committed: until it is committed, a repeat is neither appended again nor acknowledged.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.state.writers import KEEP_MS, WRITERS_MAX, Progress, WriterTable
from commitlog.dispatch import DispatchBatch
from commitlog.log import MessageLog, PutStatus
from commitlog.log_machine import LogMachine
from commitlog.sequences import FIRST_DIGEST, NO_DIGEST
from remoting.codes import ResponseCode
from remoting.errors import RequestError

TIPS_MAX: Final = 20_000
"""Writers with appends that the state does not show yet."""

OnEnd = Callable[[PutStatus], None]


@dataclass(slots=True, eq=False)
class Flight:
    """One append that is not committed yet: the numbers from `first` up to (not including) `end`."""

    key: bytes
    first: int
    end: int
    tip: "_Tip"
    replaced: "_Tip | None"
    """The tip before this append, if the append began a new one."""
    is_first: bool
    digest: bytes
    """Of the rows before it."""
    waiting: list[OnEnd] = field(default_factory=list)
    """Repeats of a part of it: called with how it ended."""


@dataclass(slots=True, eq=False)
class _Tip:
    """Where a writer's appends end: those below `committed` are committed, `flights` are in the log and not
    committed, those between were not acknowledged in time.
    """

    batch_id: int
    next_sequence: int
    committed: int
    digest: bytes
    flights: deque[Flight] = field(default_factory=deque)


@dataclass(slots=True)
class Verdict:
    """`flight`: to be appended, without the first `repeats` messages. None: all of it is a repeat; `status`
    is how the original ended, or `original` is not committed yet.
    """

    repeats: int = 0
    flight: Flight | None = None
    status: PutStatus = PutStatus.PUT_OK
    original: Flight | None = None


class SequenceRefusedError(RequestError):
    """The send cannot be appended now. `expected`: the writer's next number."""

    def __init__(self, code: int, remark: str, progress: Progress | None) -> None:
        super().__init__(code, remark)
        self.ext_fields = {} if progress is None else {
            "batchId": str(progress.batch_id), "expectedSequence": str(progress.next_sequence)
        }  # fmt: skip


class Sequencing(LogMachine):
    """One broker's tips: what a leader adds to the replicated state, and drops with its leadership. Used
    between the admission of a send and its put, in one step with both.
    """

    def __init__(self, log: MessageLog, writers: Callable[[], WriterTable], clock: Callable[[], int]) -> None:
        super().__init__(log)
        self._writers = writers
        self._clock = clock
        self._tips: dict[bytes, _Tip] = {}

    def admit(
        self, key: bytes, batch_id: int, first: int, count: int, digests: Sequence[bytes] = ()
    ) -> Verdict:
        """Decide whether the `count` numbers from `first` on are appended or are repeats. A verdict with a
        flight counts as appended unless `take_back` is called for it. `digests`: before the first message and
        behind each; none if the writer sends none. Raises SequenceRefusedError.
        """
        applied = self._writers().get(key)
        tip = self._tips.get(key)
        reached = applied if tip is None else _progress(tip)
        if reached is None or batch_id > reached.batch_id:
            if first:
                raise _gap(f"nothing of batch {batch_id} is known here", reached)
            self._check_room(tip, applied)
            return self._append(key, batch_id, 0, digests or (NO_DIGEST,) * (count + 1), tip, None)
        if batch_id < reached.batch_id:
            remark = f"the writer has gone on to batch {reached.batch_id}; batch {batch_id} has ended"
            raise SequenceRefusedError(ResponseCode.LEDGERMQ_SEQUENCE_OVER, remark, reached)
        end = first + count
        if first > reached.next_sequence:
            raise _gap(f"{first} was sent before {reached.next_sequence}", reached)
        for known in (reached, applied):
            if known is not None and known.batch_id == batch_id:
                _check_same(known, first, digests)
        if end > reached.next_sequence:
            return self._append(key, batch_id, first, digests or (NO_DIGEST,) * (count + 1), tip, reached)
        return self._repeat(applied, tip, batch_id, end)

    def take_back(self, flights: Sequence[Flight]) -> list[OnEnd]:
        """The log refused these, the latest that were admitted; returns the callbacks of repeats of them."""
        for flight in reversed(flights):
            assert flight.tip.flights[-1] is flight, "appends are taken back from the end"
            flight.tip.flights.pop()
            flight.tip.next_sequence = flight.first
            flight.tip.digest = flight.digest
            if not flight.is_first or self._tips.get(flight.key) is not flight.tip:
                continue
            if flight.replaced is None:
                del self._tips[flight.key]
            else:
                self._tips[flight.key] = flight.replaced
        return [on_end for flight in flights for on_end in flight.waiting]

    def finish(self, flight: Flight, status: PutStatus) -> None:
        """The append has ended so; its repeats end alike."""
        assert flight.tip.flights[0] is flight, "appends end in their order"
        flight.tip.flights.popleft()
        if status is PutStatus.PUT_OK:
            flight.tip.committed = flight.end
        for on_end in flight.waiting:
            on_end(status)

    def differences(
        self, batch_id: int, expected: Mapping[str, Mapping[int, tuple[int, bytes]]]
    ) -> Iterator[str]:
        """A sentence for each partition of these writers that has other rows in the batch than is expected:
        writer, partition, then how many rows it has and their digest. All of them are acknowledged.
        """
        found: dict[str, dict[int, Progress]] = {writer: {} for writer in expected}
        reached = dict(self._writers().of_batch(batch_id))
        reached |= {key: _progress(tip) for key, tip in self._tips.items() if tip.batch_id == batch_id}
        for key, progress in reached.items():
            writer, _, number = key.decode().rpartition("|")
            if writer in found:
                found[writer][int(number)] = progress
        for writer, partitions in expected.items():
            for partition in sorted(found[writer].keys() | partitions):
                there = found[writer].get(partition, Progress(batch_id, 0, FIRST_DIGEST))
                rows, digest = partitions.get(partition, (0, FIRST_DIGEST))
                if there.next_sequence != rows:
                    yield f"partition {partition} has {rows} rows, and {there.next_sequence} are in the log"
                elif there.digest != digest and NO_DIGEST not in (there.digest, digest):
                    yield f"the rows of partition {partition} are not those in the log"

    def _append(
        self,
        key: bytes,
        batch_id: int,
        first: int,
        digests: Sequence[bytes],
        tip: _Tip | None,
        reached: Progress | None,
    ) -> Verdict:
        start = 0 if reached is None else reached.next_sequence
        before = digests[start - first]
        is_first = tip is None or tip.batch_id != batch_id
        current = _Tip(batch_id, start, start, before) if is_first or tip is None else tip
        flight = Flight(key, start, first + len(digests) - 1, current, tip, is_first, current.digest)
        current.flights.append(flight)
        current.next_sequence, current.digest = flight.end, digests[-1]
        if is_first:
            if not self._tips:
                self.follow_log()
            self._tips[key] = current
        return Verdict(start - first, flight)

    def _repeat(self, applied: Progress | None, tip: _Tip | None, batch_id: int, end: int) -> Verdict:
        if applied is not None and applied >= (batch_id, end):
            return Verdict()
        assert tip is not None, "the state does not show the repeated numbers, and they were not appended"
        if end <= tip.committed:
            return Verdict()
        for flight in tip.flights:
            if end <= flight.end:
                return Verdict(original=flight)
        return Verdict(status=PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)

    def _check_room(self, tip: _Tip | None, applied: Progress | None) -> None:
        if tip is None and len(self._tips) >= TIPS_MAX:
            remark = f"{TIPS_MAX} sequenced writers wait for their commit"
            raise SequenceRefusedError(ResponseCode.SYSTEM_BUSY, remark, None)
        if applied is None and not self._writers().has_room(len(self._tips) + 1, self._clock()):
            remark = (
                f"{WRITERS_MAX} writers and partitions are remembered, and all of them wrote within the last "
                f"{KEEP_MS // 60_000} minutes"
            )
            raise SequenceRefusedError(ResponseCode.LEDGERMQ_WRITERS_FULL, remark, None)

    def apply(self, batch: DispatchBatch) -> None:
        """Drop the tips that the state has reached: the state applies each batch before this is called."""
        for run in batch.sequences:
            tip = self._tips.get(run[0])
            applied = self._writers().get(run[0])
            if tip is not None and applied is not None and applied >= (tip.batch_id, tip.next_sequence):
                del self._tips[run[0]]
        if not self._tips:
            self.unfollow_log()

    def become_leader(self) -> None:
        """The state has all that earlier leaders wrote."""
        self._drop_tips()

    def become_follower(self) -> None:
        """Another leader's log decides."""
        self._drop_tips()

    def _drop_tips(self) -> None:
        self._tips.clear()
        self.unfollow_log()


def _progress(tip: _Tip) -> Progress:
    return Progress(tip.batch_id, tip.next_sequence, tip.digest)


def _check_same(known: Progress, first: int, digests: Sequence[bytes]) -> None:
    at = known.next_sequence - first
    if not (0 <= at < len(digests) and known.digest) or digests[at] == known.digest:
        return
    remark = (
        f"the rows before number {known.next_sequence} of batch {known.batch_id} are not those that were "
        "sent under the same numbers before"
    )
    raise SequenceRefusedError(ResponseCode.LEDGERMQ_SEQUENCE_DIFFERS, remark, known)


def _gap(reason: str, reached: Progress | None) -> SequenceRefusedError:
    return SequenceRefusedError(
        ResponseCode.LEDGERMQ_SEQUENCE_GAP, f"sequence gap: {reason}; send again in order", reached
    )
