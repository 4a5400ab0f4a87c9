"""The generator's connections: plain sockets, and frames of sends that are built only once. The generator
must use little CPU time, because it runs on the same cores as the cluster.

A slot is a place for one send in flight. The number of the slot is the opaque of its frames, so that a frame
can be sent many times without a change.
"""

import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

from remoting.acl import Signer
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, encode_command
from remoting.command_reader import CommandReader
from remoting.errors import CommandError, FrameError
from remoting.route import DEFAULT_TOPIC
from sockets.dialled import dial
from sockets.tls import TlsCredentials, TlsError, TlsStream

SLOTS_MAX = 1_000_000
JAVA_VERSION = 479
"""RocketMQ's MQVersion in the frames."""

Target = tuple[str, int]
"""A topic and the number of one of its queues."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers in one read: slots of acknowledged sends, and of failed ones with their codes."""

    acknowledged: list[int]
    failed: list[tuple[int, int]]


class AnswerReader:
    """Reads the answers of one connection; an answer may be split over several reads."""

    def __init__(self) -> None:
        self._reader = CommandReader()

    def feed(self, data: bytes) -> Answers:
        """Add received bytes, and return the answers that are complete now.

        Raises:
            FrameError, CommandError: the stream is unreadable.
        """
        received = self._reader.feed(data)
        if received.error is not None:
            raise received.error
        answers = received.commands
        if received.code == ResponseCode.SUCCESS:
            return Answers([answer.opaque for answer in answers], [])
        acknowledged = [answer.opaque for answer in answers if answer.code == ResponseCode.SUCCESS]
        return Answers(acknowledged, [(answer.opaque, answer.code) for answer in answers if answer.code])


def send_frame(
    target: Target, slot: int, body: bytes, group: str = "ledgermq-load", signer: Signer | None = None
) -> bytes:
    """One SEND_MESSAGE_V2 as the stock Java client sends it."""
    topic, queue = target
    unique = f"7F000001{slot:08X}{queue:08X}00000000"
    ext = {
        "a": group,
        "b": topic,
        "c": DEFAULT_TOPIC,
        "d": "8",
        "e": str(queue),
        "f": "0",
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": f"UNIQ_KEY\x01{unique}\x02WAIT\x01true\x02",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    command = RemotingCommand(
        RequestCode.SEND_MESSAGE_V2, slot, ext_fields=ext, body=body, language="JAVA", version=JAVA_VERSION
    )
    if signer is not None:
        signer.sign(command)
    return encode_command(command)


def slot_frames(
    targets: Sequence[Target],
    slots: int,
    body: bytes,
    first: int = 0,
    step: int = 1,
    signer: Signer | None = None,
) -> dict[int, Iterator[bytes]]:
    """For each slot the frames that it sends in turn.

    Together the generator's slots go through all targets: the one numbered `first` begins with that target,
    and advances by `step`, the number of all slots.
    """
    frames: dict[int, Iterator[bytes]] = {}
    for slot in range(slots):
        at = first + slot
        turns = range(at, max(at + 1, len(targets)), step)
        sent = [send_frame(targets[turn % len(targets)], slot, body, signer=signer) for turn in turns]
        frames[slot] = cycle(sent)
    return frames


def take(frames: dict[int, Iterator[bytes]], slots: Sequence[int]) -> bytes:
    """The next frame of each of these slots, joined without a gap."""
    return b"".join(map(next, map(frames.__getitem__, slots)))


READ_BYTES = 1 << 17
CONNECT_LIMIT_S = 5.0


class Pipe:
    """One connection: sends the frames of its slots, and keeps the start time of each send.

    `starts`: for every slot in flight, the time from which its latency counts (s of `perf_counter`).
    `idle`: the other slots. `watched`: the events for which the owner's selector waits.

    Raises: OSError, also when the TLS handshake fails.
    """

    def __init__(
        self,
        address: tuple[str, int],
        frames: dict[int, Iterator[bytes]],
        tls: TlsCredentials | None = None,
        source: str = "",
    ) -> None:
        self.socket = dial(address, CONNECT_LIMIT_S, source)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tls = None if tls is None else _shaken(self.socket, tls.stream(address[0]))
        self.socket.setblocking(False)
        self.starts: dict[int, float] = {}
        self.idle = list(frames)
        self.is_open = True
        self.watched = 0
        self._frames = frames
        self._reader = AnswerReader()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._unsent = memoryview(b"")

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, slots: Sequence[int]) -> None:
        """Send the next frame of each slot; bytes that the kernel does not accept are kept for `flush`."""
        data = take(self._frames, slots)
        if self._tls is not None:
            self._tls.encrypt((data,))
            data = self._tls.take_outgoing()
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
        """Read once; return the answers. A connection that ended is closed; its sends stay in `starts`."""
        try:
            count = self.socket.recv_into(self._buffer)
        except BlockingIOError:
            return Answers([], [])
        except OSError:
            count = 0
        if not count:
            self.close()
            return Answers([], [])
        try:
            data = bytes(self._buffer[:count])
            return self._reader.feed(data if self._tls is None else self._tls.receive(data))
        except (FrameError, CommandError, TlsError):
            self.close()
            return Answers([], [])

    def close(self) -> None:
        self.is_open = False
        self.socket.close()
        self._unsent = memoryview(b"")


def _shaken(connected: socket.socket, stream: TlsStream) -> TlsStream:
    """The stream after its handshake. Raises OSError."""
    stream.start()
    while not stream.is_established:
        connected.sendall(stream.take_outgoing())
        data = connected.recv(READ_BYTES)
        if not data:
            raise ConnectionResetError("the broker closed the connection during the TLS handshake")
        try:
            stream.receive(data)
        except TlsError as error:
            raise ConnectionError(f"no TLS with the broker: {error}") from None
    connected.sendall(stream.take_outgoing())
    return stream
