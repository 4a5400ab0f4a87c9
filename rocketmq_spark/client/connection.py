"""Blocking connections over the Remoting protocol, for Spark's workers, which are synchronous."""

import socket
import struct
import time
from types import TracebackType
from typing import Final, Self

from commitlog.entry import Buffer
from remoting.command import RemotingCommand, decode_command, encode_head
from remoting.errors import CommandError, ConnectFailedError, RemotingClosedError, RequestTimeoutError
from remoting.frame import FRAME_BYTES_MAX, LENGTH_BYTES
from rocketmq_spark.client.buffer_pool import BufferPool
from sockets.dialled import dial

CONNECT_TIMEOUT_S: Final = 3.0
"""How long a host may take to accept: one that is gone must not hold a retry up."""
_OPAQUE_MAX = 0x7FFFFFFF
_HEADER_WORD_BYTES = 4
_HEADER_BYTES_MAX = 0xFFFFFF
_read_word = struct.Struct(">I").unpack_from


class Connection:
    """One connection to one node. Not for use by several threads.

    After an error it is closed: which answers are still under way is unknown.
    """

    def __init__(self, address: str, timeout_s: float) -> None:
        """Connect to `host:port`, within `timeout_s` and CONNECT_TIMEOUT_S.

        Raises:
            ConnectFailedError: the address is unreadable or nobody accepts there.
        """
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal():
            raise ConnectFailedError(f"{address!r} is not host:port")
        try:
            limit_s = min(timeout_s, CONNECT_TIMEOUT_S)
            self._socket = dial((host.strip("[]"), int(port)), limit_s)
        except (OSError, OverflowError) as error:
            raise ConnectFailedError(f"{address}: {str(error) or type(error).__name__}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = address
        self.is_open = True
        self._timeout_s = timeout_s
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close at once; nothing happens the second time."""
        self.is_open = False
        self._socket.close()

    def invoke(self, command: RemotingCommand, timeout_s: float | None = None) -> RemotingCommand:
        """Send a request and return its answer, whatever its code; other answers are dropped.

        Raises:
            RemotingClosedError, RequestTimeoutError: no answer came; the connection is closed.
        """
        deadline_s = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        opaque = self.send(command)
        while True:
            answer = self._receive_until(deadline_s)
            if answer.opaque == opaque:
                return answer

    def send(self, command: RemotingCommand) -> int:
        """Send a request without waiting for its answer; return the opaque that the answer will carry.

        Raises:
            RemotingClosedError, RequestTimeoutError: it could not be sent; the connection is closed.
            CommandError: the request is too large for any receiver; nothing was sent.
        """
        self._opaque = self._opaque % _OPAQUE_MAX + 1
        command.opaque = self._opaque
        head = encode_head(command)
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(head + command.body)
        except OSError as error:
            raise self._failed(error) from None
        return self._opaque

    def receive(self, timeout_s: float | None = None) -> RemotingCommand:
        """The next answer, of whichever request; requests that the node makes are dropped.

        Raises:
            RemotingClosedError, RequestTimeoutError: none came; the connection is closed.
        """
        return self._receive_until(time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s))

    def receive_into(self, memory: BufferPool) -> tuple[RemotingCommand, Buffer]:
        """The next answer as by `receive`, but without its body, which is in a block of memory.

        Raises:
            RemotingClosedError, RequestTimeoutError: none came; the connection is closed.
        """
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                payload = self._read_frame(deadline_s, memory)
                head_bytes = _head_bytes(payload)
                command = decode_command(bytes(payload[:head_bytes]))
            except (OSError, CommandError) as error:
                raise self._failed(error) from None
            if command.is_response:
                return command, payload[head_bytes:]

    def _receive_until(self, deadline_s: float) -> RemotingCommand:
        while True:
            try:
                command = decode_command(bytes(self._read_frame(deadline_s)))
            except (OSError, CommandError) as error:
                raise self._failed(error) from None
            if command.is_response:
                return command

    def _read_frame(self, deadline_s: float, memory: BufferPool | None = None) -> memoryview:
        """A frame's payload. Raises OSError, CommandError."""
        word = bytearray(LENGTH_BYTES)
        self._fill(memoryview(word), deadline_s)
        (length,) = _read_word(word)
        if not LENGTH_BYTES <= length <= FRAME_BYTES_MAX:
            raise CommandError(f"frame length {length}")
        payload = memoryview(bytearray(length)) if memory is None else memory.acquire(length)[:length]
        self._fill(payload, deadline_s)
        return payload

    def _fill(self, rest: memoryview, deadline_s: float) -> None:
        while rest:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            received = self._socket.recv_into(rest)
            if not received:
                raise ConnectionResetError("the peer closed the connection")
            rest = rest[received:]

    def _failed(self, error: Exception) -> RemotingClosedError | RequestTimeoutError:
        self.close()
        text = f"{self.address}: {str(error) or type(error).__name__}"
        return RequestTimeoutError(text) if isinstance(error, TimeoutError) else RemotingClosedError(text)


def _head_bytes(payload: memoryview) -> int:
    """Where the body begins."""
    (word,) = _read_word(payload)
    return _HEADER_WORD_BYTES + int(word & _HEADER_BYTES_MAX)


class Connections:
    """One connection to each address, made when first asked for."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._open: dict[str, Connection] = {}

    def get(self, address: str) -> Connection:
        """The open connection to the address, or a new one. Raises ConnectFailedError."""
        connection = self._open.get(address)
        if connection is None or not connection.is_open:
            connection = self._open[address] = Connection(address, self._timeout_s)
        return connection

    def drop(self, address: str) -> None:
        """Close the connection to the address, if there is one."""
        connection = self._open.pop(address, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close all."""
        for address in tuple(self._open):
            self.drop(address)
