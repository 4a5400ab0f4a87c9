"""A replica's consume queues held against the messages of a range."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from commitlog.record import CorruptRecordError, decode_record
from rocketmq_spark.jobs.audit_content import QueueUnitsWanted
from rocketmq_spark.jobs.audit_model import Problem, QueueKey, QueueUnits, Replica
from rocketmq_spark.log.discovery import Log
from rocketmq_spark.log.queue_units import PREFILL_SIZE, queue_row, read_units
from rocketmq_spark.log.storage import GoneError
from rocketmq_spark.log.stretch import UNKNOWN

LATER_LOOKED_AT_MAX: Final = 64
"""So many units of a run that lead to later messages are followed; the others are taken to be like them."""


def check_queues(
    replica: Replica, wanted: Sequence[QueueUnitsWanted], begin: int, end: int
) -> Iterator[Problem | QueueUnits]:
    """The first wrong unit of each run, and how many are there; of messages that stand from `begin` to
    before `end`.
    """
    root, storage = replica.log.queues, replica.log.storage
    assert root is not None, replica.name
    rows = {each.key: queue_row(storage, f"{root}/{each.key[0]}/{each.key[1]}") for each in wanted}
    for each in wanted:
        chosen = np.flatnonzero((each.positions >= begin) & (each.positions < end))
        if not len(chosen):
            continue
        offset = each.offset + int(chosen[0])
        positions, sizes = each.positions[chosen], each.sizes[chosen]
        units = read_units(storage, rows[each.key], offset, len(chosen))
        found, length = units["position"].astype(np.int64), units["size"].astype(np.int64)
        count = len(units)
        is_written = (length > 0) & (length != PREFILL_SIZE)
        is_later = is_written & (found > positions[:count])
        for at in np.flatnonzero(is_later)[:LATER_LOOKED_AT_MAX].tolist():
            is_later[at] = _stands_for(replica.log, int(found[at]), int(length[at]), each.key, offset + at)
        is_wrong = is_written & ~is_later & ((found != positions[:count]) | (length != sizes[:count]))
        if is_wrong.any():
            at = int(np.flatnonzero(is_wrong)[0])
            topic, queue_id = each.key
            yield Problem(
                "queue",
                replica.name,
                int(positions[at]),
                UNKNOWN,
                "unit",
                f"{topic} queue {queue_id} offset {offset + at}: the unit leads to position {found[at]} and "
                f"size {length[at]}, the message has size {sizes[at]}",
            )
        present = np.flatnonzero(is_written)
        absent = np.flatnonzero(~is_written)
        first_absent = int(absent[0]) if len(absent) else count
        missing = len(chosen) - len(present)
        yield QueueUnits(
            replica.name,
            each.key,
            len(present),
            missing,
            offset + first_absent if missing else UNKNOWN,
            offset + int(present[-1]) if len(present) else UNKNOWN,
            int(is_later.sum()),
        )


def _stands_for(log: Log, position: int, size: int, key: QueueKey, offset: int) -> bool:
    """Whether a message of that queue and offset stands there."""
    try:
        record = decode_record(log.read(position, size))
    except (GoneError, CorruptRecordError):
        return False
    return (record.topic, record.queue_id, record.queue_offset) == (*key, offset)
