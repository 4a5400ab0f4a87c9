"""One end of a simulated TCP connection, as an asyncio transport.

What a process writes is its own until the window has room; from then on its machine delivers it, whatever
becomes of the process. Segments arrive in order: the first that is held up holds up all behind it.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tests.node_simulation.loop import SimLoop

if TYPE_CHECKING:
    from tests.node_simulation.net import Network, Server

Address = tuple[str, int]
Buffer = bytes | bytearray | memoryview

HIGH_WATER_BYTES = 64 * 1024
FIRST_RETRY_US = 200_000
RETRY_MAX_US = 60_000_000
USER_TIMEOUT_RETRY_US = 5_000_000
"""By a retry that waited so long, bytes have been on their way for as long as a member waits."""
READ_BYTES_MAX = 256 * 1024
FIN = b""
"""The end of a stream, as a segment."""


class Endpoint(asyncio.Transport):
    """`peer` is the other end; it forgets its process when that dies."""

    def __init__(self, net: "Network", loop: SimLoop, local: Address, remote: Address) -> None:
        super().__init__()
        self.net = net
        self.loop = loop
        self.local = local
        self.remote = remote
        self.peer: Endpoint | None = None
        self._protocol: Any = None
        self._is_closing = False
        self._is_closed = False
        self._is_closed_silently = False
        self._is_finished = False
        self._is_writing_paused = False
        self._high_bytes = HIGH_WATER_BYTES
        self._low_bytes = HIGH_WATER_BYTES // 4
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._flight: deque[bytes] = deque()
        self._window_used_bytes = 0
        self._owed_bytes = 0
        self._last_arrival_us = 0
        self._due = 0
        self._retry_us = 0
        self._server: Server | None = None
        self._inbox: deque[bytes] = deque()
        self._is_end_received = False
        self._is_reading_paused = False
        self._is_read_due = False

    # -- asyncio's transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        self._use()
        return {"peername": self.remote, "sockname": self.local}.get(name, default)

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return not (self._is_reading_paused or self._is_closing)

    def pause_reading(self) -> None:
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        self._read_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._use()
        self._high_bytes = HIGH_WATER_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low
        self._balance_writing()

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self._use()
        if self._is_closing or self.loop.is_dead:
            return
        data = b"".join(list_of_data)
        if data:
            self._unsent.append(data)
            self._unsent_bytes += len(data)
            self._fill_window()
            self._balance_writing()

    def close(self) -> None:
        if self._is_closing or self._is_closed or self.loop.is_dead:
            return
        self._is_closing = True
        if not self._unsent:
            self._close_soon(None)

    def abort(self) -> None:
        if not (self._is_closed or self.loop.is_dead):
            self._force_close(None)

    @property
    def is_in_use(self) -> bool:
        """Whether a live process has it."""
        return self._protocol is not None and not (self._is_closing or self._is_closed or self.loop.is_dead)

    def _use(self) -> None:
        if self._is_closed_silently and not self.loop.is_dead:
            raise RuntimeError(f"unable to perform operation on {self!r}; the handler is closed")

    # -- life

    def close_silently(self) -> None:
        """As uvloop closes the transport of a cancelled dial: no call says so to the protocol, it does
        not seem to be closing, and using it raises.
        """
        if not self._is_closed:
            self._is_closed_silently = True
            self._is_closed = True
            self._unsent.clear()
            self._unsent_bytes = 0
            self._finish()

    def begin(self, protocol: Any) -> None:
        """The process takes the connection."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._read_soon()

    def die(self, is_power_lost: bool) -> None:
        """The process is gone without a word; its machine closes the connection if it has the power."""
        self._is_closing = self._is_closed = True
        self._unsent.clear()
        self._unsent_bytes = 0
        if is_power_lost:
            self._finish_silently()
        else:
            self._finish()

    def _close_soon(self, error: Exception | None) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.loop.call_soon(self._tell_lost, error)
            self._finish()

    def _force_close(self, error: Exception | None) -> None:
        self._is_closing = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._close_soon(error)

    def _tell_lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _finish(self) -> None:
        """The socket is closed: what is under way is still delivered, and the end of the stream after it."""
        if not self._is_finished:
            self._is_finished = True
            self._inbox.clear()
            self._send(FIN)

    def _finish_silently(self) -> None:
        self._is_finished = True
        self._inbox.clear()
        self._flight.clear()
        self._forget()

    def _forget(self) -> None:
        self.net.sites[self.local[0]].endpoints.pop(self, None)
        if self.peer is not None:
            self.peer.peer = None
            self.peer = None

    # -- sending

    def send_handshake(self) -> None:
        """The dialler's last segment of the handshake: with it the listener has the connection."""
        self._server = self.net.listeners[self.remote]
        self._send(FIN)

    def _fill_window(self) -> None:
        window_bytes = self.net.options.window_bytes
        while self._unsent and self._window_used_bytes < window_bytes:
            data = self._unsent.popleft()
            room = window_bytes - self._window_used_bytes
            if len(data) > room:
                self._unsent.appendleft(data[room:])
                data = data[:room]
            self._unsent_bytes -= len(data)
            self._window_used_bytes += len(data)
            self._send_in_segments(data)

    def _send_in_segments(self, data: bytes) -> None:
        rng, probability = self.net.rng, self.net.options.split_probability
        while probability and len(data) > 1 and rng.random() < probability:
            size = rng.randint(1, len(data) - 1)
            self._send(data[:size])
            data = data[size:]
        self._send(data)

    def _send(self, segment: bytes) -> None:
        net = self.net
        delay_us = net.draw_delay_us(self.local[0], self.remote[0], len(segment))
        arrival_us = max(net.world.now_us + delay_us, self._last_arrival_us)
        self._last_arrival_us = arrival_us
        self._flight.append(segment)
        net.segments += 1
        net.world.schedule(arrival_us - net.world.now_us, self._arrive)

    def _arrive(self) -> None:
        """One more segment is due at the other end."""
        self._due += 1
        if not self._retry_us:
            self._deliver()

    def _deliver(self) -> None:
        net = self.net
        while self._due and self._flight:
            if not net.is_open(self.local[0], self.remote[0]) or net.is_lost():
                if self._is_given_up():
                    self._flight.clear()
                    self._forget()
                    self._force_close(TimeoutError(errno.ETIMEDOUT, "nothing is acknowledged"))
                    return
                self._retry_us = min(2 * self._retry_us or FIRST_RETRY_US, RETRY_MAX_US)
                net.world.schedule(self._retry_us, self._deliver)
                return
            self._retry_us = 0
            self._due -= 1
            self._hand_over(self._flight.popleft())

    def _is_given_up(self) -> bool:
        """Whether a member's kernel ends the connection. Only where nothing else would: no machine has the
        address, and none answers that it knows no such connection.
        """
        ip, port = self.remote
        is_left = self.net.sites[ip].is_left and port in self.net.user_timeout_ports
        return is_left and not self._is_closed and self._retry_us >= USER_TIMEOUT_RETRY_US

    def _hand_over(self, segment: bytes) -> None:
        peer = self.peer
        if self._server is not None and peer is not None:
            server, self._server = self._server, None
            if server.is_serving():
                server.accept(peer)
            else:
                peer.die(is_power_lost=False)
            return
        if peer is None:
            self._get_reset()
        elif segment is FIN:
            peer.receive_end()
            if peer._is_finished:
                self._forget()
        elif peer._is_finished:
            self._get_reset()
        else:
            peer.receive(segment)

    def _get_reset(self) -> None:
        """No socket is at the other end: its machine answers with RST, if the way back is open."""
        self._flight.clear()
        net = self.net
        delay_us = net.draw_delay_us(self.remote[0], self.local[0], 0)

        def reset() -> None:
            if self.loop.is_dead or self._is_closed:
                return
            if not net.is_open(self.remote[0], self.local[0]):
                net.world.schedule(RETRY_MAX_US // 60, reset)
                return
            self._forget()
            self._force_close(ConnectionResetError(errno.ECONNRESET, "reset by peer"))

        net.world.schedule(delay_us, reset)

    def acknowledge(self, size_bytes: int) -> None:
        """The other process has read so much. The news is late when the way back is cut."""
        self._owed_bytes += size_bytes
        if self._owed_bytes == size_bytes:
            self._take_acknowledgement()

    def _take_acknowledgement(self) -> None:
        if not self.net.is_open(self.remote[0], self.local[0]):
            self.net.world.schedule(FIRST_RETRY_US, self._take_acknowledgement)
            return
        self._window_used_bytes -= self._owed_bytes
        self._owed_bytes = 0
        if self._unsent and not self._is_closed:
            self.loop.call_soon(self._go_on_writing)

    def _go_on_writing(self) -> None:
        self._fill_window()
        self._balance_writing()
        if self._is_closing and not self._unsent:
            self._close_soon(None)

    def _balance_writing(self) -> None:
        if not self._is_writing_paused and self._unsent_bytes > self._high_bytes:
            self._is_writing_paused = True
            self._protocol.pause_writing()
        elif self._is_writing_paused and self._unsent_bytes <= self._low_bytes:
            self._is_writing_paused = False
            self._protocol.resume_writing()

    # -- receiving

    def receive(self, segment: bytes) -> None:
        self._inbox.append(segment)
        self._read_soon()

    def receive_end(self) -> None:
        self._is_end_received = True
        self._read_soon()

    def _read_soon(self) -> None:
        if (self._inbox or self._is_end_received) and not self._is_read_due:
            self._is_read_due = True
            self.loop.call_soon(self._read)

    def _read(self) -> None:
        """What the process's selector would do for a readable socket."""
        self._is_read_due = False
        if self._is_reading_paused or self._is_closing or self._is_closed or self._protocol is None:
            return
        if not self._inbox:
            self._is_end_received = False
            if not self._protocol.eof_received():
                self.close()
            return
        parts, size_bytes = [], 0
        while self._inbox and size_bytes < READ_BYTES_MAX:
            part = self._inbox.popleft()
            parts.append(part)
            size_bytes += len(part)
        if self.peer is not None:
            self.peer.acknowledge(size_bytes)
        self._protocol.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        self._read_soon()
