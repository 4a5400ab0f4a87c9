"""`python -m tests.chaos SEED [--minutes M]`: real processes under mixed faults, with quiet times between.

Prints what it does and ends with the checked history. A run that fails keeps its folder (logs, stores,
history, what was done) and ends with the command to repeat it. The faults and their order are the seed's;
their moments are the machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.chaos.cluster import Disk
from tests.chaos.nemesis import harm
from tests.chaos.run import start_run
from tests.chaos.stock_clients import stock_clients

QUIET_S = (1.0, 4.0)
SENDS_IN_QUIET = 50


async def run_schedule(folder: Path, seed: int, minutes: float, nodes: int, clients: tuple[str, ...]) -> None:
    """Faults and quiet times for so long, then the judgement. Raises AssertionError on what is wrong."""
    rng = random.Random(seed)
    disk = Disk(is_volatile=rng.random() < 0.8, leak=rng.choice([0.0, 0.1, 0.5]))
    async with start_run(folder, seed, nodes=nodes, disk=disk) as run:
        run.note(f"seed {seed}, {nodes} nodes, {disk}, stock clients {list(clients)}")
        async with stock_clients(run, clients) as stock:
            end_s = time.monotonic() + minutes * 60
            while time.monotonic() < end_s:
                await run.load.wait_acknowledged(SENDS_IN_QUIET, 120.0)
                await asyncio.sleep(rng.uniform(*QUIET_S))
                await harm(run, rng)
                await run.revive()
            await run.heal()
            await stock.finish()
        await run.finish()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--clients", default="", help="stock clients beside our own: java,python")
    parser.add_argument("--folder", type=Path, help="where the run is kept, whatever its end")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    clients = tuple(filter(None, arguments.clients.split(",")))
    try:
        asyncio.run(run_schedule(folder, arguments.seed, arguments.minutes, arguments.nodes, clients))
    except Exception:  # noqa: BLE001 - whatever it was, the folder and the command are what is needed next
        traceback.print_exc()
        again = f"python -m tests.chaos {' '.join(sys.argv[1:])}"
        print(f"seed {arguments.seed} failed; logs, stores and history: {folder}; again: {again}")
        return 1
    if arguments.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
