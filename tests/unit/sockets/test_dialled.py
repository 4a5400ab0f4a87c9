"""Connections that lead to themselves are found and leave nothing; all others let servers have their port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from sockets.dialled import dial, is_usable, is_usable_transport, leads_to_itself
from tests.support.self_dialled import (
    HOST,
    SelfDialler,
    assert_can_be_listened_on,
    dial_from_same_port,
    free_port,
    self_connected,
)

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def test_a_connection_to_itself_is_of_no_use_and_leaves_its_port_at_once() -> None:
    connected = self_connected()
    port = connected.getsockname()[1]
    assert not is_usable(connected)
    connected.close()
    assert_can_be_listened_on(port)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_so_is_one_of_ipv6() -> None:
    try:
        connected = self_connected(socket.AF_INET6, "::1")
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with connected:
        assert leads_to_itself(connected)


def test_another_connection_is_of_use_and_lets_a_server_have_its_port() -> None:
    with socket.create_server((HOST, 0)) as listener, socket.socket() as connected:
        connected.bind((HOST, 0))
        connected.connect(listener.getsockname())
        port = connected.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            socket.create_server((HOST, port))
        assert is_usable(connected)
        assert_can_be_listened_on(port)
        accepted, _ = listener.accept()
        connected.close()
        accepted.close()
        assert_can_be_listened_on(port)  # though the system keeps the ended connection for a minute


def test_a_connection_that_is_gone_leads_nowhere() -> None:
    with self_connected() as connected:
        connected.shutdown(socket.SHUT_RDWR)
        assert not leads_to_itself(connected)
    assert not leads_to_itself(connected)
    assert is_usable(connected)


def test_a_pair_of_sockets_without_addresses_does_not_lead_to_itself() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert is_usable(one)


def test_blocking_dial_to_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    dial_from_same_port(monkeypatch, port)
    with pytest.raises(ConnectionRefusedError, match="nothing listens there"):
        dial((HOST, port), 5.0)
    assert_can_be_listened_on(port)


@pytest.mark.parametrize("loop", LOOPS)
def test_transport_to_itself_is_aborted(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def run() -> None:
        port = free_port()
        with pytest.MonkeyPatch.context() as patch:
            SelfDialler(patch)
            reader, writer = await asyncio.open_connection(HOST, port)
        assert not is_usable_transport(writer.transport)
        assert await reader.read() == b""
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        assert_can_be_listened_on(port)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
