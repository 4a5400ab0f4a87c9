"""Whole clusters on the real entry store: power failures between any two of its file operations."""

import pytest

from tests.simulation.disk_log import DiskLog
from tests.simulation.disk_options import disk_options, make_disk_log
from tests.simulation.world import World
from tests.support.long_runs import is_long_run

SEEDS = 300 if is_long_run() else 30
LOSSES_WHILE_CUTTING = 5


def run(seed: int) -> list[DiskLog]:
    """The logs of a run's nodes, after it."""
    world = World(disk_options(seed), make_log=make_disk_log)
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 (a run may break in any way; each is a finding)
        pytest.fail(f"seed {seed}: {type(error).__name__}: {error}", pytrace=False)
    return [host.store for host in world.hosts.values() if isinstance(host.store, DiskLog)]


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_seeds_hold_on_the_real_store(first: int) -> None:
    logs = [log for seed in range(first, first + 10) for log in run(seed)]
    assert sum(log.power_losses for log in logs) > 0


def test_power_fails_while_entries_are_cut_off() -> None:
    """Otherwise truncation and reset would pass unharmed: the seeds of a run seldom come to either."""
    found = 0
    for seed in range(1_000, 1_100):
        found += sum(log.losses_while_cutting for log in run(seed))
        if found >= LOSSES_WHILE_CUTTING:
            return
    pytest.fail(f"only {found} power losses while cutting in 100 seeds")
