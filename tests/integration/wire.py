"""A blocking connection to a broker or name server, for tests that speak the protocol themselves."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from remoting.codes import RequestCode
from remoting.command import RemotingCommand, decode_command, encode_command
from remoting.route import parse_topic_route
from sockets.dialled import dial

LENGTH = struct.Struct(">I")
CHUNK_BYTES = 1 << 16


class WireError(Exception):
    """The peer closed the connection, or answered with a code that is not success."""


class Wire:
    """One connection. Raw bytes or commands in, commands out."""

    def __init__(self, address: str, limit_s: float = 5.0, source: str = "") -> None:
        """`source`: the address that it comes from."""
        self._socket = dial(_split(address), limit_s, source)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        host, port = self._socket.getsockname()
        self.local_address = f"{host}:{port}"
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read_command(self) -> RemotingCommand:
        """The next whole command. Raises WireError when the peer closed, TimeoutError when it is silent."""
        (length,) = LENGTH.unpack(self._read_exactly(LENGTH.size))
        return decode_command(self._read_exactly(length))

    def invoke(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        """Send a request and return its answer, whatever its code."""
        self._opaque += 1
        request = RemotingCommand(code=code, opaque=self._opaque, ext_fields=dict(ext or {}), body=body)
        self.send_bytes(encode_command(request))
        while True:
            answer = self.read_command()
            if answer.is_response and answer.opaque == self._opaque:
                return answer

    def is_closed_by_peer(self) -> bool:
        """Wait for the peer to close; False when bytes come instead. Raises TimeoutError at the limit."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _read_exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self._socket.recv(min(count - len(parts), CHUNK_BYTES))
            except ConnectionResetError:
                part = b""
            if not part:
                raise WireError("the peer closed the connection")
            parts += part
        return bytes(parts)


def call(
    address: str,
    code: int,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    limit_s: float = 5.0,
) -> RemotingCommand:
    """One request on a connection of its own. Raises WireError when the answer is not success."""
    with Wire(address, limit_s) as wire:
        answer = wire.invoke(code, ext, body)
    if answer.code != 0:
        raise WireError(f"request {code} got {answer.code}: {answer.remark}")
    return answer


def broker_of(namesrv: str) -> str:
    """The address that takes messages, as the name server tells producers of new topics."""
    answer = call(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
    address = parse_topic_route(answer.body).broker_datas[0].master_addr
    assert address is not None
    return address


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
