"""The options of a run on the real entry store: many crashes, small files and small caches."""

import random
from dataclasses import replace

from commitlog.entry_files import EntryStoreConfig
from tests.simulation.disk_log import DiskLog
from tests.simulation.options import FAST_TIMES, Options, draw_options

PUSH_BYTES_MAX = 2_000
"""Less than the store writes between two syncs, as in production."""


def disk_options(seed: int) -> Options:
    """The seed's options with many crashes, small files and no retention.

    Of each two seeds one has leaders cut off again and again, so that entries must go from their logs, and
    mostly a power failure then.
    """
    options = draw_options(seed)
    faults = replace(options.faults, retention_ms=0, crash_ms=options.faults.crash_ms or 1_000)
    config, workload = options.config, options.workload
    if options.nodes > 1 and random.Random(f"{seed} cutting").random() < 0.5:
        config = config | FAST_TIMES
        workload = replace(workload, interval_ms=20, clients=4)
        faults = replace(
            faults,
            crash_cutting_probability=0.8,
            crash_ms=max(faults.crash_ms, 1_000),
            crash_all_probability=0.0,
            crash_majority_probability=0.0,
            down_max_ms=min(faults.down_max_ms, 500),
            partition_ms=400,
            partition_max_ms=1_000,
            leader_bias=0.9,
        )
    push_bytes_max = min(config.get("push_bytes_max", PUSH_BYTES_MAX), PUSH_BYTES_MAX)
    return replace(
        options,
        file_bytes=min(options.file_bytes, 1 << 13),
        safety_ms=4_000,
        config=config | {"push_bytes_max": push_bytes_max},
        faults=faults,
        workload=workload,
    )


def make_disk_log(options: Options) -> DiskLog:
    """A store whose files and cache hold a few entries only."""
    return DiskLog(
        EntryStoreConfig(
            data_file_bytes=options.file_bytes,
            index_file_bytes=256 if options.seed % 2 else 1024,
            cache_bytes_max=600,
            chunk_bytes_max=500,
            reserve_bytes=256,
            unsynced_bytes_max=4096,
            recheck_bytes=300,
        )
    )
