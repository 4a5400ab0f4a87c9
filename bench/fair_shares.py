"""What a client waits for its sends beside one that floods the cluster, with quotas and without, and relative
to what it waits alone.

usage: python -m bench.fair_shares [--rounds 3] [--seconds 8] [--cases CASE …] [--save fair-shares]

Both clients run on this machine, from two loopback addresses, or as two users. The nodes stay the same:
quotas are switched while they run. Each round measures every case once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, Self

import orjson

from bench.processes import end_on_signals, figures_of
from bench.results_file import machine, save
from bench.text_table import number, text_table
from remoting.acl import VARIABLES
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.properties_text import format_properties_text
from tests.integration.cluster import Cluster
from tests.integration.wire import call
from tests.support.secured import ROOT, secured_values

RATE: Final = 100
"""Sends a second of the client that behaves; bodies of 1 KiB."""
CALM, FLOODER = "calm", "flooder"
ADDRESSES: Final = {CALM: "127.0.0.3", FLOODER: "127.0.0.2"}
SECRET: Final = "fair-secret"
LEAD_S: Final = 2.0
"""The flood begins so long before the other client."""
END_S: Final = 2.0
"""And ends so long after it, so that all of its time is disturbed."""
PAUSE_S: Final = 2.0
LIMIT_S: Final = 60.0
QUOTA: Final = {"addressRequestsPerSecond": "2000", "addressBytesPerSecond": str(4 << 20)}
USER_QUOTA: Final = {"userRequestsPerSecond": "2000"}
OFF: Final = dict.fromkeys((*QUOTA, *USER_QUOTA), "0")


@dataclass(frozen=True, slots=True)
class Case:
    """The sends of the client that floods, as many at once as `in_flight` says, and the settings in force."""

    in_flight: int = 0
    connections: int = 1
    size: int = 1024
    settings: Mapping[str, str] = field(default_factory=dict)
    is_signed: bool = False


CASES: Final = {
    "alone": Case(),
    "one connection": Case(2_000),
    "one connection, quota of its address": Case(2_000, settings=QUOTA),
    "16 connections": Case(8_000, 16),
    "16 connections, quota of its address": Case(8_000, 16, settings=QUOTA),
    "bodies of 256 KiB": Case(64, size=256 * 1024),
    "bodies of 256 KiB, quota of its address": Case(64, size=256 * 1024, settings=QUOTA),
    "alone, signed": Case(is_signed=True),
    "signed": Case(2_000, is_signed=True),
    "signed, quota of its user": Case(2_000, settings=USER_QUOTA, is_signed=True),
}


class Bench:
    """The cluster, and the two clients of a case."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._cluster = Cluster(folder / "cluster")
        self._folder = folder
        self._seconds = seconds
        self._leader = ""

    def __enter__(self) -> Self:
        off = {"authenticationEnabled": "false", "authorizationEnabled": "false", "quotasOnLoopback": "true"}
        try:
            self._cluster.start(secured_values(self._folder, **off, **OFF))
            self._leader = self._cluster.address(self._cluster.wait_leader())
            for name in (CALM, FLOODER):
                body = orjson.dumps({"username": name, "password": SECRET})
                self._ask(RequestCode.AUTH_CREATE_USER, body, username=name)
        except BaseException:
            self._cluster.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.stop()

    def _ask(self, code: RequestCode, body: bytes, **fields: str) -> None:
        """As the super user, at the leader."""
        request = RemotingCommand(code, ext_fields=fields, body=body)
        ROOT.sign(request)
        call(self._leader, code, request.ext_fields, body)

    def measure(self, case: Case) -> dict[str, Any]:
        """What the client that behaves measures, and what the other one got through."""
        settings = {**OFF, **case.settings, "authenticationEnabled": str(case.is_signed).lower()}
        self._ask(RequestCode.UPDATE_BROKER_CONFIG, format_properties_text(settings))
        calm = self._command(CALM, case, self._seconds, 1.0, "--in-flight", "64", "--rate", str(RATE))
        if not case.in_flight:
            return {"calm": _figures(calm)}
        many = ("--in-flight", str(case.in_flight), "--connections", str(case.connections))
        flooding = self._command(
            FLOODER, case, self._seconds + END_S, LEAD_S, *many, "--size", str(case.size)
        )
        with ThreadPoolExecutor(1) as threads:
            flood = threads.submit(_figures, flooding)
            time.sleep(LEAD_S)
            return {"calm": _figures(calm), "flood": flood.result()}

    def _command(self, name: str, case: Case, seconds: float, warmup_s: float, *options: str) -> list[str]:
        """Users share an address: it is not what tells them apart."""
        source = ADDRESSES[CALM if case.is_signed else name]
        keys = {VARIABLES["access_key"]: name, VARIABLES["secret_key"]: SECRET} if case.is_signed else {}
        words = ("--namesrv", self._cluster.namesrv, "--topic", name, "--source", source)
        times = ("--seconds", str(seconds), "--warmup", str(warmup_s))
        variables = [f"{key}={value}" for key, value in keys.items()]
        return ["env", *variables, sys.executable, "-m", "bench.load", *words, *times, *options]


def _figures(command: Sequence[str]) -> dict[str, Any]:
    figures = figures_of(command, LIMIT_S)
    return {name: figures[name] for name in ("acknowledged", "p50_ms", "p99_ms", "max_ms", "errors")}


def run(folder: Path, rounds: int, seconds: float, names: Sequence[str]) -> dict[str, Any]:
    """By case: the figures of each round, and the medians of the rounds."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with Bench(folder, seconds) as bench:
        for number in range(rounds):
            for name in names if number % 2 == 0 else reversed(names):
                found[name].append(bench.measure(CASES[name]))
                print(number + 1, name, found[name][-1], flush=True)
                time.sleep(PAUSE_S)
    return {name: _summary(name, found, LEAD_S + seconds + END_S) for name in names}


def _summary(name: str, found: Mapping[str, Sequence[Mapping[str, Any]]], flood_s: float) -> dict[str, Any]:
    alone = "alone, signed" if CASES[name].is_signed else "alone"
    p99s = [one["calm"]["p99_ms"] for one in found[name]]
    ratios = [mine / one["calm"]["p99_ms"] for mine, one in zip(p99s, found[alone], strict=True)]
    floods = [one["flood"]["acknowledged"] for one in found[name] if "flood" in one]
    return {
        "p50_ms": median([one["calm"]["p50_ms"] for one in found[name]]),
        "p99_ms": median(p99s),
        "p99_of_alone": round(median(p99s) / median([one["calm"]["p99_ms"] for one in found[alone]]), 2),
        "p99_of_alone_by_round": [round(ratio, 2) for ratio in ratios],
        "flood_per_second": round(median(floods) / flood_s) if floods else None,
        "rounds": found[name],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--cases", nargs="*", default=list(CASES), metavar="CASE", choices=CASES)
    parser.add_argument("--save", help="name of the file in bench/results")
    arguments = parser.parse_args()
    end_on_signals()
    before = machine()
    names = list(dict.fromkeys(["alone", "alone, signed", *arguments.cases]))
    with tempfile.TemporaryDirectory() as folder:
        result = run(Path(folder), arguments.rounds, arguments.seconds, names)
    print(text_table(TITLES, list(rows(result))))
    if arguments.save:
        load = {"rounds": arguments.rounds, "seconds": arguments.seconds, "rate": RATE, "quota": QUOTA}
        print(save(arguments.save, load, result, before))


TITLES: Final = ("beside it", "p50 ms", "p99 ms", "p99 ÷ alone", "by round", "flood, messages/s")


def rows(result: Mapping[str, Any]) -> Iterator[list[str]]:
    """Of the table."""
    for name, one in result.items():
        flood = one["flood_per_second"]
        by_round = ", ".join(f"{ratio:g}" for ratio in one["p99_of_alone_by_round"])
        figures = (number(one["p50_ms"]), number(one["p99_ms"]), f"{one['p99_of_alone']:g}", by_round)
        yield [name, *figures, "-" if flood is None else number(flood)]


if __name__ == "__main__":
    main()
