"""The network between simulated machines: which way is open, how long things take, who listens where.

TCP's promises are kept and no more: bytes arrive in order or not at all. What a cut swallows is sent again,
after longer and longer pauses, so a connection goes on after a short cut and learns late of a peer that is
gone. A killed process's connections are closed by its machine; a machine without power says nothing.
"""

import errno
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.node_simulation.loop import SimLoop
from tests.node_simulation.tcp import Address, Endpoint
from tests.simulation.clock import VirtualClock

CONNECT_GIVE_UP_US = 130_000_000
FIRST_RETRY_US = 200_000
FIRST_DIAL_RETRY_US = 1_000_000
RETRY_MAX_US = 60_000_000


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Delays are one way and drawn for each segment; `loss_probability` costs a repetition's time-out."""

    delay_min_us: int = 100
    delay_max_us: int = 1_000
    slow_probability: float = 0.0
    slow_max_us: int = 0
    loss_probability: float = 0.0
    split_probability: float = 0.0
    window_bytes: int = 256 * 1024
    us_per_kib: int = 0


class Server:
    """A listening socket, as much of asyncio.Server as the product uses."""

    def __init__(self, net: "Network", loop: SimLoop, factory: Callable[[], Any], address: Address) -> None:
        self.loop = loop
        self.address = address
        self._net = net
        self._factory = factory

    @property
    def sockets(self) -> tuple["Server", ...]:
        return (self,)

    def getsockname(self) -> Address:
        return self.address

    def is_serving(self) -> bool:
        return self._net.listeners.get(self.address) is self

    def close(self) -> None:
        if self.is_serving():
            del self._net.listeners[self.address]

    async def wait_closed(self) -> None:
        """Connections that were accepted go on, as asyncio leaves them."""

    def accept(self, endpoint: Endpoint) -> None:
        """The connection is made; the process hears of it in its next turn."""
        self.loop.call_soon(self._accept, endpoint)

    def _accept(self, endpoint: Endpoint) -> None:
        if self.is_serving():
            endpoint.begin(self._factory())
        else:
            endpoint.abort()


@dataclass(slots=True)
class Site:
    """One machine as the network sees it."""

    ip: str
    is_on: bool = True
    is_left: bool = False
    """Whether the machine has another address and no machine has this one."""
    next_port: int = 32_768
    endpoints: dict[Endpoint, None] = field(default_factory=dict)


class Network:
    """All machines' links."""

    def __init__(self, world: VirtualClock, rng: random.Random, options: NetworkOptions) -> None:
        self.world = world
        self.rng = rng
        self.options = options
        self.sites: dict[str, Site] = {}
        self.listeners: dict[Address, Server] = {}
        self.segments = 0
        self.user_timeout_ports: set[int] = set()
        """Who connects to these has the kernel give up soon (`dledger.transport.TransportLimits`)."""
        self._cuts: set[tuple[str, str]] = set()
        self._clogged_until_us: dict[tuple[str, str], int] = {}
        self._loops: dict[SimLoop, str] = {}
        self.after_connecting: Callable[[SimLoop], None] = lambda loop: None
        """Called in a dialler's turn, when its connection has had its first call."""

    # -- machines

    def attach(self, ip: str) -> Site:
        return self.sites.setdefault(ip, Site(ip))

    def join(self, loop: SimLoop, ip: str) -> None:
        """The loop of a new process on a machine."""
        loop.network = self
        self._loops[loop] = ip

    def leave(self, loop: SimLoop, *, is_power_lost: bool = False) -> None:
        """The process is gone. Its machine closes its connections, unless that went with it."""
        site = self.sites[self._loops.pop(loop)]
        for address in [address for address, server in self.listeners.items() if server.loop is loop]:
            del self.listeners[address]
        for endpoint in [endpoint for endpoint in site.endpoints if endpoint.loop is loop]:
            endpoint.die(is_power_lost)

    # -- links

    def is_open(self, source: str, target: str) -> bool:
        """Whether a segment sent now arrives, in this direction."""
        return (source, target) not in self._cuts and self.sites[source].is_on and self.sites[target].is_on

    def cut(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """One direction, of each pair."""
        ends = list(targets)
        self._cuts |= {(source, target) for source in sources for target in ends if source != target}

    def cut_both(self, ones: Iterable[str], others: Iterable[str]) -> None:
        near, far = list(ones), list(others)
        self.cut(near, far)
        self.cut(far, near)

    def clog(self, source: str, target: str, duration_us: int) -> None:
        """Nothing is lost, but it takes this long."""
        self._clogged_until_us[source, target] = self.world.now_us + duration_us

    def heal(self) -> None:
        self._cuts.clear()
        self._clogged_until_us.clear()

    def draw_delay_us(self, source: str, target: str, size_bytes: int) -> int:
        options, rng = self.options, self.rng
        delay_us = rng.randint(options.delay_min_us, options.delay_max_us)
        delay_us += size_bytes * options.us_per_kib // 1024
        if options.slow_probability and rng.random() < options.slow_probability:
            delay_us += rng.randint(0, options.slow_max_us)
        if self._clogged_until_us:
            until_us = self._clogged_until_us.get((source, target), 0)
            delay_us += max(0, until_us - self.world.now_us)
        return delay_us

    def is_lost(self) -> bool:
        """Whether chance takes this segment."""
        probability = self.options.loss_probability
        return probability > 0 and self.rng.random() < probability

    # -- what loops ask for

    def listen(self, loop: SimLoop, factory: Callable[[], Any], host: str, port: int) -> Server:
        address = (host, port)
        if self._loops[loop] != host:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of this machine")
        if address in self.listeners:
            raise OSError(errno.EADDRINUSE, f"{address} is in use")
        server = self.listeners[address] = Server(self, loop, factory, address)
        return server

    async def connect(
        self, loop: SimLoop, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[Endpoint, Any]:
        dial = _Dial(self, loop, factory, self._loops[loop], (host, port))
        dial.send_syn(FIRST_DIAL_RETRY_US)
        try:
            made: tuple[Endpoint, Any] = await dial.made
        except BaseException:
            dial.give_up()
            raise
        return made


class _Dial:
    """One attempt to connect: there, back, and there again."""

    def __init__(
        self, net: Network, loop: SimLoop, factory: Callable[[], Any], source: str, target: Address
    ) -> None:
        self._net = net
        self._loop = loop
        self._factory = factory
        self._source = source
        self._target = target
        self._deadline_us = net.world.now_us + CONNECT_GIVE_UP_US
        self._endpoint: Endpoint | None = None
        self.made = loop.create_future()

    def give_up(self) -> None:
        """As uvloop does it: the protocol may have the connection, and is not called."""
        if self._endpoint is not None:
            self._endpoint.close_silently()

    def send_syn(self, retry_us: int) -> None:
        """Until something comes back: a connection, a refusal, or too much time has passed."""
        net = self._net
        if self.made.done() or self._loop.is_dead:
            return
        target_ip = self._target[0]
        delay_us = net.draw_delay_us(self._source, target_ip, 0)
        delay_back_us = net.draw_delay_us(target_ip, self._source, 0)

        def arrive() -> None:
            if target_ip not in net.sites or not net.is_open(self._source, target_ip) or net.is_lost():
                self._retry_later(retry_us)
            else:
                net.world.schedule(delay_back_us, come_back)

        def come_back() -> None:
            if not net.is_open(target_ip, self._source):
                self._retry_later(retry_us)
            else:
                self._answer()

        net.world.schedule(delay_us, arrive)

    def _retry_later(self, retry_us: int) -> None:
        net = self._net
        if net.world.now_us + retry_us > self._deadline_us:
            self._loop.call_soon(self._fail, TimeoutError(errno.ETIMEDOUT, "the connection timed out"))
            return
        net.world.schedule(retry_us, lambda: self.send_syn(min(2 * retry_us, RETRY_MAX_US)))

    def _answer(self) -> None:
        server = self._net.listeners.get(self._target)
        if server is None:
            error = ConnectionRefusedError(errno.ECONNREFUSED, f"{self._target} refused the connection")
            self._loop.call_soon(self._fail, error)
        else:
            self._loop.call_soon(self._establish)

    def _fail(self, error: OSError) -> None:
        if not self.made.done():
            self.made.set_exception(error)

    def _establish(self) -> None:
        """In a turn of the dialler. The listener hears of it when the third segment has arrived."""
        net = self._net
        server = net.listeners.get(self._target)
        if self.made.done():
            return
        if server is None:
            self._fail(ConnectionResetError(errno.ECONNRESET, "the listener is gone"))
            return
        site = net.sites[self._source]
        site.next_port = site.next_port % 28_000 + 32_768
        near = Endpoint(net, self._loop, (self._source, site.next_port), self._target)
        far = Endpoint(net, server.loop, self._target, near.local)
        near.peer, far.peer = far, near
        site.endpoints[near] = net.sites[self._target[0]].endpoints[far] = None
        near.send_handshake()
        self._endpoint = near
        protocol = self._factory()
        near.begin(protocol)
        self.made.set_result((near, protocol))
        net.after_connecting(self._loop)
