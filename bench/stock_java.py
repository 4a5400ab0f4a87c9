"""RocketMQ's own Java clients as a load: the programs of bench/java, each of which prints one JSON line.

usage: python -m bench.stock_java --namesrv 127.0.0.1:9876 [--threads 1 64] [--in-flight 2000] [--size 1024]

Needs a JDK of 17 or newer and what `bench/get_rivals.sh java` fetched.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from bench.processes import Marks, figures_of
from bench.results_file import save
from bench.rivals import ROCKETMQ_VERSION, class_path

START_LIMIT_S = 120.0
CLIENT = f"rocketmq-client {ROCKETMQ_VERSION} (Java)"
Options = Mapping[str, object]


def run(
    program: str, options: Options, limit_s: float, marks: Marks | None = None, libraries: str = "lib"
) -> dict[str, Any]:
    """Run one of the programs; `marks` as in `figures_of`, `libraries` as in `class_path`.

    Raises: SystemExit when it printed no figures within the limit.
    """
    with tempfile.TemporaryDirectory() as home:
        command = ["java", "-Xmx768m", f"-Duser.home={home}", "-cp", class_path(libraries), program]
        command += [f"{name}={value}" for name, value in options.items()]
        return figures_of(command, limit_s + START_LIMIT_S, marks)


def produce(options: Options, marks: Marks | None = None) -> dict[str, Any]:
    """The producer under load, see Load.java for the options."""
    return run("Load", options, float(str(options["seconds"])) + float(str(options["warmup_s"])), marks)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="Bench")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 64])
    parser.add_argument("--in-flight", type=int, nargs="*", default=[2000])
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--warmup", type=float, default=3)
    parser.add_argument("--save", help="name of the file in bench/results")
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    common: dict[str, Any] = {"namesrv": arguments.namesrv, "topic": arguments.topic}
    common |= {"size": arguments.size, "seconds": arguments.seconds, "warmup_s": arguments.warmup}
    loads = [("threads", count) for count in arguments.threads]
    loads += [("in_flight", count) for count in arguments.in_flight]
    results = {}
    for name, count in loads:
        results[f"{name} {count}"] = produce(common | {name: count})
        print(f"{name} {count}: {json.dumps(results[f'{name} {count}'])}", flush=True)
    if arguments.save:
        print(save(arguments.save, common | {"client": CLIENT}, results))


if __name__ == "__main__":
    main()
