"""`python -m tests.integration.three_servers FOLDER`: follows docs/machines.md, in network, mount and process
namespaces of its own (which end all that it started). Its machines are network namespaces on a bridge, each
with folders of its own at /var/lib/ledgermq and /etc/systemd/system; `ssh`, `scp` and `systemctl` stand in
for the real ones.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Final

from tests.integration.client_runs import ROOT, Driver, Report, finish, java_driver, read_report
from tests.integration.waiting import wait_for

PAGE: Final = ROOT / "docs/machines.md"
TOOLS: Final = ROOT / "tests/integration/machine_tools"
ENVIRONMENT: Final = Path(sys.executable).parents[1]
OPERATOR: Final = "10.0.0.254"
MACHINES: Final = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
NAMESRV: Final = "10.0.0.1:9876;10.0.0.2:9876"
LEADERS: Final = {"broker-a": "n0", "broker-b": "n11", "broker-c": "n22"}
STARTED, KILLED = "Start", "Kill a machine"
FOLLOWED: Final = ("Plan", "Copy", STARTED, "Send and read", KILLED, "Start it again")
"""Headings. Before them comes `Install`, which tests/integration/test_wheel.py does."""
SECTION_LIMIT_S: Final = 180.0
LIMIT_S: Final = 60.0
SENDS: Final = 200
DEFAULTS: Final = {"poll_ms": 30_000, "retries": 2, "timeout_ms": 3_000}
"""Of Java's DefaultMQProducer."""
_HEADING: Final = re.compile(r"^#+ ([^\n]+)$|^```sh\n(.*?)^```$", re.M | re.S)


def commands_of(page: str) -> dict[str, str]:
    """The lines of all shell blocks below each heading."""
    found: dict[str, str] = {}
    heading = ""
    for match in _HEADING.finditer(page):
        if match[1]:
            heading = match[1]
        else:
            found[heading] = found.get(heading, "") + match[2]
    return found


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
        self._disk = folder / "disks" / name
        self._disk.mkdir(parents=True)
        self._holder = subprocess.Popen(["unshare", "--net", "--mount", "sleep", "infinity"])
        wait_for("a network namespace", self._is_apart, LIMIT_S)
        where = folder / "machines" / address
        where.mkdir(parents=True)
        (where / "pid").write_text(str(self._holder.pid))
        link = f"to-{name}"
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(self._holder.pid))
        ip("link", "set", link, "master", "bridge", "up")
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
        subprocess.run([*enter, "\n".join(commands)], check=True)

    def log(self) -> str:
        path = self._disk / "service.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


class Shell:
    """The operator's, in which all commands of the page run one after the other; an error ends it."""

    def __init__(self, folder: Path) -> None:
        self._out = folder / "shell.out"
        self._input: IO[str]
        with self._out.open("wb") as out:
            self._process = subprocess.Popen(
                ["bash", "-e", "-x"],
                cwd=folder,
                env=environment(folder),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                text=True,
            )

    def run(self, lines: str) -> str:
        """What they print, on both streams."""
        begin = self._out.stat().st_size
        done = f"section ended {time.monotonic_ns()}"
        assert self._process.stdin is not None
        self._process.stdin.write(f"{lines}\n{{ set +x; }} 2> /dev/null\necho '{done}'\nset -x\n")
        self._process.stdin.flush()

        def printed() -> str | None:
            text = self._out.read_bytes()[begin:].decode(errors="replace")
            assert self._process.poll() is None, text[-4000:]
            return text if f"\n{done}\n" in f"\n{text}" else None

        return wait_for(f"the end of\n{lines}", printed, SECTION_LIMIT_S)


def environment(folder: Path) -> Mapping[str, str]:
    program = ENVIRONMENT / "bin"
    return os.environ | {
        "MACHINES": str(folder / "machines"),
        "MACHINE_PATH": f"{TOOLS / 'on_machine'}:{os.environ['PATH']}",
        "PATH": f"{TOOLS}:{program}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }


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


def leaders(folder: Path) -> dict[str, str]:
    return {group["brokerName"]: group["leaderId"] for group in status(folder)["groups"]}


def follow(folder: Path) -> Iterator[str]:
    """Raises AssertionError where it is not as the page says. Yields figures."""
    lines = commands_of(PAGE.read_text(encoding="utf-8"))
    assert list(lines) == ["Install", *FOLLOWED], "a section of the page is not followed"
    shell = Shell(folder)
    for heading in FOLLOWED[: FOLLOWED.index(KILLED)]:
        printed = shell.run(lines[heading])
        if heading == STARTED:
            wait_for("each machine leads", lambda: leaders(folder) == LEADERS, LIMIT_S)
    assert {"one book", "two books"} <= set(printed.splitlines())

    clients = Clients(folder)
    clients.wait_sends()
    printed = shell.run(lines[KILLED])
    assert re.search(r"^20000 acknowledged in .* 0 failed", printed, re.M), printed[-2000:]
    moved = leaders(folder)
    assert moved["broker-a"] in ("n1", "n2"), moved
    clients.wait_sends()
    shell.run(lines["Start it again"])
    wait_for("each machine leads again", lambda: leaders(folder) == LEADERS, LIMIT_S)
    clients.wait_sends()

    sends = clients.sends()
    assert [row for row in sends if row["status"] != "SEND_OK"] == []
    books = {row["number"] for row in sends}
    assert books <= {int(row["number"]) for row in clients.consumed("Books", len(sends))}
    orders = {row["body"] for row in clients.consumed("Orders", 20_002)}
    assert {str(number) for number in range(1, 20_001)} <= orders
    times = [row["at_ms"] for row in sends]
    longest_ms = max(b - a for a, b in pairwise(times))
    yield f"longest time between two sends through the kill of a machine, ms: {longest_ms}"
    yield f"sends of the stock Java producer, none failed: {len(sends)}"


def main() -> None:
    folder = Path(sys.argv[1])
    make_network()
    machines = [Machine(folder, name, address) for name, address in MACHINES.items()]
    try:
        for figure in follow(folder):
            print(figure)
    except BaseException:
        for name, machine in zip(MACHINES, machines, strict=True):
            print(f"--- machine {name}\n{machine.log()[-3000:]}", file=sys.stderr)
        shell = folder / "shell.out"
        print(f"--- shell\n{shell.read_text()[-3000:] if shell.exists() else ''}", file=sys.stderr)
        raise
    finally:
        shutil.rmtree(folder / "disks", ignore_errors=True)


if __name__ == "__main__":
    main()
