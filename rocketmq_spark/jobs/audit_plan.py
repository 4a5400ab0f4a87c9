"""What an audit compares: the replicas, how far each has to hold the log, and the ranges."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rocketmq_spark.errors import OptionError
from rocketmq_spark.jobs.audit_model import Replica
from rocketmq_spark.log.discovery import Format, Log, NoLogError, find_logs
from rocketmq_spark.log.planning import committed_end, log_begin, plan_ranges
from rocketmq_spark.log.reader import walk_of
from rocketmq_spark.log.stretch import UNKNOWN, LogRange, Stretch

NAMES_WITHOUT_MEANING = frozenset({"data", "commitlog", "store", ""})


def find_replicas(
    stores: Sequence[str], names: Sequence[str], log_format: Format, storage_options: Mapping[str, Any]
) -> list[Replica]:
    """One replica for each log that the stores' paths and patterns name.

    Raises OptionError when one cannot be found or read, or they are not of one kind.
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
    """Short names that tell the logs apart: the ids of DLedger, else the last parts of the paths."""
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
                f"{log.name} has no checkpoint that can be read: nobody knows what is committed"
            )
        end_position, last_index = committed_end(log)
    else:
        end_position, last_index = _plain_end(log), UNKNOWN
    return Replica(name, log, begin_position, begin_index, end_position, last_index)


def _plain_end(log: Log) -> int:
    """Where a plain log ends: what its checkpoint knows to be flushed, else the last whole record's end."""
    if log.flushed_position > log.data.begin:
        return log.flushed_position
    end = log.data.begin
    for wanted in reversed(plan_ranges(log, log.data.file_bytes)):
        stretches = [found for found in walk_of(log, wanted) if isinstance(found, Stretch) and len(found)]
        if stretches:
            return stretches[-1].position + stretches[-1].size_bytes
        end = wanted.first_position
    return end


def plan_audit(replicas: Sequence[Replica], range_bytes: int) -> list[LogRange]:
    """Ranges over everything that any replica has to hold, divided where its entries begin.

    The replica that holds most divides the log, since all have it laid out alike; what only others hold
    before its begin is divided by these.
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
