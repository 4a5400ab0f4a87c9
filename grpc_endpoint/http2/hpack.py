"""Header blocks (HPACK, RFC 7541): a decoder with its dynamic table, and an encoder without one.

A gRPC client gives each call a new id and a new timeout, so that every block changes the dynamic table
and none can be answered from a memo. The decoder is on the path of every call: compiled code reads ordinary
blocks. Here Huffman codes are read a byte at a time, from a table of steps that is made as it is needed.
"""

from collections.abc import Iterable
from functools import cache
from typing import Final

from native import function

Field = tuple[str, str]
TABLE_BYTES: Final = 4_096
"""Of the dynamic table: the protocol's default, which we do not change."""
_FIELD_EXTRA_BYTES: Final = 32
"""An entry counts its texts and this (4.1)."""
_INTEGER_MAX: Final = 2**28
_STATIC_TEXT: Final = """
:authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https|:status 200
:status 204
:status 206|:status 304|:status 400|:status 404|:status 500|accept-charset|accept-encoding gzip, deflate
accept-language|accept-ranges|accept|access-control-allow-origin|age|allow|authorization|cache-control
content-disposition|content-encoding|content-language|content-length|content-location|content-range|content-type
cookie|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since
last-modified|link|location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after
server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate
"""
STATIC: Final[tuple[Field, ...]] = (
    ("", ""),  # there is no index 0
    *(
        (each.partition(" ")[0], each.partition(" ")[2])
        for line in _STATIC_TEXT.split("\n")
        for each in line.split("|")
        if each
    ),
)
_STATIC_COUNT: Final = len(STATIC)
_EOS: Final = 256
_CODE_LENGTHS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b08060606"
    "0505050606060606060607080f060c0a0d06070707070707070707070707070707070707070707070807080d130d0e06"
    "0f05060506050606060507070606060506070605050607070707070f0b0e0d1c14161414161616171617171717171817"
    "181816171817171717151617161717181615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b14181415161515171616191918181a17"
    "1a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a1e"
)
"""Of the Huffman codes of all bytes and of EOS (appendix B). The code is canonical: the lengths define it."""


_make_reader: Final = function("_remoting", "FieldReader")
_reader: Final = None if _make_reader is None else _make_reader(_CODE_LENGTHS, STATIC)


class HpackError(ValueError):
    """The block cannot be decoded, and no later one of the connection."""


class _Node:
    """A place in the Huffman tree, between two bytes of a text."""

    __slots__ = ("is_end", "leaf", "next", "steps")

    def __init__(self) -> None:
        self.next: list[_Node | None] = [None, None]
        self.leaf: int | None = None
        self.steps: list[tuple[_Node, str] | None] = [None] * 256
        """For each byte: the place after it, and the characters that it completes."""
        self.is_end = False
        """Whether a text may end here: fewer than 8 bits of EOS's code, all ones, are left over."""


@cache
def _huffman() -> _Node:
    """The root of the tree."""
    root, code, length = _Node(), 0, 0
    for symbol in sorted(range(_EOS + 1), key=lambda each: (_CODE_LENGTHS[each], each)):
        code <<= _CODE_LENGTHS[symbol] - length
        length = _CODE_LENGTHS[symbol]
        node = root
        for bit in range(length - 1, -1, -1):
            side = code >> bit & 1
            following = node.next[side]
            if following is None:
                following = node.next[side] = _Node()
            node = following
        node.leaf = symbol
        code += 1
    node = root
    for _ in range(8):
        node.is_end = True
        following = node.next[1]
        assert following is not None, "EOS has 30 bits"
        node = following
    return root


def _step(node: _Node, byte: int) -> tuple[_Node, str]:
    """Raises HpackError."""
    root, start, characters = _huffman(), node, ""
    for bit in range(7, -1, -1):
        following = node.next[byte >> bit & 1]
        assert following is not None, "a place without a leaf has two sides"
        node = following
        if node.leaf is not None:
            if node.leaf == _EOS:
                raise HpackError("a text contains EOS")
            characters += chr(node.leaf)
            node = root
    found = start.steps[byte] = node, characters
    return found


def huffman_decoded(data: bytes) -> str:
    """The text, a character for each byte. Raises HpackError."""
    node = _huffman()
    parts = []
    for byte in data:
        node, characters = node.steps[byte] or _step(node, byte)
        parts.append(characters)
    if not node.is_end:
        raise HpackError("a text ends within a character")
    return "".join(parts)


class Decoder:
    """Of one connection: blocks must come in the order in which they were sent.

    list_bytes_max: of a block's fields, each with 32 bytes more than its texts; larger ones are not returned.
    """

    def __init__(self, list_bytes_max: int) -> None:
        self._list_bytes_max = list_bytes_max
        self._entries: list[Field] = []
        """The newest at the end."""
        self._bytes = 0
        self._bytes_max = TABLE_BYTES

    def decode(self, block: bytes) -> list[Field] | None:
        """The fields; None when they are too large together. Raises HpackError."""
        if _reader is not None:
            found: tuple[list[Field] | None, int] | None = _reader.read(
                block, self._entries, self._bytes, self._bytes_max, self._list_bytes_max
            )
            if found is not None:
                fields, self._bytes = found
                return fields
        return self._decode(block)

    def _decode(self, block: bytes) -> list[Field] | None:
        fields: list[Field] = []
        at, end, room = 0, len(block), self._list_bytes_max
        entries = self._entries
        while at < end:
            first = block[at]
            at += 1
            if first >= 0x80:
                index = first & 0x7F
                if index == 0x7F:
                    index, at = _integer(block, at, 0x7F)
                if _STATIC_COUNT <= index < _STATIC_COUNT + len(entries):
                    field = entries[_STATIC_COUNT - 1 - index]
                else:
                    field = self._field(index)
            elif first & 0xE0 == 0x20:
                if fields:
                    raise HpackError("the table's size changes within a block")
                at = self._resize(block, at, first & 0x1F)
                continue
            else:
                field, at = self._literal(block, at, first)
            room -= len(field[0]) + len(field[1]) + _FIELD_EXTRA_BYTES
            if room >= 0:
                fields.append(field)
        return fields if room >= 0 else None

    def _field(self, index: int) -> Field:
        """Raises HpackError."""
        if 0 < index < _STATIC_COUNT:
            return STATIC[index]
        if _STATIC_COUNT <= index < _STATIC_COUNT + len(self._entries):
            return self._entries[_STATIC_COUNT - 1 - index]
        raise HpackError(f"there is no field {index}")

    def _literal(self, block: bytes, at: int, first: int) -> tuple[Field, int]:
        """A field that is not in the table; one with the highest bits 01 enters it. Raises HpackError."""
        is_kept = first >= 0x40
        mask = 0x3F if is_kept else 0x0F
        index = first & mask
        if index == mask:
            index, at = _integer(block, at, mask)
        if index:
            name = self._field(index)[0]
        else:
            name, at = _text(block, at)
        value, at = _text(block, at)
        field = name, value
        if is_kept:
            self._keep(field)
        return field, at

    def _keep(self, field: Field) -> None:
        self._entries.append(field)
        self._bytes += len(field[0]) + len(field[1]) + _FIELD_EXTRA_BYTES
        if self._bytes > self._bytes_max:
            self._evict()

    def _evict(self) -> None:
        gone = 0
        while self._bytes > self._bytes_max:
            name, value = self._entries[gone]
            self._bytes -= len(name) + len(value) + _FIELD_EXTRA_BYTES
            gone += 1
        del self._entries[:gone]

    def _resize(self, block: bytes, at: int, size: int) -> int:
        """Raises HpackError."""
        if size == 0x1F:
            size, at = _integer(block, at, 0x1F)
        if size > TABLE_BYTES:
            raise HpackError(f"a table of {size} bytes is more than was allowed")
        self._bytes_max = size
        self._evict()
        return at


def _integer(block: bytes, at: int, value: int) -> tuple[int, int]:
    """The rest of an integer whose prefix is full (5.1). Raises HpackError."""
    shift = 0
    while True:
        if at >= len(block):
            raise HpackError("the block ends within an integer")
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if value > _INTEGER_MAX or shift > 28:
            raise HpackError("an integer is too large")
        if byte < 0x80:
            return value, at
        shift += 7


def _text(block: bytes, at: int) -> tuple[str, int]:
    """Raises HpackError."""
    if at >= len(block):
        raise HpackError("the block ends before a text")
    first = block[at]
    at += 1
    size = first & 0x7F
    if size == 0x7F:
        size, at = _integer(block, at, 0x7F)
    end = at + size
    if end > len(block):
        raise HpackError("the block ends within a text")
    data = block[at:end]
    return (huffman_decoded(data) if first >= 0x80 else data.decode("latin-1")), end


def encoded(fields: Iterable[Field]) -> bytes:
    """A block that leaves the peer's table as it is: names in the static table, or literals that no proxy may
    index.
    """
    parts = bytearray()
    for name, value in fields:
        if (name, value) in _WHOLE:
            parts.append(0x80 | _WHOLE[name, value])
            continue
        index = _NAMES.get(name, 0)
        _put_integer(parts, 0x10, 0x0F, index)
        for text in (value,) if index else (name, value):
            data = text.encode("latin-1")
            _put_integer(parts, 0, 0x7F, len(data))
            parts += data
    return bytes(parts)


_WHOLE: Final = {field: index for index, field in enumerate(STATIC) if field[1]}
_NAMES: Final = {name: index for index, (name, _) in reversed(list(enumerate(STATIC))) if index}


def _put_integer(parts: bytearray, flags: int, most: int, value: int) -> None:
    if value < most:
        parts.append(flags | value)
        return
    parts.append(flags | most)
    value -= most
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
