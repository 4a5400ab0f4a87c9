"""From the bytes of a stream to its commands: all that a chunk completes in one step. Pure."""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from native import function
from remoting.command import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    HEADER_BYTES_MAX,
    LANGUAGES,
    LENGTH_BYTES,
    ONEWAY_FLAG,
    OTHER_LANGUAGE,
    RESPONSE_FLAG,
    FrameDecoder,
    RemotingCommand,
    decode_command,
)
from remoting.errors import CommandError
from remoting.headers.send import SendMessageRequestHeader, SendRequest

LARGE_BYTES: Final = 4096
"""The bytes of a request from this size on are counted while the request exists; smaller ones are bounded by
their number.
"""

MAPPED_BYTES_MIN: Final = 256 * 1024
"""An incomplete frame of this size or more has memory of its own from the system: it is taken page by page as
the bytes arrive, never copied to grow, and given back at once, which the heap's is not.
"""

_make_native = function("_remoting", "FrameReader")


@dataclass(slots=True)
class Received:
    """Commands in order of arrival.

    open_count: how many need an answer.
    code: the code that all of them have, or -1.
    has_answers: not all are requests.
    large: the places of the large ones, with the bytes of each.
    error: why the command after these cannot be read.
    """

    commands: list[RemotingCommand] = field(default_factory=list)
    open_count: int = 0
    code: int = -1
    has_answers: bool = False
    large: list[tuple[int, int]] = field(default_factory=list)
    error: CommandError | None = None

    def append(self, other: "Received") -> None:
        """Append what was read after these."""
        before = len(self.commands)
        if other.commands:
            self.code = other.code if not before or self.code == other.code else -1
        self.commands += other.commands
        self.open_count += other.open_count
        self.has_answers |= other.has_answers
        self.large += [(before + place, size) for place, size in other.large]
        self.error = other.error


class _MappedFrame:
    """An incomplete frame whose length is known."""

    def __init__(self, begin: memoryview, frame_bytes: int) -> None:
        self._memory = mmap.mmap(-1, frame_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.filled_bytes = 0
        self.add(begin)

    def add(self, data: memoryview) -> None:
        end = self.filled_bytes + len(data)
        self._memory[self.filled_bytes : end] = data
        self.filled_bytes = end

    def take(self) -> RemotingCommand:
        """The command; the memory is free then. Of all copies of a large body this is the only one: three of
        16 MiB took up to 20 ms. Raises CommandError.
        """
        head_end = FRAME_BYTES_MIN + (
            int.from_bytes(self._memory[LENGTH_BYTES:FRAME_BYTES_MIN], "big") & 0xFFFFFF
        )
        try:
            command = decode_command(self._memory[LENGTH_BYTES:head_end])
            command.body = self._memory[head_end:]
        finally:
            self._memory.close()
        return command


class CommandReader:
    """Reads one stream. Keeps the bytes of one incomplete frame, as FrameDecoder does."""

    def __init__(
        self, frame_bytes_max: int = FRAME_BYTES_MAX, header_bytes_max: int = HEADER_BYTES_MAX
    ) -> None:
        self._frames = FrameDecoder(frame_bytes_max, header_bytes_max)
        self._partial = bytearray()
        self._mapped: _MappedFrame | None = None
        self._bytes_needed = FRAME_BYTES_MIN
        self._native: Any = None
        if _make_native is not None:
            classes = (RemotingCommand, SendRequest, SendMessageRequestHeader)
            limits = (frame_bytes_max, header_bytes_max, LARGE_BYTES)
            self._native = _make_native(*classes, LANGUAGES, LANGUAGES[OTHER_LANGUAGE], *limits)

    @property
    def partial_bytes(self) -> int:
        """The bytes received of an incomplete frame."""
        if self._mapped is not None:
            return self._mapped.filled_bytes
        return len(self._partial) or self._frames.partial_bytes

    @property
    def announced_bytes(self) -> int:
        """The bytes of an incomplete frame that have arrived or will: it may claim so much memory."""
        needed = self._frames.bytes_needed if self._native is None else self._bytes_needed
        return max(needed, self.partial_bytes) if self.partial_bytes else 0

    def clear(self) -> None:
        """Free the incomplete frame; nothing can be read after that."""
        # The connection of a closed reader may be kept, until the garbage collector finds it, for minutes.
        self._mapped = None
        self._partial = bytearray()
        self._frames.clear()

    def feed(self, data: bytes) -> Received:
        """Add the next bytes of the stream; return the commands that are complete now.

        Raises:
            FrameError: as FrameDecoder.feed. An unreadable command is the `error` of what is returned.
                After either the reader is of no further use.
        """
        if self._native is None:
            return _decode(self._frames.feed(data))
        partial_bytes = self.partial_bytes
        if not partial_bytes:
            return self._read(data, 0)
        if partial_bytes + len(data) < self._bytes_needed:
            if self._mapped is not None:
                self._mapped.add(memoryview(data))
            else:
                self._partial += data
            return Received()
        if self._bytes_needed == FRAME_BYTES_MIN:
            data = bytes(self._partial) + data
            self._partial.clear()
            return self._read(data, 0)
        # Only the frame that was begun is copied together; the others are read in place.
        rest_at = self._bytes_needed - partial_bytes
        received = self._complete_frame(memoryview(data)[:rest_at])
        others = self._read(data, rest_at)
        if received.error is None:
            received.append(others)
        return received

    def _complete_frame(self, rest: memoryview) -> Received:
        mapped, self._mapped = self._mapped, None
        if mapped is not None:
            mapped.add(rest)
            try:
                command = mapped.take()
            except CommandError as error:
                return Received(error=error)
            return _complete(Received([command], large=[(0, mapped.filled_bytes - LENGTH_BYTES)]))
        begun = b"".join((self._partial, rest))
        self._partial.clear()
        return self._read(begun, 0)

    def _read(self, data: bytes, start: int) -> Received:
        found = self._native.read(data, start)
        if found is None:
            self._frames.feed(data[start:])
            raise AssertionError("the compiled reader refused frames that are right")
        commands, end, self._bytes_needed, open_count, code, is_plain, large = found
        if end < len(data):
            if self._bytes_needed >= MAPPED_BYTES_MIN:
                self._mapped = _MappedFrame(memoryview(data)[end:], self._bytes_needed)
            else:
                self._partial += data[end:] if end else data
        received = Received(commands, open_count, code, False, large or [])
        return received if is_plain else _complete(received)


def _decode(payloads: Sequence[bytes]) -> Received:
    """All payloads, by Python alone."""
    large = [(at, len(payload)) for at, payload in enumerate(payloads) if len(payload) >= LARGE_BYTES]
    return _complete(Received(list(payloads), large=large))  # type: ignore[arg-type]


def _complete(received: Received) -> Received:
    """Decode the commands that are still payloads in the list, and count what all of them are."""
    commands: list[Any] = received.commands
    for at, command in enumerate(commands):
        if type(command) is bytes:
            try:
                commands[at] = decode_command(command)
            except CommandError as error:
                received.error = error
                del commands[at:]
                received.large = [(place, size) for place, size in received.large if place < at]
                break
    codes = {command.code for command in commands}
    received.code = codes.pop() if len(codes) == 1 else -1
    flags = [command.flag & (RESPONSE_FLAG | ONEWAY_FLAG) for command in commands]
    received.open_count = flags.count(0)
    received.has_answers = any(flag & RESPONSE_FLAG for flag in flags)
    return received
