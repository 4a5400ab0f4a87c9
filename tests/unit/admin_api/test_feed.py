"""One read for many viewers, and streams that end."""

import asyncio

import pytest

from admin_api.feed import Feed, TooManyWatchersError
from admin_api.schemas.cluster import ClusterView, NamesrvView, NodeState
from admin_api.settings import Settings


class CountingRead:
    """Each read gives a new view, numbered; it waits for `gate`."""

    def __init__(self) -> None:
        self.reads = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> ClusterView:
        self.reads += 1
        number = self.reads
        await self.gate.wait()
        return ClusterView(as_of_ms=number, namesrv=NamesrvView(address="h:1", state=NodeState.UP), groups=[])


def feed_over(read: CountingRead, **limits: int) -> Feed:
    return Feed(read, Settings(namesrv="h:1", **limits))


async def test_current_within_the_cache_time_reads_once() -> None:
    read = CountingRead()
    feed = feed_over(read, cache_ms=60_000)
    assert [(await feed.current()).as_of_ms for _ in range(3)] == [1, 1, 1]
    assert read.reads == 1


async def test_current_after_the_cache_time_reads_again() -> None:
    read = CountingRead()
    feed = feed_over(read, cache_ms=0)
    assert [(await feed.current()).as_of_ms for _ in range(2)] == [1, 2]


async def test_current_askers_during_a_read_share_it() -> None:
    read = CountingRead()
    read.gate.clear()
    feed = feed_over(read, cache_ms=0)
    asking = [asyncio.create_task(feed.current()) for _ in range(5)]
    await asyncio.sleep(0)
    read.gate.set()
    assert [view.as_of_ms for view in await asyncio.gather(*asking)] == [1] * 5
    assert read.reads == 1


async def test_current_asker_that_leaves_does_not_end_the_read_of_the_others() -> None:
    read = CountingRead()
    read.gate.clear()
    feed = feed_over(read, cache_ms=0)
    leaves, stays = asyncio.create_task(feed.current()), asyncio.create_task(feed.current())
    await asyncio.sleep(0)
    leaves.cancel()
    read.gate.set()
    assert (await stays).as_of_ms == 1


async def test_watch_gives_views_until_the_feed_closes() -> None:
    feed = feed_over(CountingRead(), cache_ms=0, watch_interval_ms=1)
    seen = []
    async for view in feed.watch():
        seen.append(view.as_of_ms)
        if len(seen) == 3:
            feed.close()
    assert seen == [1, 2, 3]


async def test_watch_beyond_the_bound_is_refused_until_one_leaves() -> None:
    feed = feed_over(CountingRead(), watchers_max=1)
    first = feed.watch()
    await anext(first)
    with pytest.raises(TooManyWatchersError, match="1 event streams"):
        feed.watch()
    await first.aclose()
    await anext(feed.watch())


async def test_a_stream_that_is_dropped_before_its_first_view_frees_its_place() -> None:
    """A client that leaves as soon as it has asked: nothing of its answer is ever begun."""
    feed = feed_over(CountingRead(), watchers_max=1)
    for _ in range(3):
        stream = feed.watch()
        assert feed.watchers == 1
        del stream
        assert feed.watchers == 0
    await anext(feed.watch())
