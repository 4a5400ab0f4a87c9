"""A seed's schedule: mixed faults with quiet times between, then the judgement."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.cluster import Disk
from tests.chaos.nemesis import harm
from tests.chaos.run import start_run
from tests.chaos.stock_clients import stock_clients

QUIET_S = (1.0, 4.0)
SENDS_IN_QUIET = 50


@dataclass(frozen=True, slots=True)
class Schedule:
    """What a run is. `may_damage`: files are damaged, too."""

    seed: int
    minutes: float
    nodes: int = 3
    clients: tuple[str, ...] = ()
    may_damage: bool = True


async def run_schedule(folder: Path, schedule: Schedule) -> None:
    """Faults and quiet times for so long, then the judgement. Raises AssertionError on what is wrong."""
    rng = random.Random(schedule.seed)
    disk = Disk(is_volatile=rng.random() < 0.8, leak=rng.choice([0.0, 0.1, 0.5]))
    # An acknowledgement that means page caches outlives killed processes, not power failures.
    durability = "persisted" if disk.is_volatile else rng.choice(["persisted", "replicated"])
    settings = {"durability": durability}
    async with start_run(folder, schedule.seed, nodes=schedule.nodes, disk=disk, settings=settings) as run:
        run.note(f"{schedule}, {disk}, {durability}")
        async with stock_clients(run, schedule.clients) as stock:
            end_s = time.monotonic() + schedule.minutes * 60
            while time.monotonic() < end_s:
                await run.load.wait_acknowledged(SENDS_IN_QUIET, 120.0)
                await asyncio.sleep(rng.uniform(*QUIET_S))
                await harm(run, rng, may_damage=schedule.may_damage)
                await run.revive()
            await run.heal()
            await stock.finish()
        await run.finish(from_each=True)
