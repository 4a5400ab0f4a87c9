"""Servers on event loops of their own that say for how long each turn held them, in CPU time of their thread.

CPU time and not the clock's: what other processes and threads do in between does not count. A turn is all
that runs between two looks at the timers and sockets: so long a leader's heartbeat may have to wait.
"""

import asyncio
import contextlib
import cProfile
import pstats
import selectors
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from io import StringIO
from typing import Any, Final, Self

from remoting.command import RemotingCommand, decode_command, encode_command

ANSWER_S: Final = 20.0
QUIET_S: Final = 0.002
QUIET_LIMIT_S: Final = 3.0
UNKNOWN_CODE: Final = 32_000
"""Has no handler: its answer says that all bytes before it were read."""
REFERENCE_MS: Final = 10.0
"""What `reference_ms` takes on the machines that the bound of 20 ms is stated for."""
_REFERENCE_ROUNDS: Final = 45_000


COPY_REFERENCE_MS: Final = 24.0
"""What `copy_ms` takes there."""
_COPY_BYTES: Final = 16 * 1024 * 1024


def slowness() -> float:
    """How many times slower this machine is now, by Python work or the copy of a large frame; at least 1.

    Other processes on the machine slow the memory down, too, and with it what only copies bytes.
    """
    return max(1.0, reference_ms() / REFERENCE_MS, copy_ms() / COPY_REFERENCE_MS)


def reference_ms() -> float:
    """CPU time of a fixed piece of Python's work, the least of three."""
    return min(_reference_once() for _ in range(3))


def copy_ms() -> float:
    """CPU time of filling new memory with the largest frame and copying it once, the least of three."""
    return min(_copy_once() for _ in range(3))


def _copy_once() -> float:
    before = time.thread_time()
    filled = bytearray(_COPY_BYTES)
    filled[:] = bytes(filled)
    return (time.thread_time() - before) * 1000


def _reference_once() -> float:
    before = time.thread_time()
    table: dict[str, int] = {}
    for number in range(_REFERENCE_ROUNDS):
        key = f"key{number % 997}"
        table[key] = table.get(key, 0) + len(key.split("e"))
    return (time.thread_time() - before) * 1000


class MeasuredLoop(asyncio.SelectorEventLoop):
    """Remembers its longest turn since `begin`."""

    def __init__(self) -> None:
        super().__init__(selectors.DefaultSelector())
        self.turns = 0
        self.longest_ms = 0.0
        self.profiles = False
        self.profile = ""
        """Of the longest turn, if `profiles` is set."""

    def begin(self) -> None:
        self.longest_ms, self.profile = 0.0, ""

    def _run_once(self) -> None:
        self.turns += 1
        profile = cProfile.Profile(time.thread_time) if self.profiles else None
        run: Callable[[], None] = super()._run_once  # type: ignore[misc]
        before = time.thread_time()
        if profile is None:
            run()
        else:
            profile.runcall(run)
        used_ms = (time.thread_time() - before) * 1000
        if used_ms > self.longest_ms:
            self.longest_ms = used_ms
            if profile is not None:
                self.profile = _table(profile)


def _table(profile: cProfile.Profile) -> str:
    text = StringIO()
    pstats.Stats(profile, stream=text).sort_stats("cumulative").print_stats(18)
    return text.getvalue()


class ServerThread:
    """A server on a MeasuredLoop in a thread. `start` returns its port and what stops it."""

    def __init__(self, start: Callable[[], Awaitable[tuple[int, Callable[[], Awaitable[None]]]]]) -> None:
        self.loop = MeasuredLoop()
        self._start = start
        self._stop: Callable[[], Awaitable[None]] | None = None
        self.port = 0
        self.codes: frozenset[int] = frozenset()
        """That the server answers."""
        self.replication_port = 0
        """Of a broker."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, work: Awaitable[Any]) -> Any:
        """Run on the loop, and wait for it."""

        async def run() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(60)

    def __enter__(self) -> Self:
        self._thread.start()
        self.port, self._stop = self.call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        if self._stop is not None:
            self.call(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def wait_quiet(self) -> None:
        """Until what a request began is over, as far as the loop's turns show."""
        end_s = time.monotonic() + QUIET_LIMIT_S
        while time.monotonic() < end_s:
            before = self.loop.turns
            time.sleep(QUIET_S)
            if self.loop.turns - before <= 1:
                return


class Peer:
    """A client's connection, blocking, in the thread of the test; opened again when the server closes it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self._received = b""
        self._last_opaque = 0

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._received = b""

    def ask(self, command: RemotingCommand, limit_s: float = 0.05) -> RemotingCommand | None:
        """The answer; None when the server has closed the connection instead, or keeps the request for so
        long after it has read it.
        """
        self._last_opaque += 2
        command.opaque = self._last_opaque
        ping = RemotingCommand(UNKNOWN_CODE, self._last_opaque + 1)
        with contextlib.suppress(OSError):
            self.send(encode_command(command) + encode_command(ping))
            return self._answer(command.opaque, ping.opaque, limit_s)
        self.close()
        return None

    def send(self, data: bytes) -> None:
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), ANSWER_S)
        self._socket.sendall(data)

    def _answer(self, opaque: int, ping: int, limit_s: float) -> RemotingCommand | None:
        found, is_read = None, False
        while not (is_read and found):
            command = self._read(limit_s if is_read else ANSWER_S)
            if command is None:
                return found
            if command.is_response and command.opaque == opaque:
                found = command
            elif command.is_response and command.opaque == ping:
                is_read = True
        return found

    def _read(self, limit_s: float) -> RemotingCommand | None:
        assert self._socket is not None
        self._socket.settimeout(limit_s)
        while len(self._received) < 4 or len(self._received) - 4 < int.from_bytes(self._received[:4], "big"):
            try:
                data = self._socket.recv(1 << 20)
            except TimeoutError:
                return None
            if not data:
                raise ConnectionError("closed")
            self._received += data
        end = 4 + int.from_bytes(self._received[:4], "big")
        payload, self._received = self._received[4:end], self._received[end:]
        self._socket.settimeout(ANSWER_S)
        return decode_command(payload)
