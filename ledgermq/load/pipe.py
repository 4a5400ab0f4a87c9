"""One connection of the load generator: a plain socket, read and written in large pieces."""

import socket
from collections.abc import Iterator, Sequence

from ledgermq.load.frames import Answers, AnswerScanner, take
from sockets.dialled import dial

READ_BYTES = 1 << 17
CONNECT_LIMIT_S = 5.0


class Pipe:
    """Sends slots' frames; remembers when each slot's send began.

    `starts` holds, for every slot in flight, the time its send counts from (in s of `perf_counter`); `idle`
    has the other slots; `watched` are the events its owner's selector waits for.
    """

    def __init__(self, address: tuple[str, int], frames: dict[bytes, Iterator[bytes]]) -> None:
        self.socket = dial(address, CONNECT_LIMIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.starts: dict[bytes, float] = {}
        self.idle = list(frames)
        self.is_open = True
        self.watched = 0
        self._frames = frames
        self._scanner = AnswerScanner()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._unsent = memoryview(b"")

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, keys: Sequence[bytes]) -> None:
        """Send the next frame of each slot; what the kernel does not take now is kept for `flush`."""
        data = take(self._frames, keys)
        if self._unsent:
            data = bytes(self._unsent) + data
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        if sent < len(data) or self._unsent:
            self._unsent = memoryview(data)[sent:]

    def flush(self) -> None:
        try:
            self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def receive(self) -> Answers:
        """What one read brings; a connection that ended is closed, and its sends stay in `starts`."""
        try:
            count = self.socket.recv_into(self._buffer)
        except BlockingIOError:
            return Answers([], [])
        except OSError:
            count = 0
        if not count:
            self.close()
            return Answers([], [])
        return self._scanner.feed(bytes(self._buffer[:count]))

    def close(self) -> None:
        self.is_open = False
        self.socket.close()
        self._unsent = memoryview(b"")
