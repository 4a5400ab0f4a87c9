"""`python -m tests.chaos SEED [--minutes M]`: real processes under mixed faults, with quiet times between.

Prints what it does and ends with the checked history. A run that fails keeps its folder (logs, stores,
history, what was done) and ends with the command to repeat it. The faults and their order are the seed's;
their moments are the machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

from tests.chaos.schedule import Schedule, run_schedule


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--clients", default="", help="stock clients beside our own: java,python")
    parser.add_argument("--no-damage", action="store_true", help="leave the files alone")
    parser.add_argument("--folder", type=Path, help="where the run is kept, whatever its end")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    clients = tuple(filter(None, arguments.clients.split(",")))
    schedule = Schedule(arguments.seed, arguments.minutes, arguments.nodes, clients, not arguments.no_damage)
    try:
        asyncio.run(run_schedule(folder, schedule))
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
