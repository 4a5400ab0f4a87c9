"""Frames and peers that the tests of this folder share."""

import asyncio
from types import TracebackType
from typing import Self

from remoting.command import FrameDecoder, RemotingCommand, decode_command, encode_command

# Request 105 with topic T, as the wire format's description computes it.
JSON_FRAME = bytes.fromhex("0000005e0000005a") + (
    b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,"version":409}'
)
BINARY_FRAME = bytes.fromhex(
    "000000250100002100690001990000000700000000000000000000000c0005746f7069630000000154"
)


class RawPeer:
    """The other end of a connection, byte by byte under the test's hand."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._decoder = FrameDecoder()
        self._commands: list[RemotingCommand] = []

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            return

    def send(self, *commands: RemotingCommand) -> None:
        self.writer.write(b"".join(map(encode_command, commands)))

    async def receive(self) -> RemotingCommand:
        """The next command, within 5 s."""
        while not self._commands:
            data = await asyncio.wait_for(self.reader.read(65536), 5)
            if not data:
                raise ConnectionResetError("closed by the server")
            self._commands += map(decode_command, self._decoder.feed(data))
        return self._commands.pop(0)

    async def is_closed_by_peer(self) -> bool:
        """Whether the connection ends within 5 s."""
        try:
            while await asyncio.wait_for(self.reader.read(65536), 5):
                pass
        except (ConnectionResetError, BrokenPipeError):
            return True
        except TimeoutError:
            return False
        return True
