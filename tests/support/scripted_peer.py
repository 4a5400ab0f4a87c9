"""Members of a group played by plain sockets: they read everything, and send what a test says. One that
answers no Hello is like a node of release 0.1.0.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dledger.codec import PROTOCOL_VERSION, FrameDecoder, Handshake, Hello, encode_frame, version_needed
from dledger.core.messages import Message
from tests.support.polling import loop_turns

FRAME_BYTES_MAX = 1 << 16


def bytes_of(*frames: Message | Handshake) -> bytes:
    return b"".join(bytes(part) for frame in frames for part in encode_frame(frame))


class ScriptedConnection:
    """One end of a connection: `frames` are those that came."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.frames: list[Any] = []
        self.is_at_end = False
        self._writer = writer
        self._reading = asyncio.create_task(self._read(reader))

    def send(self, *frames: Message | Handshake) -> None:
        self._writer.write(bytes_of(*frames))

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    async def close(self) -> None:
        """At once, whatever is unsent."""
        self._reading.cancel()
        self._writer.transport.abort()
        await asyncio.gather(self._reading, self._writer.wait_closed(), return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        decoder = FrameDecoder(FRAME_BYTES_MAX)
        try:
            while data := await reader.read(1 << 16):
                self.frames += decoder.feed(data)
        except ConnectionError:
            pass
        self.is_at_end = True


class ScriptedNode:
    """Accepts connections, and answers only what the test sends."""

    def __init__(self) -> None:
        self.connections: list[ScriptedConnection] = []
        self.address = ("", 0)

    @property
    def newest(self) -> ScriptedConnection:
        return self.connections[-1]

    @property
    def frames(self) -> list[Any]:
        """All that came on its connections."""
        return [frame for each in self.connections for frame in each.frames]

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(ScriptedConnection(reader, writer))


@asynccontextmanager
async def scripted_node() -> AsyncIterator[ScriptedNode]:
    node = ScriptedNode()
    server = await asyncio.start_server(node.accept, "127.0.0.1", 0)
    node.address = server.sockets[0].getsockname()
    try:
        yield node
    finally:
        server.close()
        await loop_turns()  # what it has accepted gets its connection
        for connection in node.connections:
            await connection.close()


@asynccontextmanager
async def dialled(address: tuple[str, int]) -> AsyncIterator[ScriptedConnection]:
    """A connection that the scripted node opened."""
    connection = ScriptedConnection(*await asyncio.open_connection(*address))
    try:
        yield connection
    finally:
        await connection.close()


def is_of_version_2(frame: Any) -> bool:
    """Whether release 0.1.0 reads this frame; it closes the connection for any other."""
    if isinstance(frame, Handshake):
        return isinstance(frame, Hello) and frame.version == PROTOCOL_VERSION
    return version_needed(frame) == PROTOCOL_VERSION
