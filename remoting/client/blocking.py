"""Blocking connections, for programs without an event loop such as Spark's workers."""

import socket
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from remoting.client.protocol import (
    Allocate,
    AnswerReader,
    RequestTable,
    new_block,
    split_address,
    split_payload,
)
from remoting.command import RemotingCommand, encode_head
from remoting.errors import (
    CommandError,
    ConnectFailedError,
    FrameError,
    RemotingClosedError,
    RequestTimeoutError,
)
from sockets.dialled import dial

if TYPE_CHECKING:
    from remoting.acl import Signer
    from sockets.tls import TlsCredentials

CONNECT_TIMEOUT_S: Final = 3.0
"""How long a host may take to accept: one that is down must not delay a retry for long."""


class Connection:
    """One connection to one node. Not for use by several threads.

    An error closes it, since it is unknown then which answers are still to come.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float,
        tls: "TlsCredentials | None" = None,
        signer: "Signer | None" = None,
    ) -> None:
        """Connect to `host:port`, within `timeout_s` and CONNECT_TIMEOUT_S; over TLS with `tls`. `signer`
        signs each request.

        Raises:
            ConnectFailedError: the address is unreadable, nothing accepts there, or the TLS handshake fails.
        """
        try:
            self._socket = _connected(address, min(timeout_s, CONNECT_TIMEOUT_S), tls)
        except (OSError, OverflowError) as error:
            raise ConnectFailedError(f"{address}: {str(error) or type(error).__name__}") from None
        self.address = address
        self.is_open = True
        self._timeout_s = timeout_s
        self._signer = signer
        self._requests: RequestTable[int] = RequestTable()
        self._reader = AnswerReader()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close at once; a second call has no effect."""
        self.is_open = False
        self._requests.clear()
        self._socket.close()

    def invoke(self, command: RemotingCommand, timeout_s: float | None = None) -> RemotingCommand:
        """Send a request and return its answer, whatever its code; answers of earlier requests are dropped.

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
        """Send a request without waiting for its answer; return the opaque number of both.

        Raises:
            RemotingClosedError, RequestTimeoutError: it could not be sent; the connection is closed.
            CommandError: the request is too large for any receiver; nothing was sent.
        """
        command.opaque = self._requests.next_opaque()
        if self._signer is not None:
            self._signer.sign(command)
        head = encode_head(command)
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(head + command.body)
        except OSError as error:
            raise self._failed(error) from None
        self._requests.add(command.opaque, command.opaque)
        return command.opaque

    def receive(self, timeout_s: float | None = None) -> RemotingCommand:
        """The next answer to any request sent here; requests of the node itself are dropped.

        Raises:
            RemotingClosedError, RequestTimeoutError: none came; the connection is closed.
        """
        return self._receive_until(time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s))

    def receive_into(self, allocate: Allocate) -> tuple[RemotingCommand, memoryview]:
        """The next answer as by `receive`, but its body is returned separately, in memory from `allocate`.

        Raises:
            RemotingClosedError, RequestTimeoutError: none came; the connection is closed.
        """
        return self._next_answer(time.monotonic() + self._timeout_s, allocate)

    def _receive_until(self, deadline_s: float) -> RemotingCommand:
        answer, body = self._next_answer(deadline_s, new_block)
        answer.body = bytes(body)
        return answer

    def _next_answer(self, deadline_s: float, allocate: Allocate) -> tuple[RemotingCommand, memoryview]:
        while True:
            try:
                command, body = split_payload(self._read_payload(deadline_s, allocate))
            except (OSError, CommandError, FrameError) as error:
                raise self._failed(error) from None
            if command.is_response and self._requests.settle(command.opaque) is not None:
                return command, body

    def _read_payload(self, deadline_s: float, allocate: Allocate) -> memoryview:
        payload = None
        while payload is None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            count = self._socket.recv_into(self._reader.space(allocate))
            if not count:
                raise ConnectionResetError("the peer closed the connection")
            payload = self._reader.advance(count)
        return payload

    def _failed(self, error: Exception) -> RemotingClosedError | RequestTimeoutError:
        self.close()
        text = f"{self.address}: {str(error) or type(error).__name__}"
        return RequestTimeoutError(text) if isinstance(error, TimeoutError) else RemotingClosedError(text)


def _connected(address: str, timeout_s: float, tls: "TlsCredentials | None") -> socket.socket:
    """Raises ConnectFailedError, OSError, OverflowError."""
    host, port = split_address(address)
    connected = dial((host, port), timeout_s)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected if tls is None else _secured(connected, address, host, tls)
    except BaseException:
        connected.close()
        raise


def _secured(connected: socket.socket, address: str, host: str, tls: "TlsCredentials") -> socket.socket:
    from sockets.tls import TlsError  # with `ssl`, which a client of plain text need not load

    try:
        return tls.wrap(connected, host)
    except TlsError as error:
        raise ConnectFailedError(f"{address}: no TLS: {error}") from None


class Connections:
    """One connection to each address, made at its first use."""

    def __init__(
        self, timeout_s: float, tls: "TlsCredentials | None" = None, signer: "Signer | None" = None
    ) -> None:
        self._timeout_s = timeout_s
        self._tls = tls
        self._signer = signer
        self._open: dict[str, Connection] = {}

    def get(self, address: str) -> Connection:
        """The open connection to the address, or a new one. Raises ConnectFailedError."""
        connection = self._open.get(address)
        if connection is None or not connection.is_open:
            connection = self._open[address] = Connection(address, self._timeout_s, self._tls, self._signer)
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
