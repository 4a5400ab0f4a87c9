"""Frames of sends, built once, answers found by scanning, and the plain socket between them: CPU time that
the generator spends is missing for the cluster.

A slot is a place for one send in flight. It keeps its opaque number, ten digits long, so no frame has to be
changed and an answer is found by a pattern.
"""

import re
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import orjson

from remoting.codes import RequestCode
from sockets.dialled import dial

FIRST_OPAQUE = 1_000_000_000
SLOTS_MAX = 1_000_000
_lengths = struct.Struct(">II").pack
_find_opaques = re.compile(rb'"opaque":(\d{10})(?=[,}])').findall
_find_codes = re.compile(rb'"code":(-?\d+)(?=[,}])').findall
_OPAQUE_MARK = b'"opaque":'
_OPAQUE_BYTES = len(_OPAQUE_MARK) + 10
_OK_MARK = b'"code":0,'

Target = tuple[str, int]
"""A topic and the number of one of its queues."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What one read brought: the slots (by their opaque's digits) that were acknowledged, and that failed."""

    acknowledged: list[bytes]
    failed: list[tuple[bytes, int]]


def slot_key(slot: int) -> bytes:
    return b"%d" % (FIRST_OPAQUE + slot)


def send_frame(target: Target, slot: int, body: bytes, group: str = "ledgermq-load") -> bytes:
    """One SEND_MESSAGE_V2 as the stock Java client sends it."""
    topic, queue = target
    unique = f"7F000001{slot:08X}{queue:08X}00000000"
    ext = {
        "a": group,
        "b": topic,
        "c": "TBW102",
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
    header = orjson.dumps(
        {
            "code": int(RequestCode.SEND_MESSAGE_V2),
            "extFields": ext,
            "flag": 0,
            "language": "JAVA",
            "opaque": FIRST_OPAQUE + slot,
            "serializeTypeCurrentRPC": "JSON",
            "version": 479,
        }
    )
    return _lengths(4 + len(header) + len(body), len(header)) + header + body


def slot_frames(
    targets: Sequence[Target], slots: int, body: bytes, first: int = 0, step: int = 1
) -> dict[bytes, Iterator[bytes]]:
    """For each slot's key the frames it sends in turn.

    Together the generator's slots go through all targets: the one numbered `first` begins with that target,
    and advances by `step`, the number of all slots.
    """
    frames: dict[bytes, Iterator[bytes]] = {}
    for slot in range(slots):
        at = first + slot
        turns = range(at, max(at + 1, len(targets)), step)
        sent = [send_frame(targets[turn % len(targets)], slot, body) for turn in turns]
        frames[slot_key(slot)] = cycle(sent)
    return frames


class AnswerScanner:
    """Finds the answers in a stream of bytes, wherever reads cut it.

    Both LedgerMQ and RocketMQ write an answer's code before its opaque number; anything behind that
    number is of no interest here.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Answers:
        """All answers whose opaque number is there by now."""
        data = self._rest + data if self._rest else data
        opaques = _find_opaques(data)
        if not opaques:
            self._rest = data
            return Answers([], [])
        end = data.rfind(_OPAQUE_MARK + opaques[-1]) + _OPAQUE_BYTES
        self._rest = data[end:]
        if data.count(_OK_MARK, 0, end) == len(opaques):
            return Answers(opaques, [])
        return _sort_out(opaques, _find_codes(data[:end]))


def _sort_out(opaques: list[bytes], codes: list[bytes]) -> Answers:
    acknowledged = [opaque for opaque, code in zip(opaques, codes, strict=False) if code == b"0"]
    failed = [(opaque, int(code)) for opaque, code in zip(opaques, codes, strict=False) if code != b"0"]
    return Answers(acknowledged, failed)


def take(frames: dict[bytes, Iterator[bytes]], keys: Sequence[bytes]) -> bytes:
    """The next frame of each of these slots, back to back."""
    return b"".join(map(next, map(frames.__getitem__, keys)))


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
        """Send the next frame of each slot; what the kernel does not accept now is kept for `flush`."""
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
