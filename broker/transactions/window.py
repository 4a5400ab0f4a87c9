"""Which transactions are open, by the offsets of their half messages: one byte each, in pieces; a piece is
freed when all its transactions have ended. Pure.
"""

import enum
import re
from collections.abc import Iterable, Iterator

PIECE = 1_024
"""Half messages of one piece; a single open one needs a full piece of as many bytes."""
ROW_BYTES = 8 + PIECE
CHECKS_MAX = 250
"""Most checks that are counted."""

_OPEN = re.compile(rb"[\x00-\xfa]")


class Ending(enum.Enum):
    """How a transaction ended; the value is its byte in the table."""

    COMMIT = 255
    ROLLBACK = 254
    DISCARD = 253
    """It had the allowed number of checks without an answer, or is older than messages are kept."""
    LOST = 252
    """Its half message cannot be read any more."""
    UNKNOWN = 251
    """It has ended; how is not kept."""

    @property
    def makes_message(self) -> bool:
        """Whether the half message becomes a message."""
        return self in (Ending.COMMIT, Ending.DISCARD)


_UNKNOWN_PIECE = bytes([Ending.UNKNOWN.value]) * PIECE


class _Piece:
    __slots__ = ("first", "left", "states")

    def __init__(self, first: int) -> None:
        self.first = first
        self.states = bytearray(PIECE)
        self.left = PIECE
        """How many have not ended, those that no half message has yet among them."""


class TransactionWindow:
    """The half messages with offsets below `end`. What is in no piece has ended."""

    def __init__(self, begin: int = 0) -> None:
        """All half messages below `begin` have ended."""
        self.end = begin
        self.open_count = 0
        self._pieces: dict[int, _Piece] = {}
        """In the order of their offsets."""
        if begin % PIECE:
            piece = self._add_piece(begin - begin % PIECE)
            piece.left -= begin % PIECE
            piece.states[: begin % PIECE] = _UNKNOWN_PIECE[: begin % PIECE]

    @property
    def begin(self) -> int:
        """The first open half message, or the end."""
        return next((offset for offset, _ in self.open_halves()), self.end)

    @property
    def held_bytes(self) -> int:
        """Memory of the pieces, in bytes."""
        return len(self._pieces) * PIECE

    def extend(self, end: int) -> None:
        """There are half messages up to this offset; the new ones are open."""
        if end <= self.end:
            return
        first = -(-self.end // PIECE) * PIECE
        for start in range(first, end, PIECE):
            self._add_piece(start)
        self.open_count += end - self.end
        self.end = end

    def is_open(self, offset: int) -> bool:
        state = self._state(offset)
        return state is not None and state <= CHECKS_MAX

    def checks(self, offset: int) -> int:
        """How often an open transaction was checked."""
        state = self._state(offset)
        assert state is not None, f"{offset} has ended"
        assert state <= CHECKS_MAX, f"{offset} has ended"
        return state

    def ending(self, offset: int) -> Ending | None:
        """How a transaction ended; None when it is open, or there is none."""
        if not 0 <= offset < self.end or self.is_open(offset):
            return None
        return Ending(self._state(offset) or Ending.UNKNOWN)

    def finish(self, offset: int, ending: Ending) -> bool:
        """The transaction has ended; whether it was open."""
        if not self.is_open(offset):
            return False
        piece = self._pieces[offset // PIECE]
        piece.states[offset - piece.first] = ending.value
        piece.left -= 1
        self.open_count -= 1
        assert piece.left >= 0, f"piece {piece.first} has {piece.left} open transactions"
        if not piece.left:
            del self._pieces[offset // PIECE]
        return True

    def check(self, offset: int) -> None:
        """The transaction is checked once more; nothing when it is not open."""
        if self.is_open(offset):
            piece = self._pieces[offset // PIECE]
            at = offset - piece.first
            piece.states[at] = min(piece.states[at] + 1, CHECKS_MAX)

    def open_halves(self) -> Iterator[tuple[int, int]]:
        """(offset, checks) of the open ones, in order; the table may change meanwhile."""
        for number in list(self._pieces):
            piece = self._pieces.get(number)
            for found in _OPEN.finditer(bytes(piece.states)) if piece is not None else ():
                offset = number * PIECE + found.start()
                if offset >= self.end:
                    return
                if self.is_open(offset):
                    yield offset, self.checks(offset)

    def rows(self) -> Iterator[bytes]:
        """What `restored` makes the table of: each piece's number and states."""
        for number, piece in self._pieces.items():
            yield number.to_bytes(8, "big") + piece.states

    @classmethod
    def restored(cls, end: int, rows: Iterable[bytes]) -> "TransactionWindow":
        """The table that has this end and these rows, in order. Raises ValueError."""
        window = cls()
        last = -1
        for row in rows:
            number = int.from_bytes(row[:8], "big")
            if len(row) != ROW_BYTES or not last < number <= (end - 1) // PIECE:
                raise ValueError(f"a row of {len(row)} bytes, piece {number} behind {last}, end {end}")
            last = number
            piece = window._add_piece(number * PIECE)
            piece.states[:] = row[8:]
            piece.left = PIECE - sum(row.count(ending.value, 8) for ending in Ending)
            window.open_count += piece.left - max(0, (number + 1) * PIECE - end)
        if end % PIECE and last != end // PIECE:
            raise ValueError(f"no row has the end {end}")
        window.end = end
        return window

    def _add_piece(self, first: int) -> _Piece:
        piece = self._pieces[first // PIECE] = _Piece(first)
        return piece

    def _state(self, offset: int) -> int | None:
        piece = self._pieces.get(offset // PIECE) if 0 <= offset < self.end else None
        return None if piece is None else piece.states[offset - piece.first]
