"""The options of a run on the real entry store: many crashes, small files and small caches."""

from dataclasses import replace

from commitlog.entry_files import EntryStoreConfig
from tests.simulation.disk_log import DiskLog
from tests.simulation.options import Options, draw_options

PUSH_BYTES_MAX = 2_000
"""Less than the store writes between two syncs, as in production."""


def disk_options(seed: int) -> Options:
    """The seed's options with many crashes, small files and no retention."""
    options = draw_options(seed)
    faults = replace(options.faults, retention_ms=0, crash_ms=options.faults.crash_ms or 1_000)
    push_bytes_max = min(options.config.get("push_bytes_max", PUSH_BYTES_MAX), PUSH_BYTES_MAX)
    return replace(
        options,
        file_bytes=min(options.file_bytes, 1 << 13),
        safety_ms=4_000,
        config=options.config | {"push_bytes_max": push_bytes_max},
        faults=faults,
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
