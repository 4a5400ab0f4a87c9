"""A real Prometheus with the configuration of docker/prometheus, and the questions of the Grafana board."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledgermq.local.plan import is_free
from tests.integration.client_runs import ROOT
from tests.integration.waiting import wait_for
from tests.support.children import ending_with_parent
from tests.support.debian_programs import find_program

DOCKER = ROOT / "docker"
NODES = ("172.30.98.10:10916", "172.30.98.11:10916", "172.30.98.12:10916")
ADMIN = "172.30.98.3:8080"
TOKEN_FILE = "/run/secrets/metrics_token"
READY_LIMIT_S = 60.0
WINDOW_S = 8
"""Grafana's $__rate_interval: some scrapes."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One question of the board."""

    title: str
    unit: str
    query: str


def panels() -> list[Panel]:
    """With the board's variables filled in: all groups, and the window of a scrape a second."""
    board = json.loads((DOCKER / "grafana" / "dashboards" / "ledgermq.json").read_text(encoding="utf-8"))
    return [
        Panel(
            panel["title"],
            panel["fieldConfig"]["defaults"]["unit"],
            target["expr"].replace("$__rate_interval", f"{WINDOW_S}s").replace("$group", ".*"),
        )
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]


class Prometheus:
    """Answers of its HTTP API."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}"

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of every sample now. Raises HTTPError for a question that cannot be answered."""
        found = self._get("query", {"query": query})["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def history(self, query: str, begin_s: float, end_s: float) -> list[float]:
        """Every value it had, second by second."""
        asked = {"query": query, "start": f"{begin_s}", "end": f"{end_s}", "step": "1"}
        found = self._get("query_range", asked)["result"]
        return [float(value) for each in found for _, value in each["values"]]

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules", {})["groups"] for rule in group["rules"]]

    def _get(self, what: str, asked: Mapping[str, str]) -> Any:
        url = f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)["data"]


@contextmanager
def running(folder: Path, nodes: Sequence[str], admin: str) -> Iterator[Prometheus]:
    """Scrapes these addresses (host:port) once a second, with the rules as they are."""
    program = find_program("prometheus")
    folder.mkdir()
    _configure(folder, nodes, admin)
    address = f"127.0.0.1:{_free_port()}"
    with (folder / "prometheus.log").open("wb") as log:
        options = {
            "config.file": folder / "prometheus.yml",
            "storage.tsdb.path": folder / "data",
            "web.listen-address": address,
            "log.level": "warn",
        }
        process = subprocess.Popen(
            ending_with_parent([program, *(f"--{name}={value}" for name, value in options.items())]),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        prometheus = Prometheus(address)
        wait_for("prometheus is ready", prometheus.is_ready, READY_LIMIT_S)
        yield prometheus
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _configure(folder: Path, nodes: Sequence[str], admin: str) -> None:
    source = DOCKER / "prometheus"
    text = (source / "prometheus.yml").read_text(encoding="utf-8")
    token = folder / "token"
    token.write_text("unused")
    replaced = {**dict(zip(NODES, nodes, strict=True)), ADMIN: admin, TOKEN_FILE: str(token), ": 15s": ": 1s"}
    for old, new in replaced.items():
        assert old in text, f"prometheus.yml has no {old}"
        text = text.replace(old, new)
    (folder / "prometheus.yml").write_text(text, encoding="utf-8")
    shutil.copy(source / "rules.yml", folder)


def _free_port() -> int:
    first = 30_500 + os.getpid() % 997
    return next(port for port in range(first, first + 200) if is_free(port))
