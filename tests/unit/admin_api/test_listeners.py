"""What listens where a broker does not answer."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from admin_api.health_checks.facts import Listener, listener_at
from tests.integration.waiting import wait_for
from tests.support.self_dialled import SelfDialler, assert_can_be_listened_on, free_port

LIMIT_S = 10.0
PROGRAM = """
import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
there = socket.create_server((sys.argv[1], 0), family=family)
print(there.getsockname()[1], flush=True)
time.sleep(3600)
"""


@contextmanager
def listening(host: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process that never answers, and its port."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM, host], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    ("host", "asked"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::1]")],
)
async def test_process_that_hangs_is_named(host: str, asked: str) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with listening(host) as (process, port):
        assert await listener_at(f"{asked}:{port}", LIMIT_S) == Listener(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        wait_for("the stop", lambda: is_stopped(process.pid), LIMIT_S)
        assert await listener_at(f"{asked}:{port}", LIMIT_S) == Listener(process.pid, is_stopped=True)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "127.0.0.1:no", "127.0.0.1:99999", ":", ""])
async def test_nothing_listens(address: str) -> None:
    assert await listener_at(address, LIMIT_S) is None


async def test_a_connection_to_itself_is_no_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    SelfDialler(monkeypatch)
    assert await listener_at(f"127.0.0.1:{port}", LIMIT_S) is None
    await asyncio.sleep(0)  # an aborted transport closes its socket in the next turn
    assert_can_be_listened_on(port)
