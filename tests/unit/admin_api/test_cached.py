"""One read for many askers."""

import asyncio

import pytest

from admin_api.cached import Cached


class Source:
    def __init__(self) -> None:
        self.reads = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def read(self) -> int:
        self.reads += 1
        number = self.reads
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return number


async def test_get_gives_the_same_while_it_is_young() -> None:
    source, now_s = Source(), [0.0]
    cached = Cached(source.read, 1.0, lambda: now_s[0])
    assert [await cached.get(), await cached.get()] == [1, 1]
    now_s[0] = 1.0
    assert await cached.get() == 2


async def test_get_askers_during_a_read_share_it() -> None:
    source = Source()
    source.gate.clear()
    cached = Cached(source.read, 0.0)
    asking = [asyncio.create_task(cached.get()) for _ in range(3)]
    await asyncio.sleep(0)
    source.gate.set()
    assert await asyncio.gather(*asking) == [1, 1, 1]


async def test_get_failed_read_is_not_kept() -> None:
    source = Source()
    source.error = ValueError("no")
    cached = Cached(source.read, 60.0)
    with pytest.raises(ValueError, match="no"):
        await cached.get()
    source.error = None
    assert await cached.get() == 2


async def test_forget_during_a_read_drops_what_it_brings() -> None:
    source = Source()
    source.gate.clear()
    cached = Cached(source.read, 60.0)
    early = asyncio.create_task(cached.get())
    await asyncio.sleep(0)
    cached.invalidate()
    late = asyncio.create_task(cached.get())
    await asyncio.sleep(0)
    source.gate.set()
    assert [await early, await late] == [1, 2]
    assert await cached.get() == 2
