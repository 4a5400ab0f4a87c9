"""The stock Java producer against a running cluster: N threads that wait for each answer, or N in flight.

usage: python -m bench.stock_java --namesrv 127.0.0.1:9876 [--threads 1 64] [--in-flight 2000] [--size 1024]

Needs a JDK of 17 or newer and the client's jars in .cache/java, where scripts/test puts them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.results_file import ROOT, save

CLIENT_VERSION = "5.4.0"
SOURCE = ROOT / "bench/java/Load.java"
START_LIMIT_S = 60.0


def compile_load(jars: Path) -> Path:
    """The folder with the compiled load program, newer than its source."""
    classes = jars.parent / f"{jars.name}-bench"
    compiled = classes / "Load.class"
    if not compiled.exists() or compiled.stat().st_mtime < SOURCE.stat().st_mtime:
        command = ["javac", "-encoding", "UTF-8", "-d", str(classes), "-cp", f"{jars}/*", str(SOURCE)]
        subprocess.run(command, check=True, timeout=120)
    return classes


def measure(options: dict[str, str | int]) -> dict[str, Any]:
    """One run of the load program; `options` are its own."""
    jars = ROOT / ".cache/java" / CLIENT_VERSION
    if not jars.is_dir() or shutil.which("javac") is None:
        raise SystemExit(f"No Java client in {jars} or no JDK on the PATH: run scripts/test once.")
    command = ["java", "-Xmx512m", f"-Duser.home={ROOT / '.cache/java'}"]
    command += ["-cp", f"{compile_load(jars)}:{jars}/*", "Load"]
    command += [f"{name}={value}" for name, value in options.items()]
    limit_s = START_LIMIT_S + int(options["seconds"]) + int(options["warmup_s"])
    result = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"The Java producer failed ({result.returncode}):\n{result.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="Bench")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 64])
    parser.add_argument("--in-flight", type=int, nargs="*", default=[2000])
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--save", help="name of the file in bench/results")
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    common: dict[str, str | int] = {"namesrv": arguments.namesrv, "topic": arguments.topic}
    common |= {"size": arguments.size, "seconds": arguments.seconds, "warmup_s": arguments.warmup}
    loads = [{"threads": count} for count in arguments.threads]
    loads += [{"in_flight": count} for count in arguments.in_flight]
    results = {}
    for load in loads:
        (name, count), *_ = load.items()
        results[f"{name} {count}"] = measure(common | load)
        print(f"{name} {count}: {json.dumps(results[f'{name} {count}'])}", flush=True)
    if arguments.save:
        print(save(arguments.save, common | {"client": f"rocketmq-client {CLIENT_VERSION} (Java)"}, results))


if __name__ == "__main__":
    main()
