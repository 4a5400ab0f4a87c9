"""One TCP proxy of a test: the way from one process to another, whose faults a test switches on and off.

What is modelled is what TCP shows of a bad network. A direction that is cut holds its bytes back, and the
connection stays open: the sender sees full buffers, in the end. Opened again, it delivers what it held, as
retransmissions would, or the connections are reset before, as if they had timed out. A lost segment is a
stall of everything behind it. Two things differ from a real network: a connection to a cut link is made (by
the proxy), though nothing passes; and each direction can hold some hundred KiB in the buffers of the kernel.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field

from sockets.dialled import is_usable_transport, nothing_listens

CHUNK_BYTES = 1 << 16
HELD_CHUNKS_MAX = 64
RETRANSMISSION_S = 0.2
RETRANSMISSIONS_MAX = 4
LINGER_NOT = struct.pack("ii", 1, 0)
"""With this a socket that is closed sends an RST."""


@dataclass(frozen=True, slots=True)
class Quality:
    """How good a direction is, beside being open or cut."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    bytes_per_s: float | None = None
    loss: float = 0.0
    """Chance that a chunk is lost: it and all behind it come 200 ms late, 600 when it is lost twice …"""
    resets: float = 0.0
    """Chance that a chunk's connection is reset in its place."""


PERFECT = Quality()


@dataclass(slots=True)
class Direction:
    """The bytes of one way. `quality` may be set at any time."""

    quality: Quality = PERFECT
    _open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._open.set()

    @property
    def is_cut(self) -> bool:
        return not self._open.is_set()

    def cut(self) -> None:
        """From now on nothing passes."""
        self._open.clear()

    def open(self) -> None:
        """Let pass what was held, and what comes."""
        self._open.set()

    async def wait_open(self) -> None:
        await self._open.wait()


class Link:
    """A proxy that listens for `source` and connects on to `target`.

    `forward` is the way from the one who dialled, `backward` the answers' way.
    """

    def __init__(self, source: str, target: str, to: tuple[str, int], rng: random.Random) -> None:
        self.source = source
        self.target = target
        self.forward = Direction()
        self.backward = Direction()
        self.refuses = False
        """Whether a new connection is closed at once."""
        self.port = 0
        self._to = to
        self._rng = rng
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen. Raises OSError when the address is taken."""
        self._server = await asyncio.start_server(self._accept, host, port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close everything, at once."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # an aborted transport closes its socket in the next turn

    @property
    def connections(self) -> int:
        return len(self._tasks)

    def reset(self) -> None:
        """End every connection with an RST on both sides."""
        for writer in list(self._writers):
            with suppress(OSError):  # it is closed already
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
            writer.transport.abort()

    def cut(self) -> None:
        """Hold back both directions."""
        self.forward.cut()
        self.backward.cut()

    def mend(self, *, is_reset: bool = False) -> None:
        """Open both directions, perfect again; with `is_reset` the connections of before do not live on."""
        self.refuses = False
        if is_reset:
            self.reset()
        for direction in (self.forward, self.backward):
            direction.quality = PERFECT
            direction.open()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self.refuses:
            writer.transport.abort()
            return
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the task of a connection ends with it; asyncio would log what it raises
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward = await asyncio.open_connection(*self._to)
        if not is_usable_transport(onward.transport):
            raise nothing_listens()
        self._writers.add(onward)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_Pump(self.forward, reader, onward, self._rng).run())
                both.create_task(_Pump(self.backward, onward_reader, writer, self._rng).run())
        except* OSError:
            pass
        finally:
            self._writers.discard(onward)
            onward.transport.abort()


class _Pump:
    """Carries one direction of one connection to its end."""

    def __init__(
        self,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        rng: random.Random,
    ) -> None:
        self._direction = direction
        self._reader = reader
        self._writer = writer
        self._rng = rng
        self._held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD_CHUNKS_MAX)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(self._read())
            both.create_task(self._write())

    async def _read(self) -> None:
        """Note when each chunk is due: what is under way together is delayed together, in its order."""
        loop = asyncio.get_running_loop()
        data = b"more"
        while data:
            await self._direction.wait_open()
            data = await self._reader.read(CHUNK_BYTES)
            await self._held.put((loop.time() + self._delay_s(), data))

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s, data = await self._held.get()
            await asyncio.sleep(due_s - loop.time())
            await self._direction.wait_open()
            quality = self._direction.quality
            if self._rng.random() < quality.resets:
                raise ConnectionResetError("a reset of the test")
            if not data:
                with suppress(OSError):
                    self._writer.write_eof()
                return
            if quality.bytes_per_s is not None:
                await asyncio.sleep(len(data) / quality.bytes_per_s)
            self._writer.write(data)
            await self._writer.drain()

    def _delay_s(self) -> float:
        quality = self._direction.quality
        delay_s = (quality.delay_ms + self._rng.random() * quality.jitter_ms) / 1000
        for lost in range(RETRANSMISSIONS_MAX):
            if self._rng.random() >= quality.loss:
                break
            delay_s += RETRANSMISSION_S * 2**lost
        return delay_s
