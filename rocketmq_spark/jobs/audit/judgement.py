"""The verdict on the whole log, from the results of all ranges. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rocketmq_spark.jobs.audit.model import Problem, QueueKey, QueueRun, QueueUnits, RangeResult, Replica
from rocketmq_spark.jobs.audit.range_task import join_runs
from rocketmq_spark.log.entries import UNKNOWN

ALL = "all"
"""Stands in place of a replica's name for a problem of the log itself, in every replica."""
PROBLEMS_KEPT_MAX = 10_000


@dataclass(slots=True)
class Judgement:
    """The whole log's findings."""

    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0
    notes: list[str] = field(default_factory=list)
    epochs: list[tuple[int, int, int]] = field(default_factory=list)
    queues: dict[QueueKey, list[QueueRun]] = field(default_factory=dict)
    entries: int = 0
    size_bytes: int = 0

    @property
    def first_divergence(self) -> Problem | None:
        """The first problem in the log where the replicas' bytes differ; None without one."""
        kinds = ("divergence", "corrupt", "missing")
        found = [each for each in self.problems if each.kind in kinds]
        return min(found, key=lambda each: (each.position, kinds.index(each.kind)), default=None)

    def add(self, problem: Problem) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_KEPT_MAX:
            self.problems.append(problem)


def judge(replicas: Sequence[Replica], results: Sequence[RangeResult]) -> Judgement:
    """Combine the results of all ranges, which are in the log's order."""
    found = Judgement()
    for result in results:
        for problem in result.problems:
            found.add(problem)
        found.problem_count += result.problem_count - len(result.problems)
        found.entries += result.entries
        found.size_bytes += result.size_bytes
        _continue_epochs(found, result)
        for key, runs in result.runs.items():
            for run in runs:
                own = QueueRun(
                    run.first_offset, run.next_offset, run.first_position, run.last_position, run.messages
                )
                join_runs(found.queues.setdefault(key, []), own)
    for key, runs in sorted(found.queues.items()):
        _judge_offsets(found, key, runs)
    _judge_units(found, [units for result in results for units in result.queue_units])
    for replica in replicas:
        _judge_epochs_file(found, replica, results[0].cell.first_index if results else UNKNOWN)
    found.problems.sort(key=lambda each: (each.position, each.index))
    return found


def _continue_epochs(found: Judgement, result: RangeResult) -> None:
    for term, index, position in result.epochs:
        last = found.epochs[-1][0] if found.epochs else 0
        if term < last:
            found.add(Problem("term", ALL, position, index, "entry.term", f"term {term} follows term {last}"))
        if term > last:
            found.epochs.append((term, index, position))


def _judge_offsets(found: Judgement, key: QueueKey, runs: Sequence[QueueRun]) -> None:
    topic, queue_id = key
    before = runs[0]
    for run in runs[1:]:
        expected, offset = before.next_offset, run.first_offset
        if offset == 0 and expected > 0:
            found.notes.append(
                f"{topic} queue {queue_id} begins again at position {run.first_position}, after offset "
                f"{expected - 1}: the topic was deleted and made again"
            )
        else:
            kind = "gap" if offset > expected else "repeat"
            detail = f"{topic} queue {queue_id}: offset {offset} follows {expected - 1}, a {kind}"
            found.add(Problem("offset", ALL, run.first_position, UNKNOWN, "record.queueOffset", detail))
        before = run


def unsettled_ranges(results: Sequence[RangeResult]) -> list[int]:
    """The indexes in `results` of ranges in which a queue lacks units although it has later ones.

    A running broker writes its queues after the log, and the ranges are not read at the same moment:
    only a second check of these ranges shows whether the units are really missing.
    """
    by_queue = _by_queue(units for result in results for units in result.queue_units)
    holes = {queue for queue, parts in by_queue.items() if _has_hole(parts)}
    return [
        place
        for place, result in enumerate(results)
        if any(each.absent and (each.replica, each.key) in holes for each in result.queue_units)
    ]


def _by_queue(units: Iterable[QueueUnits]) -> dict[tuple[str, QueueKey], list[QueueUnits]]:
    found: dict[tuple[str, QueueKey], list[QueueUnits]] = {}
    for each in units:
        found.setdefault((each.replica, each.key), []).append(each)
    return found


def _first_absent(parts: Sequence[QueueUnits]) -> int | None:
    return min((each.first_absent for each in parts if each.absent), default=None)


def _has_hole(parts: Sequence[QueueUnits]) -> bool:
    first_absent = _first_absent(parts)
    is_behind = first_absent is not None and first_absent < max(each.last_present for each in parts)
    return is_behind and not any(each.superseded for each in parts)


def _judge_units(found: Judgement, units: Iterable[QueueUnits]) -> None:
    """Missing units at a queue's end are no fault: the broker writes them from the log when it starts."""
    for (name, (topic, queue_id)), parts in sorted(_by_queue(units).items()):
        first_absent = _first_absent(parts)
        last_present = max(each.last_present for each in parts)
        absent = sum(each.absent for each in parts)
        superseded = sum(each.superseded for each in parts)
        where = f"{name}: {topic} queue {queue_id}"
        if _has_hole(parts):
            detail = f"{topic} queue {queue_id}: offset {first_absent} has no unit, {last_present} has one"
            found.add(Problem("queue", name, UNKNOWN, UNKNOWN, "unit", detail))
        elif first_absent is not None:
            found.notes.append(
                f"{where} ends before offset {first_absent}, {absent} messages behind the log: "
                "a start writes their units again"
            )
        if superseded:
            found.notes.append(
                f"{where}: {superseded} units belong to messages of a later topic of that name"
            )


def _judge_epochs_file(found: Judgement, replica: Replica, begin_index: int) -> None:
    begin = replica.log.begin
    if begin is None or replica.begin_index != begin_index:
        return
    known = [(each.term, each.first_index) for each in begin.epochs if each.first_index <= replica.last_index]
    seen = [(term, index) for term, index, _ in found.epochs if index <= replica.last_index]
    if known != seen:
        found.notes.append(
            f"{replica.name}: the file epochs says {known}, the log {seen}: a start writes it again"
        )
