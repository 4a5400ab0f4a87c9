"""A client's half of the Remoting protocol on one connection, without I/O.

A `RequestTable` numbers requests and matches answers to them. An `AnswerReader` puts the frames of a byte
stream together, in memory that its user chooses. Sockets, clocks and waiting are in `blocking.py`, and for
asyncio in `remoting/connection.py`.
"""

import struct
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from remoting.command import FRAME_BYTES_MAX, LENGTH_BYTES, RemotingCommand, decode_command
from remoting.errors import ConnectFailedError, FrameError

OPAQUE_MAX: Final = 0x7FFFFFFF
_HEADER_WORD_BYTES: Final = 4
_HEADER_BYTES_MASK: Final = 0xFFFFFF
_read_word = struct.Struct(">I").unpack_from

W = TypeVar("W")
Allocate = Callable[[int], memoryview]
"""Returns a block of at least so many bytes."""


class RequestTable(Generic[W]):
    """The requests of one connection that wait for an answer, by opaque number.

    A waiter is what the user keeps for each request. Deadlines are times of one monotonic clock, in seconds.
    """

    def __init__(self) -> None:
        self._pending: dict[int, tuple[W, float]] = {}
        self._last_opaque = 0

    def __len__(self) -> int:
        return len(self._pending)

    def next_opaque(self) -> int:
        """The number of the next request, 1 to OPAQUE_MAX and then 1 again."""
        self._last_opaque = self._last_opaque % OPAQUE_MAX + 1
        return self._last_opaque

    def add(self, opaque: int, waiter: W, deadline_s: float = float("inf")) -> None:
        """The request with this number waits for its answer."""
        assert opaque not in self._pending, f"two requests wait as {opaque}"
        self._pending[opaque] = (waiter, deadline_s)

    def settle(self, opaque: int) -> W | None:
        """Remove the request that has this number; None when no request waits with it any more."""
        pending = self._pending.pop(opaque, None)
        return None if pending is None else pending[0]

    def expire(self, now_s: float) -> list[W]:
        """Remove the overdue requests and return their waiters."""
        overdue = [opaque for opaque, (_, deadline_s) in self._pending.items() if deadline_s <= now_s]
        return [self._pending.pop(opaque)[0] for opaque in overdue]

    def next_deadline_s(self) -> float | None:
        """The earliest deadline; None while no request waits."""
        return min((deadline_s for _, deadline_s in self._pending.values()), default=None)

    def clear(self) -> list[W]:
        """Remove all requests, since the connection is closed, and return their waiters."""
        pending, self._pending = self._pending, {}
        return [waiter for waiter, _ in pending.values()]


def new_block(size_bytes: int) -> memoryview:
    """Allocates fresh memory."""
    return memoryview(bytearray(size_bytes))


class AnswerReader:
    """Puts one stream's frames together; used like asyncio's BufferedProtocol.

    The stream's next bytes are written into `space`, then `advance` is called with their number. A payload is
    received into its final place: no byte of an answer's body is copied. After an error the reader is of no
    further use.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._length_word = bytearray(LENGTH_BYTES)
        self._payload: memoryview | None = None
        self._rest = memoryview(self._length_word)

    def space(self, allocate: Allocate = new_block) -> memoryview:
        """Where the stream's next bytes belong, never empty. A new payload gets its memory from `allocate`.

        Raises:
            FrameError: the length of the frame is out of bounds.
        """
        if not self._rest:
            (length,) = _read_word(self._length_word)
            if not LENGTH_BYTES <= length <= self._frame_bytes_max:
                raise FrameError(f"frame length {length} is not in {LENGTH_BYTES}..{self._frame_bytes_max}")
            self._payload = self._rest = allocate(length)[:length]
        return self._rest

    def advance(self, count: int) -> memoryview | None:
        """So many bytes were written. Returns the frame's payload once it is complete."""
        assert count <= len(self._rest), f"{count} bytes were written into {len(self._rest)}"
        self._rest = self._rest[count:]
        if self._rest or self._payload is None:
            return None
        payload, self._payload = self._payload, None
        self._rest = memoryview(self._length_word)
        return payload


def split_payload(payload: memoryview) -> tuple[RemotingCommand, memoryview]:
    """Decode a payload's header into a command without a body; the body is returned separately.

    Raises:
        CommandError: the header is unreadable.
    """
    (word,) = _read_word(payload)
    body_at = _HEADER_WORD_BYTES + (word & _HEADER_BYTES_MASK)
    return decode_command(bytes(payload[:body_at])), payload[body_at:]


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`; an IPv6 host is in brackets.

    Raises:
        ConnectFailedError: it is no such address.
    """
    host, _, port = address.strip().rpartition(":")
    if not host or not port.isdecimal():
        raise ConnectFailedError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)
