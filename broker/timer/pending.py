"""Which offsets of the timer queue still wait: one bit each, in pieces that go with their last one. Pure."""

from collections.abc import Iterable, Iterator

PIECE = 1_024
PIECE_BYTES = PIECE // 8
PIECE_ROW_BYTES = 8 + PIECE_BYTES


class PendingSet:
    """A set of offsets. A single one takes a piece's 128 bytes at most."""

    def __init__(self) -> None:
        self.count = 0
        self._pieces: dict[int, int] = {}

    def __contains__(self, offset: int) -> bool:
        return bool(self._pieces.get(offset // PIECE, 0) >> offset % PIECE & 1)

    @property
    def first(self) -> int | None:
        """The lowest; None when there is none."""
        if not self._pieces:
            return None
        number = min(self._pieces)
        bits = self._pieces[number]
        return number * PIECE + (bits & -bits).bit_length() - 1

    @property
    def held_bytes(self) -> int:
        """What the pieces take."""
        return len(self._pieces) * PIECE_BYTES

    def add(self, offset: int) -> None:
        if offset not in self:
            number = offset // PIECE
            self._pieces[number] = self._pieces.get(number, 0) | 1 << offset % PIECE
            self.count += 1

    def remove(self, offset: int) -> bool:
        """Whether it was there."""
        if offset not in self:
            return False
        number = offset // PIECE
        left = self._pieces[number] ^ 1 << offset % PIECE
        if left:
            self._pieces[number] = left
        else:
            del self._pieces[number]
        self.count -= 1
        return True

    def drop_before(self, offset: int) -> None:
        """Take out all that are lower."""
        for number in [number for number in self._pieces if number * PIECE < offset]:
            bits = self._pieces.pop(number)
            gone = min(offset - number * PIECE, PIECE)
            left = bits >> gone << gone
            self.count -= (bits ^ left).bit_count()
            if left:
                self._pieces[number] = left

    def rows(self) -> Iterator[bytes]:
        """What `restored` makes the set of."""
        for number, bits in self._pieces.items():
            yield number.to_bytes(8, "big") + bits.to_bytes(PIECE_BYTES, "big")

    @classmethod
    def restored(cls, rows: Iterable[bytes]) -> "PendingSet":
        """Raises ValueError."""
        pending = cls()
        for row in rows:
            number, bits = int.from_bytes(row[:8], "big"), int.from_bytes(row[8:], "big")
            if len(row) != PIECE_ROW_BYTES or not bits or number in pending._pieces:
                raise ValueError(f"a row of {len(row)} bytes for piece {number}")
            pending._pieces[number] = bits
            pending.count += bits.bit_count()
        return pending
