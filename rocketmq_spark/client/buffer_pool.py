"""Memory that is used again and again.

Whoever reads a topic moves all of it through memory. Where each step takes fresh memory, the system clears
every page of it first, which costs more than the step itself.
"""

from typing import Final

ROUNDED_BYTES: Final = 64 * 1024


class Slabs:
    """Blocks of memory. One is lent again as soon as nobody holds a view of it, of whatever kind.

    At most `kept_max` blocks are kept; while all of them are held, further ones are fresh, and not kept.
    Those have just the size asked for: whoever holds thousands of small answers must not hold as many large
    blocks.
    """

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._kept: list[bytearray] = []

    def take(self, bytes_min: int) -> memoryview:
        """A whole block of at least so many bytes, with anything in it."""
        unused = [number for number, slab in enumerate(self._kept) if _is_unused(slab)]
        for number in unused:
            if len(self._kept[number]) >= bytes_min:
                return memoryview(self._kept[number])
        if not unused and len(self._kept) == self._kept_max:
            return memoryview(bytearray(bytes_min))
        slab = bytearray(max(1, -(-bytes_min // ROUNDED_BYTES)) * ROUNDED_BYTES)
        if unused:
            self._kept[unused[0]] = slab  # too small, as the next one will be
        else:
            self._kept.append(slab)
        return memoryview(slab)


def _is_unused(slab: bytearray) -> bool:
    """A bytearray cannot change its length while anybody holds a view of it."""
    try:
        slab.append(slab.pop())
    except BufferError:
        return False
    return True
