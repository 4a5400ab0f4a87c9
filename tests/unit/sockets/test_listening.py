"""A port in use is named with who holds it, and waited for when only a connection does."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sockets import holders
from sockets.listening import PortInUseError, bound, listening
from tests.support.self_dialled import HOST, free_port, self_connected

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux has a table of sockets")
LISTENER = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
there = socket.create_server((sys.argv[1], 0), family=family)
print(there.getsockname()[1], flush=True)
sys.stdin.read()
"""
CONNECTION = """
import socket, sys
there = socket.socket()
there.bind(("127.0.0.1", 0))
there.connect(("127.0.0.1", int(sys.argv[1])))
print(there.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def process(folder: Path, code: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """Runs the code as holder.py and with an option that is none of a log's business; its id and its port."""
    (folder / "holder.py").write_text(code)
    command = [sys.executable, str(folder / "holder.py"), *arguments, "--token", "hidden"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        try:
            yield holder.pid, int(holder.stdout.readline())
        finally:
            holder.kill()


@contextmanager
def closing_soon(held: socket.socket) -> Iterator[int]:
    """Its port. It is closed, with nothing left of it, while somebody waits for the port."""
    held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    timer = threading.Timer(0.2, held.close)
    port = held.getsockname()[1]
    timer.start()
    try:
        yield port
    finally:
        timer.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_a_process_that_listens_is_named(tmp_path: Path, host: str) -> None:
    with process(tmp_path, LISTENER, host) as (pid, port), pytest.raises(PortInUseError) as found:
        bound("::1" if host == "::1" else HOST, port)
    assert found.value.is_listening
    program = Path(sys.executable).name
    assert str(found.value) == f"port {port} is in use by process {pid} ({program} holder.py)"


def test_a_process_with_a_connection_is_named(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as listener:
        far = listener.getsockname()[1]
        with process(tmp_path, CONNECTION, str(far)) as (pid, port), pytest.raises(PortInUseError) as found:
            bound(HOST, port, wait_s=0)
    assert not found.value.is_listening
    program = Path(sys.executable).name
    by = f"by a connection of process {pid} ({program} holder.py) to {HOST}:{far}"
    assert str(found.value) == f"port {port} is in use {by}"


def test_a_listener_comes_before_the_connections_it_has_accepted(tmp_path: Path) -> None:
    with process(tmp_path, LISTENER, HOST) as (pid, port), socket.create_connection((HOST, port)):
        with pytest.raises(PortInUseError, match=f"in use by process {pid} ") as found:
            bound(HOST, port)
        assert found.value.is_listening


def test_a_process_that_cannot_be_found_is_its_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(holders, "_SEARCH_S", -1.0)
    with process(tmp_path, LISTENER, HOST) as (_, port), pytest.raises(PortInUseError) as found:
        bound(HOST, port)
    assert str(found.value) == f"port {port} is in use by a process of user {os.getuid()}"


def test_a_connection_that_has_ended_is_said() -> None:
    ended = self_connected()
    port = ended.getsockname()[1]
    ended.close()
    with pytest.raises(PortInUseError, match="in use by a connection that has ended, for a minute at most"):
        bound(HOST, port, wait_s=0)


def test_who_listens_at_another_address_is_not_named() -> None:
    with self_connected() as held:
        port = held.getsockname()[1]
        with socket.create_server(("127.0.0.2", port)), pytest.raises(PortInUseError) as found:
            bound(HOST, port, wait_s=0)
    assert not found.value.is_listening


def test_a_port_that_nothing_is_known_of_is_in_use_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "_TABLES", (Path("/proc/net/none"),))
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"^port {port} is in use$"):
            bound(HOST, port, wait_s=0)


def test_a_port_that_a_connection_holds_is_waited_for() -> None:
    with closing_soon(self_connected()) as port, bound(HOST, port) as there:
        assert there.getsockname() == (HOST, port)


async def test_a_server_waits_for_such_a_port_too() -> None:
    tries = 0

    async def start() -> asyncio.Server:
        nonlocal tries
        tries += 1
        return await asyncio.start_server(lambda reader, writer: None, HOST, port)

    with closing_soon(self_connected()) as port:
        server = await listening(start, HOST, port)
    assert tries > 1
    server.close()
    await server.wait_closed()


async def test_a_server_does_not_wait_for_another_server() -> None:
    tries = 0

    async def start() -> asyncio.Server:
        nonlocal tries
        tries += 1
        return await asyncio.start_server(lambda reader, writer: None, HOST, port)

    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortInUseError, match="in use by process"):
            await listening(start, HOST, port)
    assert tries == 1


def test_another_failure_is_told_as_it_is() -> None:
    with pytest.raises(OSError, match="assign") as found:
        bound("203.0.113.1", free_port())
    assert not isinstance(found.value, PortInUseError)
