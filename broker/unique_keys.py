"""Message ids for messages whose client set none: 32 hex characters, like the ones clients make
(MessageClientIDSetter).

4 bytes address, 2 bytes process, 4 bytes chance of this start, 4 bytes of the time in ms, 2 bytes counter.
"""

import os
import random
from collections.abc import Callable


class UniqueKeys:
    """Ids of one broker process; no two alike within 65,536 of a millisecond."""

    def __init__(self, store_host: bytes, clock: Callable[[], int], process_id: int, seed: bytes) -> None:
        assert len(seed) == 4, f"seed of {len(seed)} bytes"
        self._prefix = (store_host[:4] + (process_id & 0xFFFF).to_bytes(2, "big") + seed).hex().upper()
        self._clock = clock
        self._count = 0

    @classmethod
    def of_process(cls, store_host: bytes, clock: Callable[[], int], rng: random.Random) -> "UniqueKeys":
        return cls(store_host, clock, os.getpid(), rng.randbytes(4))

    def next(self) -> str:
        self._count = self._count + 1 & 0xFFFF
        return f"{self._prefix}{self._clock() & 0xFFFFFFFF:08X}{self._count:04X}"
