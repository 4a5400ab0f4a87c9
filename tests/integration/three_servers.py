"""`python -m tests.integration.three_servers FOLDER`: follows docs/machines.md, in network, mount and process
namespaces of its own (which end all that it started). Its machines are network namespaces on a bridge, each
with folders of its own at /var/lib/ledgermq and /etc/systemd/system; `ssh`, `scp` and `systemctl` stand in
for the real ones.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Final

from tests.integration.client_runs import ROOT
from tests.integration.machines import (
    LEADERS,
    LIMIT_S,
    MACHINES,
    Clients,
    Machine,
    environment,
    leaders,
    make_network,
    showing_logs,
)
from tests.integration.waiting import wait_for

PAGE: Final = ROOT / "docs/machines.md"
STARTED, KILLED = "Start", "Kill a machine"
FOLLOWED: Final = ("Plan", "Copy", STARTED, "Send and read", KILLED, "Start it again")
"""Headings. Before them comes `Install`, which tests/integration/test_wheel.py does."""
SECTION_LIMIT_S: Final = 180.0
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
    with showing_logs(folder, machines):
        for figure in follow(folder):
            print(figure)


if __name__ == "__main__":
    main()
