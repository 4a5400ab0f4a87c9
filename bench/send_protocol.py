"""One connection that sends 310s and reads their answers, with as little work a message as Python allows.

The load generator shares the machine with the cluster, so what it spends is missing there: frames are built
once and differ only in their opaque number; an answer is looked at for its code and opaque alone.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import orjson

from remoting.codes import RequestCode

LENGTHS = struct.Struct(">II")
HEADER_LENGTH_MASK = 0xFFFFFF
OPAQUE_PLACE = b"@OPAQUE@"
FAILED = -1.0


def frame_parts(topic: str, queue: int, body: bytes) -> tuple[bytes, bytes, int]:
    """The header before and after the opaque number, and the frame's length without that number's digits."""
    now_ms = str(time.time_ns() // 1_000_000)
    properties = "UNIQ_KEY\x017F000001000000000000000000000000\x02WAIT\x01true\x02TAGS\x01bench\x02"
    ext = {
        "a": "bench",
        "b": topic,
        "c": "TBW102",
        "d": "8",
        "e": str(queue),
        "f": "0",
        "g": now_ms,
        "h": "0",
    }
    ext |= {"i": properties, "j": "0", "k": "false", "m": "false"}
    header = {"code": int(RequestCode.SEND_MESSAGE_V2), "flag": 0, "language": "JAVA", "version": 479}
    text = orjson.dumps(header | {"extFields": ext, "opaque": OPAQUE_PLACE.decode()})
    before, after = text.split(b'"' + OPAQUE_PLACE + b'"')
    return before, after + body, 4 + len(before) + len(after) + len(body)


class SendProtocol(asyncio.Protocol):
    """Keeps the start time of each send by its opaque number; calls `on_answers` once a read.

    It gets the start times of the sends answered, FAILED for those answered with an error.
    """

    def __init__(
        self, topic: str, queues: int, body: bytes, on_answers: Callable[[SendProtocol, list[float]], None]
    ) -> None:
        self._parts = [frame_parts(topic, queue, body) for queue in range(queues)]
        self._body_bytes = len(body)
        self._on_answers = on_answers
        self._starts: dict[int, float] = {}
        self._opaque = 0
        self._partial = b""
        self._transport: asyncio.Transport | None = None
        self.errors: Counter[str] = Counter()
        self.closed = asyncio.get_running_loop().create_future()

    @property
    def in_flight(self) -> int:
        return len(self._starts)

    def send(self, starts: list[float]) -> None:
        """Send one message for each start time, all in one write. A start in the past counts from then."""
        frames: list[bytes] = []
        for start in starts:
            self._opaque = opaque = self._opaque + 1
            before, after, length = self._parts[opaque % len(self._parts)]
            digits = b"%d" % opaque
            length += len(digits)
            self._starts[opaque] = start
            frames += (LENGTHS.pack(length, length - 4 - self._body_bytes), before, digits, after)
        if self._transport is not None:
            self._transport.write(b"".join(frames))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._starts:
            self.errors["connection lost"] += len(self._starts)
            self._starts.clear()
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._partial:
            data = self._partial + data
        start, end = 0, len(data)
        done: list[float] = []
        while end - start >= LENGTHS.size:
            length, word = LENGTHS.unpack_from(data, start)
            frame_end = start + 4 + length
            if frame_end > end:
                break
            header_start = start + LENGTHS.size
            self._take(orjson.loads(data[header_start : header_start + (word & HEADER_LENGTH_MASK)]), done)
            start = frame_end
        self._partial = data[start:]
        self._on_answers(self, done)

    def _take(self, header: dict[str, Any], done: list[float]) -> None:
        started = self._starts.pop(header["opaque"], None)
        if started is None:
            return
        if header["code"] == 0:
            done.append(started)
        else:
            self.errors[f"{header['code']}: {header.get('remark')}"[:90]] += 1
            done.append(FAILED)
