"""What an idle cluster of three nodes costs: CPU and resident memory of each of its processes.

usage: python -m bench.idle [--settle 45] [--seconds 30] [--save idle]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.results_file import save
from tests.integration.cluster import Cluster


def measure(settle_s: float, seconds: float) -> dict[str, Any]:
    """For each process: percent of one core over `seconds`, and resident MB at the end."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start(admin=True)
            time.sleep(settle_s)
            processes = cluster.processes()
            before = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
            time.sleep(seconds)
            return {
                name: {
                    "cpu_percent": round((sum(process.cpu_times()[:2]) - before[name]) / seconds * 100, 2),
                    "resident_mb": round(process.memory_info().rss / 1e6, 1),
                }
                for name, process in processes.items()
            }
        finally:
            cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--settle", type=float, default=45.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--save", help="name of the file in bench/results")
    arguments = parser.parse_args()
    result = measure(arguments.settle, arguments.seconds)
    for name, figures in result.items():
        print(f"{name:10} {figures['cpu_percent']:6.2f} % of a core  {figures['resident_mb']:6.1f} MB")
    if arguments.save:
        print(save(arguments.save, {"settle_s": arguments.settle, "seconds": arguments.seconds}, result))


if __name__ == "__main__":
    main()
