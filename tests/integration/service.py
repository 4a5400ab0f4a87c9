"""`python -m tests.integration.service VERB … ledgermq`: what systemctl does with the unit, on a machine that
has no systemd. It keeps the process id of the service in /var/lib/service.pid there.
"""

from __future__ import annotations

import configparser
import os
import shlex
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from tests.integration.waiting import wait_for

UNIT: Final = Path("/etc/systemd/system/ledgermq.service")
PID: Final = Path("/var/lib/service.pid")
LOG: Final = Path("/var/lib/ledgermq/service.log")
LIMIT_S: Final = 60.0


def main(arguments: list[str]) -> None:
    *words, name = arguments
    assert name == UNIT.stem, arguments
    match words:
        case ["enable", "--now"] | ["start"]:
            start()
        case ["kill", "--signal=KILL"]:
            kill()
        case ["stop"]:
            stop()
        case _:
            raise AssertionError(f"systemctl {arguments}")


def start() -> None:
    """As Type=notify says: to its end when the service says that it is ready."""
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text(encoding="utf-8"))
    service = unit["Service"]
    assert service["Type"] == "notify"
    where = Path("/var/lib/notify")
    where.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener, LOG.open("ab") as log:
        listener.bind(str(where))
        listener.settimeout(LIMIT_S)
        process = subprocess.Popen(
            shlex.split(service["ExecStart"]),
            env=os.environ | {"NOTIFY_SOCKET": str(where)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
        PID.write_text(str(process.pid))
        assert listener.recv(4096) == b"READY=1", LOG.read_text()[-4000:]


def running() -> list[psutil.Process]:
    """The service's processes, the first one last."""
    try:
        first = psutil.Process(int(PID.read_text()))
        return [each for each in (*first.children(recursive=True), first) if not has_ended(each)]
    except (FileNotFoundError, psutil.NoSuchProcess):
        return []


def has_ended(process: psutil.Process) -> bool:
    """Nobody waits for orphans in a process namespace of a test."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill() -> None:
    """All of them at once."""
    for process in running():
        with suppress(psutil.NoSuchProcess):
            process.kill()


def stop() -> None:
    """As KillMode=mixed says."""
    there = running()
    if there:
        with suppress(psutil.NoSuchProcess):
            there[-1].terminate()
    wait_for("the service has ended", lambda: all(map(has_ended, there)), LIMIT_S)


if __name__ == "__main__":
    main(sys.argv[1:])
