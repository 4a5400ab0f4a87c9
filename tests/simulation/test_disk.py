"""Whole clusters on the real entry store: power failures between any two of its file operations."""

from dataclasses import replace

import pytest

from commitlog.entry_files import EntryStoreConfig
from tests.simulation.disk_log import DiskLog
from tests.simulation.options import Options, draw_options
from tests.simulation.world import World

SEEDS = 60
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
        )
    )


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_seeds_hold_on_the_real_store(first: int) -> None:
    power_losses = 0
    for seed in range(first, first + 10):
        world = World(disk_options(seed), make_log=make_disk_log)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001 (a run may break in any way; each is a finding)
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}", pytrace=False)
        logs = [host.store for host in world.hosts.values()]
        power_losses += sum(log.power_losses for log in logs if isinstance(log, DiskLog))
    assert power_losses > 0
