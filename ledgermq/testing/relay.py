"""A relay in front of each node's port for replication, which a test closes to cut nodes off from each other.

The others reach a node at the address of its plan, where its relay listens; the node itself listens on the
same port of another loopback address. Each connection begins with the Hello of the node that made it, so the
relay knows both ends. In a partition bytes wait in the relay and the sockets before it, and connections stay
open, as with a network that loses packets. When it ends they go on, as TCP does.

Certificates would hide the Hello: nodes behind relays have none.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from dledger.codec import FrameDecoder, Hello, PeerProtocolError
from ledgermq.local.plan import HOST, NodePlan
from sockets.dialled import is_usable_transport

INNER_HOST: Final = "127.0.1.1"
"""Where the nodes listen. All of 127.0.0.0/8 is this machine on Linux, and only 127.0.0.1 elsewhere."""
CHUNK_BYTES: Final = 256 * 1024
HELLO_BYTES_MAX: Final = 4 * 1024


class Relays:
    """Made on the loop that they run on."""

    def __init__(self, nodes: Sequence[NodePlan], inner_host: str = INNER_HOST) -> None:
        self._nodes = nodes
        self._inner_host = inner_host
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._apart: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Listen at the replication address of every node. Raises: OSError."""
        for node in self._nodes:
            accept = partial(self._accept, node)
            self._servers.append(await asyncio.start_server(accept, HOST, node.replication_port))

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self, node_ids: Iterable[str]) -> None:
        """Between these nodes and all others nothing passes from now on; among themselves everything does."""
        self._apart = frozenset(node_ids)
        self._changed.set()
        self._changed = asyncio.Event()

    def _accept(self, node: NodePlan, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._relay(node, reader, writer), name=f"relay to {node.id}")
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _relay(
        self, node: NodePlan, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One connection to a node, until one end closes it."""
        inner_writer: asyncio.StreamWriter | None = None
        try:
            sender, head = await _read_hello(reader)
            await self._joined(sender, node.id)
            inner_reader, inner_writer = await asyncio.open_connection(
                self._inner_host, node.replication_port
            )
            if not is_usable_transport(inner_writer.transport):
                return
            inner_writer.write(head)
            await _until_first(
                self._copy(reader, inner_writer, sender, node.id),
                self._copy(inner_reader, writer, node.id, sender),
            )
        except (OSError, PeerProtocolError):
            pass  # the end of one side is the end of the other
        finally:
            for each in (writer, inner_writer):
                if each is not None:
                    each.close()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str, target: str
    ) -> None:
        """Until the end of what comes. Raises: OSError."""
        while data := await reader.read(CHUNK_BYTES):
            await self._joined(source, target)
            writer.write(data)
            await writer.drain()

    async def _joined(self, one: str, other: str) -> None:
        """Returns when no partition is between the two."""
        while (one in self._apart) != (other in self._apart):
            await self._changed.wait()


async def _read_hello(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """The node that made the connection, and the bytes of its Hello.

    Raises: PeerProtocolError, OSError when the connection begins with something else.
    """
    decoder, head = FrameDecoder(HELLO_BYTES_MAX), b""
    while byte := await reader.read(1):  # not more: what follows may be an entry of any size
        head += byte
        for frame in decoder.feed(byte):
            if isinstance(frame, Hello):
                return frame.node_id, head
            raise ConnectionAbortedError("it begins with another frame")
    raise ConnectionAbortedError("it says no Hello")


async def _until_first(*copies: Coroutine[Any, Any, None]) -> None:
    """Until one ends; the others end with it. Raises: what the first one raises."""
    tasks = [asyncio.create_task(copy) for copy in copies]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        with suppress(OSError):
            await asyncio.gather(*tasks, return_exceptions=True)
