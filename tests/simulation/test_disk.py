"""Whole clusters on the real entry store: power failures between any two of its file operations."""

import pytest

from tests.simulation.disk_log import DiskLog
from tests.simulation.disk_options import disk_options, make_disk_log
from tests.simulation.world import World

SEEDS = 60


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
