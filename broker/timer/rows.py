"""One waiting timer message as the index keeps it. Pure.

    wake 8 (ms << 1, and 1 for a message, 0 for a recall) | offset in the timer queue 8 | key 8

Big-endian, so that rows compare as bytes: by time; at one time recalls before messages; then in the order in
which they were stored.
"""

import hashlib
import struct
from typing import NamedTuple

KEY_BYTES = 8
ROW_BYTES = 16 + KEY_BYTES
WAKE_MS_MAX = (1 << 62) - 1
NO_KEY = bytes(KEY_BYTES)

_ROW = struct.Struct(f">QQ{KEY_BYTES}s")


class Row(NamedTuple):
    """`wake_ms`: when something is to be done about it. `key`: what a recall names it by."""

    wake_ms: int
    offset: int
    key: bytes
    is_message: bool = True

    def pack(self) -> bytes:
        return _ROW.pack(self.wake_ms << 1 | self.is_message, self.offset, self.key)


def unpack(data: bytes) -> Row:
    wake, offset, key = _ROW.unpack(data)
    return Row(wake >> 1, offset, key, bool(wake & 1))


def offset_of(data: bytes) -> int:
    return int.from_bytes(data[8:16], "big")


def first_at(wake_ms: int) -> bytes:
    """Not behind any row of this time, and behind all of earlier ones."""
    return _ROW.pack(wake_ms << 1, 0, NO_KEY)


def recall_key(topic: str, unique_key: str) -> bytes:
    """Stands for the text that names a message in a recall (TimerMessageStore.buildDeleteKey). Two messages
    may have the same one: whoever finds a row looks at its message.
    """
    return key_of(f"{topic}+{unique_key}")


def key_of(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=KEY_BYTES).digest()
