"""How cost grows with topics and connections, log size, missing entries of a follower, body size, and time.

usage: python -m bench.growth spread|restart|catchup|bodies|soak [options]

Each writes bench/results/growth-NAME.json. Durability is `persisted` throughout.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import growth_runs
from bench.growth_runs import GIB, Say
from bench.processes import end_on_signals
from bench.results_file import machine, save
from ledgermq.load.run import Load

DEFAULTS = {
    "spread": Load(in_flight=2000),
    "catchup": Load(in_flight=2000),
    "bodies": Load(),
    "soak": Load(in_flight=20_000, rate=20_000, size=128, seconds=600),
}
LOG_FACTOR = 1.2
"""Index files and the like beside the log itself."""


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--folder", type=Path, help="where the logs are written")
    common.add_argument("--save", metavar="NAME", help="writes bench/results/growth-NAME.json")
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind, load in DEFAULTS.items():
        own = kinds.add_parser(kind, parents=[common])
        own.add_argument("--seconds", type=float, default=load.seconds)
        own.add_argument("--warmup", type=float, default=load.warmup_s, dest="warmup_s")
        own.add_argument("--in-flight", type=int, default=load.in_flight)
        own.add_argument("--rate", type=float, default=load.rate)
        own.add_argument("--size", type=int, default=load.size)
        own.add_argument("--rounds", type=int, default=3)
        if kind == "catchup":
            own.add_argument("--missed-gib", type=float, default=1.0)
    own = kinds.add_parser("restart", parents=[common])
    own.add_argument("--gib", type=float, nargs="*", default=[1.0, 5.0, 20.0], help="sizes of the log")
    own.add_argument("--size", type=int, default=8192, help="bytes of a body")
    own.add_argument("--nodes", type=int, default=3)
    return parser.parse_args(arguments)


def load_of(arguments: argparse.Namespace) -> Load:
    return Load(
        in_flight=arguments.in_flight,
        rate=arguments.rate,
        size=arguments.size,
        seconds=arguments.seconds,
        warmup_s=arguments.warmup_s,
    )


def require_space(folder: Path | None, log_bytes: float) -> None:
    """Raises: SystemExit when the logs would not fit."""
    free = shutil.disk_usage(folder or tempfile.gettempdir()).free
    if free < log_bytes * LOG_FACTOR:
        raise SystemExit(
            f"The logs take {log_bytes * LOG_FACTOR / GIB:.0f} GiB and {free / GIB:.0f} GiB are free: "
            "give another --folder, smaller sizes, or --nodes 1."
        )


def run(arguments: argparse.Namespace, say: Say) -> dict[str, Any]:
    kind, folder = arguments.kind, arguments.folder
    if kind == "restart":
        require_space(folder, max(arguments.gib) * arguments.nodes * GIB)
        return growth_runs.restart(arguments.gib, arguments.size, arguments.nodes, folder, say)
    load = load_of(arguments)
    if kind == "spread":
        return growth_runs.spread(load, arguments.rounds, folder, say)
    if kind == "catchup":
        return growth_runs.catch_up(arguments.missed_gib, load, arguments.seconds, folder, say)
    if kind == "bodies":
        return growth_runs.bodies(load, arguments.rounds, folder, say)
    return growth_runs.soak(load, folder, say)


def without_long(value: Any) -> Any:
    """The figures without series and single runs, to be printed."""
    if isinstance(value, dict):
        long = ("series", "series_mb", "samples", "runs", "curve")
        return {name: without_long(one) for name, one in value.items() if name not in long}
    return value


def main() -> None:
    arguments = parse_arguments()
    end_on_signals()
    measured_on = machine()
    console = Console(stderr=True)
    with console.status(arguments.kind) as status:
        result = run(arguments, lambda text: status.update(f"{arguments.kind}: {text}"))
    print(json.dumps(without_long(result), indent=2))
    load = asdict(load_of(arguments)) if arguments.kind in DEFAULTS else {}
    load["command"] = shlex.join(["python", "-m", "bench.growth", *sys.argv[1:]])
    load["durability"] = "persisted: on the disks (fdatasync) of a majority of the nodes"
    print(save(f"growth-{arguments.save or arguments.kind}", load, result, measured_on))
    sys.exit(1 if result.get("lost") else 0)


if __name__ == "__main__":
    main()
