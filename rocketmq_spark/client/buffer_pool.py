"""Memory blocks that are reused.

Reading a topic moves all of it through memory. If each step allocated new memory, the system would clear
every page of it first, which costs more than the step itself.
"""

from typing import Final

ROUNDED_BYTES: Final = 64 * 1024


class BufferPool:
    """Blocks of memory. A block is reused as soon as no view of it exists.

    At most `kept_max` blocks are kept. While all of them are in use, `acquire` returns a new block that is
    not kept. That one has just the requested size: thousands of small answers in use must not need as many
    large blocks.
    """

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._kept: list[bytearray] = []

    def acquire(self, bytes_min: int) -> memoryview:
        """A block of at least `bytes_min` bytes. Its content is undefined."""
        unused = [number for number, block in enumerate(self._kept) if _is_unused(block)]
        for number in unused:
            if len(self._kept[number]) >= bytes_min:
                return memoryview(self._kept[number])
        if not unused and len(self._kept) == self._kept_max:
            return memoryview(bytearray(bytes_min))
        block = bytearray(max(1, -(-bytes_min // ROUNDED_BYTES)) * ROUNDED_BYTES)
        if unused:
            self._kept[unused[0]] = block  # too small, as the next one will be
        else:
            self._kept.append(block)
        return memoryview(block)


def _is_unused(block: bytearray) -> bool:
    """A bytearray cannot change its length while a view of it exists."""
    try:
        block.append(block.pop())
    except BufferError:
        return False
    return True
