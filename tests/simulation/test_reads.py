"""Seeded runs of whole groups with reads by read index: none misses what was committed when it began.

Repeat a seed with `python -m tests.simulation SEED --family reads --trace`.
"""

from tests.simulation.options import draw_reading_options
from tests.simulation.world import World
from tests.support.long_runs import is_long_run

BASE_SEEDS = 300 if is_long_run() else 20


def test_no_read_misses_what_was_committed_when_it_began() -> None:
    confirmed = 0
    for seed in range(BASE_SEEDS):
        world = World(draw_reading_options(seed))
        world.run()
        confirmed += world.readers.confirmed
    assert confirmed > 0, "no read succeeded"
