"""Machines as network namespaces on a bridge, and stock clients beside them. To be used by a process in
namespaces of its own (`run_alone`): `tests.integration.three_servers`, `tests.chaos.machine_kills`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.client_runs import ROOT, Driver, Report, finish, java_driver, read_report
from tests.integration.waiting import wait_for

TOOLS: Final = ROOT / "tests/integration/machine_tools"
ENVIRONMENT: Final = Path(sys.executable).parents[1]
OPERATOR: Final = "10.0.0.254"
MACHINES: Final = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
NAMESRV: Final = "10.0.0.1:9876;10.0.0.2:9876"
LEADERS: Final = {"broker-a": "n0", "broker-b": "n11", "broker-c": "n22"}
LIMIT_S: Final = 60.0
SENDS: Final = 200
DEFAULTS: Final = {"poll_ms": 30_000, "retries": 2, "timeout_ms": 3_000}
"""Of Java's DefaultMQProducer."""
JAVA: Final = "5.5.0"
ALONE: Final = (
    *("unshare", "--map-root-user", "--net", "--mount", "--pid", "--fork"),
    *("--kill-child", "--mount-proc"),
)
"""Nothing of it is left when the first process of its process namespace ends."""
NEEDED: Final = ("unshare", "nsenter", "ip", "mount")
TRIAL: Final = (
    "ip link add bridge type bridge && ip link add one type veth peer two && mount -t tmpfs none /var/lib"
)


def run_alone(module: str, arguments: Sequence[str], folder: Path, limit_s: float) -> list[str]:
    """What the module prints, in namespaces of its own; skips the test where they cannot be made."""
    if reason := _obstacle():
        pytest.skip(reason)
    java_driver(JAVA, folder)  # skips where it is not installed
    command = [*ALONE, sys.executable, "-m", module, str(folder), *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    assert ended.returncode == 0, ended.stderr[-12_000:]
    return ended.stdout.splitlines()


def _obstacle() -> str | None:
    """Why there can be no such machines here."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    if not Path("/etc/systemd/system").is_dir():
        return "there is no folder /etc/systemd/system"
    tried = subprocess.run([*ALONE, "sh", "-c", TRIAL], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"namespaces cannot be made here: {tried.stderr.strip()}"


def environment(folder: Path) -> dict[str, str]:
    program = ENVIRONMENT / "bin"
    return dict(os.environ) | {
        "MACHINES": str(folder / "machines"),
        "MACHINE_PATH": f"{TOOLS / 'on_machine'}:{os.environ['PATH']}",
        "PATH": f"{TOOLS}:{program}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def make_network() -> None:
    """The operator's machine, on a bridge with the others."""
    ip("link", "set", "lo", "up")
    ip("link", "add", "bridge", "type", "bridge")
    ip("address", "add", f"{OPERATOR}/24", "dev", "bridge")
    ip("link", "set", "bridge", "up")


class Machine:
    """One of the three. Its network and its mounts last as long as `_holder`, its files longer."""

    def __init__(self, folder: Path, name: str, address: str) -> None:
        self.name = name
        self._link = f"to-{name}"
        self._environment = environment(folder)
        self._disk = folder / "disks" / name
        self._disk.mkdir(parents=True)
        self._holder = subprocess.Popen(["unshare", "--net", "--mount", "sleep", "infinity"])
        wait_for("a network namespace", self._is_apart, LIMIT_S)
        where = folder / "machines" / address
        where.mkdir(parents=True)
        (where / "pid").write_text(str(self._holder.pid))
        ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", str(self._holder.pid))
        ip("link", "set", self._link, "master", "bridge", "up")
        self.run(
            "ip link set lo up",
            f"ip address add {address}/24 dev eth0",
            "ip link set eth0 up",
            *(f"mount -t tmpfs none {place}" for place in ("/opt", "/var/lib", "/etc/systemd/system")),
            "mkdir /opt/ledgermq /var/lib/ledgermq",
            f"mount --bind {ENVIRONMENT} /opt/ledgermq",
            f"mount --bind {self._disk} /var/lib/ledgermq",
        )

    def _is_apart(self) -> bool:
        here, there = (Path(f"/proc/{pid}/ns/mnt").readlink() for pid in ("self", self._holder.pid))
        return here != there

    def run(self, *commands: str) -> None:
        enter = ["nsenter", "--target", str(self._holder.pid), "--net", "--mount", "sh", "-e", "-c"]
        path = {"PATH": self._environment["MACHINE_PATH"]}
        subprocess.run([*enter, "\n".join(commands)], env=self._environment | path, check=True)

    def start(self) -> None:
        self.run("systemctl start ledgermq")

    def kill(self) -> None:
        """All its processes at once; its kernel closes their connections."""
        self.run("systemctl kill --signal=KILL ledgermq", "systemctl stop ledgermq")

    def stop(self) -> None:
        self.run("systemctl stop ledgermq")

    def cut(self) -> None:
        """Nothing reaches the machine, or leaves it."""
        ip("link", "set", self._link, "down")

    def mend(self) -> None:
        ip("link", "set", self._link, "up")

    def log(self) -> str:
        path = self._disk / "service.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


class Clients:
    """A stock Java producer that sends during the failover, and a consumer that then reads everything."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._driver: Driver = java_driver("5.5.0", folder)
        self._out, self._stop = folder / "sends.jsonl", folder / "stop"
        given = self._given("Books") + [f"{key}={value}" for key, value in DEFAULTS.items()]
        options = ["group=BookProducers", f"out={self._out}", f"stop={self._stop}"]
        self._producer = self._driver.start(["stream", *given, *options], self._out)

    @staticmethod
    def _given(topic: str) -> list[str]:
        return [f"namesrv={NAMESRV}", f"topic={topic}"]

    def wait_sends(self) -> None:
        """So many more than now."""
        wanted = len(read_report(self._out)) + SENDS
        wait_for("sends", lambda: len(read_report(self._out)) >= wanted, LIMIT_S)

    def sends(self) -> Report:
        """All of them; the producer ends."""
        self._stop.touch()
        return finish(self._producer, self._out)

    def consumed(self, topic: str, count: int) -> Report:
        out = self._folder / f"{topic}.jsonl"
        limits = [f"count={count}", "quiet_ms=3000", "limit_ms=90000"]
        words = ["consume", *self._given(topic), f"group={topic}Readers", f"out={out}", *limits]
        return self._driver.run(words, out, 150)


def status(folder: Path) -> dict[str, Any]:
    """Of the cluster, as the operator asks for it."""
    command = [str(ENVIRONMENT / "bin" / "ledgermq"), "status", "--json", "--namesrv", NAMESRV]
    ran = subprocess.run(command, env=environment(folder), capture_output=True, text=True, timeout=LIMIT_S)
    view: dict[str, Any] = json.loads(ran.stdout)
    return view


def is_whole(folder: Path) -> bool:
    """Whether every machine leads its group, and every node has what its leader has."""
    groups = status(folder)["groups"]
    nodes = [node for group in groups for node in group["nodes"]]
    leading = {group["brokerName"]: group["leaderId"] for group in groups}
    return leading == LEADERS and len(nodes) == 9 and all(node["isInSync"] for node in nodes)


def leaders(folder: Path) -> dict[str, str]:
    return {group["brokerName"]: group["leaderId"] for group in status(folder)["groups"]}


@contextmanager
def showing_logs(folder: Path, machines: Sequence[Machine]) -> Iterator[None]:
    """When it fails, the ends of all logs go to stderr. The disks are removed in any case."""
    try:
        yield
    except BaseException:
        for machine in machines:
            print(f"--- machine {machine.name}\n{machine.log()[-3000:]}", file=sys.stderr)
        shell = folder / "shell.out"
        print(f"--- shell\n{shell.read_text()[-3000:] if shell.exists() else ''}", file=sys.stderr)
        raise
    finally:
        shutil.rmtree(folder / "disks", ignore_errors=True)
