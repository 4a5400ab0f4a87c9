"""A loop that stands still during a dial costs that connection, on both event loops: nothing raises, the peer
is dialled again and gets the messages that come after.

uvloop closes the transport of a cancelled `create_connection` without `connection_lost`, and raises
RuntimeError for what is written to it later; asyncio calls `connection_lost`, but after the dial has ended.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from dledger import transport as transport_module
from dledger.codec import PROTOCOL_VERSION, FrameDecoder, Hello
from dledger.core.messages import AppendResponse, HeartbeatResponse
from dledger.core.output import Envelope
from dledger.core.types import ResponseCode
from dledger.transport import Transport, TransportLimits
from tests.support.polling import loop_turns, until
from tests.unit.dledger.test_transport import WAIT_S, Sink, free_port

STALL_S = 1.1
BEAT = HeartbeatResponse(1, 5)
ACK = AppendResponse(1, ResponseCode.SUCCESS, 0, 5, 5)
LoopRunner = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def is_uvloop(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "uvloop")


@pytest.fixture
def run(is_uvloop: bool) -> LoopRunner:
    def run_on(main: Coroutine[Any, Any, None]) -> None:
        factory = uvloop.new_event_loop if is_uvloop else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main)

    return run_on


class Stall:
    """Lets the loop stand still in dials, at a place where their time is over before `create_connection` is.

    With uvloop that is behind `connection_made`, with asyncio before it.
    """

    def __init__(self) -> None:
        self._times = 0
        self._stall_s = 0.0

    def begin(self, stall_s: float, times: int) -> None:
        self._stall_s, self._times = stall_s, times

    def stand_still(self) -> None:
        if self._times:
            self._times -= 1
            time.sleep(self._stall_s)  # the loop stands still: that is the fault


@pytest.fixture
def stall(is_uvloop: bool, monkeypatch: pytest.MonkeyPatch) -> Stall:
    stall = Stall()

    def stalling(go_on: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            if len(arguments) < 6 or arguments[5] is None:  # accepted connections have a server there
                stall.stand_still()
            go_on(*arguments)

        return call

    if is_uvloop:
        go_on = transport_module.set_tcp_user_timeout
        monkeypatch.setattr(transport_module, "set_tcp_user_timeout", stalling(go_on))
    else:
        made_of = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
        monkeypatch.setattr(made_of, "__init__", stalling(made_of.__init__))
    return stall


class Listener(asyncio.Protocol):
    """One connection that the transport dialled, and what came on it behind the handshake."""

    def __init__(self, connections: list["Listener"]) -> None:
        self.messages: list[Any] = []
        self._decoder = FrameDecoder(1 << 16)
        connections.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.messages += self._decoder.feed(data)


@dataclass
class Stage:
    """A transport that dials a peer n1, the connections that came of it, and what callbacks raised."""

    transport: Transport
    connections: list[Listener]
    errors: list[dict[str, Any]]

    async def use_until_heard(self, number: int) -> None:
        """Sends over and over, until the peer gets it on its connection of this number."""
        async with asyncio.timeout(WAIT_S):
            while len(self.connections) <= number or not {BEAT, ACK} <= set(
                self.connections[number].messages
            ):
                use(self.transport)
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def dialling(limits: TransportLimits | None = None) -> AsyncIterator[Stage]:
    loop = asyncio.get_running_loop()
    errors: list[dict[str, Any]] = []
    connections: list[Listener] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    server = await loop.create_server(lambda: Listener(connections), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    hello = Hello("g", "n0", PROTOCOL_VERSION, "")
    transport = Transport(hello, ("127.0.0.1", free_port()), {"n1": address}, Sink(), limits)
    await transport.start()
    try:
        yield Stage(transport, connections, errors)
    finally:
        await transport.stop()
        server.close()
        for connection in connections:
            connection.transport.close()
        await loop_turns()
    assert errors == []


def use(transport: Transport) -> None:
    """All that a turn of the node may do with its peers."""
    transport.send("n1", BEAT)
    transport.flush()
    direct_ack = transport.direct_ack(Envelope("n1", ACK))
    if direct_ack is not None:
        direct_ack.begin(lambda: 0)
    transport.send_all([Envelope("n1", BEAT), Envelope("n1", ACK)])
    if direct_ack is not None:
        direct_ack.stop()
    transport.is_connected("n1")


def open_sockets() -> int:
    """Sockets of this process."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing
            count += str(link.readlink()).startswith("socket:")
    return count


def test_a_loop_that_stands_still_during_a_dial_costs_that_connection_only(
    run: LoopRunner, stall: Stall
) -> None:
    async def main() -> None:
        async with dialling() as stage:
            stall.begin(STALL_S, times=1)
            await stage.use_until_heard(1)
            assert len(stage.connections) == 2

    run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
def test_dials_in_vain_keep_no_descriptor(run: LoopRunner, stall: Stall) -> None:
    limits = TransportLimits(connect_timeout_ms=50, reconnect_delay_ms=10)

    async def main() -> None:
        async with dialling(limits) as stage:
            await stage.use_until_heard(0)
            before = open_sockets()
            stall.begin(0.06, times=5)
            stage.connections[0].transport.abort()
            # Nothing is written meanwhile, which would find it, too.
            await until(lambda: len(stage.connections) >= 7)
            await stage.use_until_heard(6)
            await until(lambda: open_sockets() == before)

    run(main())


class BrokenTransport(asyncio.Transport):
    """Raises what no transport should, from one of its methods on."""

    def __init__(self, broken: str) -> None:
        super().__init__()
        self.broken = broken
        self.is_aborted = False

    def _use(self, name: str) -> None:
        if name == self.broken:
            raise RuntimeError("the handler is closed")

    def is_closing(self) -> bool:
        return False  # as uvloop's when it was closed without a word

    def writelines(self, list_of_data: Any) -> None:
        self._use("writelines")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._use("set_write_buffer_limits")

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        self._use("get_extra_info")

    def get_write_buffer_size(self) -> int:
        self._use("get_write_buffer_size")
        return 0

    def abort(self) -> None:
        self._use("abort")
        self.is_aborted = True


@pytest.mark.parametrize("is_broken_later", [False, True])
@pytest.mark.parametrize(
    "broken", ["writelines", "set_write_buffer_limits", "get_extra_info", "get_write_buffer_size", "abort"]
)
async def test_whatever_a_transport_raises_costs_its_connection_only(
    broken: str, is_broken_later: bool
) -> None:
    transport = Transport(Hello("g", "n0", PROTOCOL_VERSION, ""), ("127.0.0.1", 0), {"n1": ("::", 1)}, Sink())
    connection = transport._dialers["n1"].connection
    made_of = BrokenTransport("" if is_broken_later else broken)
    connection.connection_made(made_of)
    made_of.broken = broken
    use(transport)
    if broken in ("writelines", "get_write_buffer_size"):
        assert connection.closed.is_set()
        assert made_of.is_aborted
    connection.drop()
    connection.connection_lost(None)
    use(transport)
    assert not transport.is_connected("n1")


async def test_a_connection_that_was_dropped_while_it_was_made_is_closed() -> None:
    transport = Transport(Hello("g", "n0", PROTOCOL_VERSION, ""), ("127.0.0.1", 0), {"n1": ("::", 1)}, Sink())
    connection = transport._dialers["n1"].connection
    connection.drop()
    late = BrokenTransport("")
    connection.connection_made(late)
    assert late.is_aborted
    assert not transport.is_connected("n1")


async def test_what_a_dial_raises_does_not_end_dialling(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop fails a dial with RuntimeError when its transport was closed before the waiter was set."""
    loop = asyncio.get_running_loop()
    go_on, errors = loop.create_connection, [RuntimeError("closed Transport handle"), UnicodeError("a label")]

    async def failing(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return await go_on(*arguments)

    monkeypatch.setattr(loop, "create_connection", failing)
    async with dialling(TransportLimits(reconnect_delay_ms=1)) as stage:
        await stage.use_until_heard(0)
    assert errors == []
