"""The audit: proves from their files that all replicas of a group hold the same bytes, or says where not.

It finds the replicas, decides up to which position each must hold the log, cuts the log into ranges, and
checks each range in a task of its own.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from rocketmq_spark.errors import OptionError
from rocketmq_spark.jobs.audit.judgement import judge, unsettled_ranges
from rocketmq_spark.jobs.audit.model import RangeResult, Replica
from rocketmq_spark.jobs.audit.range_task import audit_range
from rocketmq_spark.jobs.audit.report import AuditReport, make_report
from rocketmq_spark.jobs.progress import Progress, Silent
from rocketmq_spark.log.discovery import Format, Log, NoLogError, find_logs
from rocketmq_spark.log.entries import UNKNOWN, EntryBlock, LogRange
from rocketmq_spark.log.planning import committed_end, log_begin, plan_ranges
from rocketmq_spark.log.reader import walk_of

NAMES_WITHOUT_MEANING = frozenset({"data", "commitlog", "store", ""})


def find_replicas(
    stores: Sequence[str], names: Sequence[str], log_format: Format, storage_options: Mapping[str, Any]
) -> list[Replica]:
    """One replica for each log that the stores' paths and patterns name.

    Raises OptionError when a log cannot be found or read, or the formats differ.
    """
    try:
        logs = [log for store in stores for log in find_logs(store, log_format, storage_options)]
    except NoLogError as error:
        raise OptionError(str(error)) from None
    if len({log.kind for log in logs}) > 1:
        kinds = "; ".join(f"{log.name} is {log.kind}" for log in logs)
        raise OptionError(f"replicas of one group are of one format: {kinds}. Choose with --format.")
    if len({log.name for log in logs}) < len(logs):
        raise OptionError("a store is named twice")
    if names and len(names) != len(logs):
        raise OptionError(f"{len(names)} names for {len(logs)} replicas")
    chosen = list(names) or _names(logs)
    if len(set(chosen)) < len(chosen):
        raise OptionError(f"replicas need different names: {', '.join(chosen)}")
    return [_replica(name, log) for name, log in zip(chosen, logs, strict=True)]


def _names(logs: Sequence[Log]) -> list[str]:
    """Short, distinct names of the logs: the ids of DLedger, else the last parts of the paths."""
    for depth in range(1, 2 + max((log.name.count("/") for log in logs), default=0)):
        names = [_tail(log.name, depth) for log in logs]
        if len(set(names)) == len(names) and not NAMES_WITHOUT_MEANING.intersection(names):
            return names
    return [log.name for log in logs]


def _tail(path: str, depth: int) -> str:
    return "/".join(path.split("/")[-depth:]).removeprefix("dledger-")


def _replica(name: str, log: Log) -> Replica:
    if not log.data.starts:
        raise OptionError(f"{log.name} has no data files")
    begin_position, begin_index = log_begin(log)
    if log.kind == "dledger":
        if log.checkpoint is None:
            raise OptionError(
                f"{log.name} has no checkpoint that can be read: it is unknown what is committed"
            )
        end_position, last_index = committed_end(log)
    else:
        end_position, last_index = _plain_end(log), UNKNOWN
    return Replica(name, log, begin_position, begin_index, end_position, last_index)


def _plain_end(log: Log) -> int:
    """Where a plain log ends: its checkpoint's flushed position, else the end of the last whole record."""
    if log.flushed_position > log.data.begin:
        return log.flushed_position
    end = log.data.begin
    for wanted in reversed(plan_ranges(log, log.data.file_bytes)):
        blocks = [found for found in walk_of(log, wanted) if isinstance(found, EntryBlock) and len(found)]
        if blocks:
            return blocks[-1].position + blocks[-1].size_bytes
        end = wanted.first_position
    return end


def plan_audit(replicas: Sequence[Replica], range_bytes: int) -> list[LogRange]:
    """Ranges over everything that any replica has to hold, divided where its entries begin.

    The replica that holds most determines the ranges, since all have the same layout; what only others hold
    before its begin is divided by their files.
    """
    planned = {replica.name: _closed(replica, range_bytes) for replica in replicas}
    order = sorted(replicas, key=lambda each: (-each.end_position, each.begin_position))
    best = [each for each in order if each.end_position == order[0].end_position]
    best = [each for each in best if each.begin_position == best[0].begin_position]
    lead = max(best, key=lambda each: len(planned[each.name]))
    ranges = planned[lead.name]
    for replica in order:
        begin = ranges[0].first_position if ranges else lead.end_position
        if replica.begin_position < begin:
            index = ranges[0].first_index if ranges else UNKNOWN
            ranges = [*_before(planned[replica.name], begin, index), *ranges]
    return ranges


def _closed(replica: Replica, range_bytes: int) -> list[LogRange]:
    ranges = plan_ranges(replica.log, range_bytes)
    kept = [each for each in ranges if each.first_position < replica.end_position]
    return [
        replace(each, end_position=min(each.end_position, replica.end_position), is_open=False)
        for each in kept
    ]


def _before(ranges: Sequence[LogRange], position: int, index: int) -> list[LogRange]:
    last = UNKNOWN if index == UNKNOWN else index - 1
    return [
        each if each.end_position <= position else replace(each, end_position=position, last_index=last)
        for each in ranges
        if each.first_position < position
    ]


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGE_BYTES: Final = 16 * 1024 * 1024
POLL_S: Final = 0.2
TASKS_A_CORE: Final = 8
"""More tasks than cores: ranges of different cost even out, and progress is visible."""
CHECKS_MAX: Final = 3
POLL_INTERVAL_S: Final = 1.0
"""Number of checks of a running broker's queues, and the pause between them, before a hole is reported."""
_GROUP: Final = "ledgermq-audit"


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """What to audit.

    stores: paths or patterns of the replicas' stores, as the format `rocketmq-log` accepts them. names: of
    the replicas in the report, in the same order; made from the paths when empty. range_bytes: of log per
    hash, about. check_queues: compare the consume queues with the log, too. sign_key: for the report's HMAC.
    """

    stores: tuple[str, ...]
    names: tuple[str, ...] = ()
    range_bytes: int = RANGE_BYTES
    check_queues: bool = False
    format: Format = "auto"
    sign_key: bytes | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.stores:
            raise OptionError("an audit needs the stores of the replicas")
        if self.range_bytes < 1024:
            raise OptionError(f"ranges of {self.range_bytes} bytes are too small, at least 1024")
        if self.sign_key is not None and not self.sign_key:
            raise OptionError("the key to sign with is empty")


def run_audit(spark: SparkSession, options: AuditOptions, progress: Progress | None = None) -> AuditReport:
    """Audit in parallel. Raises OptionError for stores that cannot be found, OSError."""
    began = datetime.now(UTC)
    began_s = time.monotonic()
    replicas = find_replicas(options.stores, options.names, options.format, options.storage_options)
    cells = plan_audit(replicas, options.range_bytes)
    for replica in replicas:
        replica.log.storage.close()
    with progress or Silent() as shown:
        results = _run(spark, cells, replicas, options.check_queues, shown)
        _recheck(spark, results, replicas, shown)
    found = judge(replicas, results)
    about = {
        "began": began.isoformat(timespec="milliseconds"),
        "seconds": round(time.monotonic() - began_s, 3),
        "versions": _versions(),
        "options": {
            "stores": list(options.stores),
            "rangeBytes": options.range_bytes,
            "checkQueues": options.check_queues,
        },
    }
    return make_report(about, replicas, results, found, options.sign_key)


def _recheck(
    spark: SparkSession, results: list[RangeResult], replicas: Sequence[Replica], progress: Progress
) -> None:
    """Check ranges again whose missing queue units may just not be written yet."""
    for _ in range(CHECKS_MAX - 1):
        places = unsettled_ranges(results)
        if not places:
            return
        time.sleep(POLL_INTERVAL_S)
        again = _run(spark, [results[place].cell for place in places], replicas, True, progress)
        for place, result in zip(places, again, strict=True):
            results[place] = result


def _versions() -> dict[str, str]:
    names = {"ledgermq": "ledgermq", "pyspark": "pyspark", "numpy": "numpy"}
    return {"python": platform.python_version()} | {name: _version(name) for name in names}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _run(
    spark: SparkSession,
    cells: Sequence[LogRange],
    replicas: Sequence[Replica],
    wants_queues: bool,
    progress: Progress,
) -> list[RangeResult]:
    """Each range by one call of `audit_range`, spread over the tasks of one Spark job."""
    if not cells:
        return []
    context = spark.sparkContext
    tasks = max(1, min(len(cells), TASKS_A_CORE * context.defaultParallelism))
    # Neighbours go to different tasks: all of them then work near the same place of the files.
    order = [list(range(number, len(cells), tasks)) for number in range(tasks)]
    shared = tuple(replicas)

    def audit(numbers: list[int]) -> list[tuple[int, RangeResult]]:
        return [(number, audit_range(cells[number], shared, wants_queues)) for number in numbers]

    def collect() -> list[list[tuple[int, RangeResult]]]:
        context.setJobGroup(_GROUP, "audit", interruptOnCancel=True)
        return context.parallelize(order, tasks).map(audit).collect()

    def report() -> None:
        done = 0
        tracker = context.statusTracker()
        for job in tracker.getJobIdsForGroup(_GROUP):
            info = tracker.getJobInfo(job)
            stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info else ())]
            done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        progress.update(round(done * len(cells) / tasks), len(cells), "ranges")

    collected = _watched(collect, report)
    progress.update(len(cells), len(cells), "ranges")
    found = dict(pair for part in collected for pair in part)
    return [found[number] for number in range(len(cells))]


def _watched(
    work: Callable[[], list[list[tuple[int, RangeResult]]]], report: Callable[[], None]
) -> list[list[tuple[int, RangeResult]]]:
    """Run `work` in another thread and call `report` every POLL_S in this one."""
    from pyspark import InheritableThread

    results: list[list[list[tuple[int, RangeResult]]]] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            errors.append(error)
        finally:
            done.set()

    # The lists are read only after `join`, so they need no lock. An InheritableThread has the local
    # properties that Spark keeps for this thread, such as the job group.
    thread = InheritableThread(target=run, daemon=True)
    thread.start()
    while not done.wait(POLL_S):
        report()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
