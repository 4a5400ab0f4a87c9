"""How long frequent commands take: whole calls, from the start of Python to its end.

usage: python -m bench.command_line --namesrv 127.0.0.1:9876 [--admin URL] [--runs 10] [--save command-line]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Final

from bench.results_file import machine, save

TOPIC: Final = "CommandLine"
GROUP: Final = "command-line"
NOT_ASKING: Final = (("version",), ("--help",))
ASKING: Final = (
    ("status",),
    ("topic", "list"),
    ("topic", "show", TOPIC),
    ("group", "list"),
    ("offset", "show", GROUP),
    ("node", "list"),
    ("message", "find", TOPIC),
    ("dlq", "list"),
    ("config", "get", "n0"),
    ("doctor",),
)
PROGRAM: Final = "import sys; sys.argv[0] = 'ledgermq'; from ledgermq.cli import main; main()"
GOOD_CODES: Final = (0, 1)
"""Accepted exit codes. 1: `doctor` found an error, which takes as long."""


def run(*args: str, text: str = "") -> tuple[float, float]:
    """Wall and CPU time of one call, ms. Raises: RuntimeError when it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start_s = time.perf_counter()
    argv = [sys.executable, "-c", PROGRAM, *args]
    ended = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60, check=False)
    wall_s = time.perf_counter() - start_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode not in GOOD_CODES or "Traceback" in ended.stderr:
        raise RuntimeError(f"{' '.join(args)}: {ended.stderr}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s * 1000, cpu_s * 1000


def measure(command: tuple[str, ...], whom: tuple[str, ...], runs: int) -> dict[str, int]:
    """Medians; a first call is not counted."""
    run(*command, *whom)
    walls, cpus = zip(*(run(*command, *whom) for _ in range(runs)), strict=True)
    return {"wall_ms": round(statistics.median(walls)), "cpu_ms": round(statistics.median(cpus))}


def as_installed(bytecode: str) -> None:
    """Gives the calls compiled modules in this folder, as an installed program has them: the call of each
    command that does not count writes them. What is set here for ourselves is not theirs.
    """
    for name in [name for name in os.environ if name.startswith("LEDGERMQ_")]:
        del os.environ[name]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = bytecode


def prepare(namesrv: str) -> None:
    """A topic with a hundred messages, and a group that has an offset in it."""
    at = ("--namesrv", namesrv)
    run("topic", "create", TOPIC, *at)
    run("produce", TOPIC, *at, text="".join(f"{number}\n" for number in range(100)))
    run("group", "create", GROUP, *at)
    run("offset", "reset", GROUP, TOPIC, "--to", "earliest", "--yes", *at)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    parser.add_argument("--admin", help="ask this service, too")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--save", help="name of the file in bench/results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as bytecode:
        as_installed(bytecode)
        measured_on, result = machine(), measure_all(arguments.namesrv, arguments.admin, arguments.runs)
    for words, figures in result.items():
        shown = "  ".join(f"{way} {each['wall_ms']:4} ({each['cpu_ms']})" for way, each in figures.items())
        print(f"{words:26} {shown} ms wall (CPU)")
    if arguments.save:
        print(save(arguments.save, {"runs": arguments.runs}, result, measured_on))


def measure_all(namesrv: str, admin: str | None, runs: int) -> dict[str, Any]:
    """Each command with requests to the brokers and, if one is given, to the admin service."""
    ways = {"brokers": ("--namesrv", namesrv)}
    if admin:
        ways["admin"] = ("--admin", admin)
    prepare(namesrv)
    result: dict[str, Any] = {}
    for command in (*NOT_ASKING, *ASKING):
        found = {"alone": ()} if command in NOT_ASKING else ways
        result[" ".join(command)] = {way: measure(command, whom, runs) for way, whom in found.items()}
    return result


if __name__ == "__main__":
    main()
