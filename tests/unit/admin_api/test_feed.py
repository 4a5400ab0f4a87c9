"""One read for many viewers, and streams that end."""

import asyncio
import json
from typing import Any

import pytest

from admin_api.cluster.feed import Feed, TooManyWatchersError
from admin_api.cluster.schemas import (
    ClusterView,
    GroupState,
    GroupView,
    NamesrvView,
    NodeState,
    NodeView,
    PushView,
)
from admin_api.settings import Settings
from tests.support.polling import until


class CountingRead:
    """Each read gives a new view, numbered; it waits for `gate`."""

    def __init__(self) -> None:
        self.reads = 0
        self.fails_at = 0
        self._counted = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> ClusterView:
        self.reads += 1
        number = self.reads
        await self.gate.wait()
        self._counted.set()
        return ClusterView(as_of_ms=number, namesrv=NamesrvView(address="h:1", state=NodeState.UP), groups=[])

    async def has_reached(self, reads: int) -> None:
        while self.reads < reads:
            self._counted.clear()
            await self._counted.wait()


class ChangingRead(CountingRead):
    """Each view shows something else."""

    async def __call__(self) -> ClusterView:
        view = await super().__call__()
        if self.reads == self.fails_at:
            raise ValueError("a fault of ours")
        return view.model_copy(update={"version": view.as_of_ms})


class AgeingContact(CountingRead):
    """A leader's follower, heard of longer and longer ago."""

    async def __call__(self) -> ClusterView:
        view = await super().__call__()
        push = PushView(
            state="APPEND", match_index=7, next_index=8, is_connected=True, last_contact_ms=view.as_of_ms
        )
        node = NodeView(id="n1", state=NodeState.UP, push=push)
        quiet = NodeView(id="n0", state=NodeState.UP)
        group = GroupView(
            group="g",
            cluster=None,
            broker_name="g",
            state=GroupState.WRITABLE,
            leader_id="n0",
            term=1,
            in_sync=None,
            nodes=[quiet, node],
        )
        return view.model_copy(update={"groups": [group]})


def parsed(event: bytes) -> tuple[str, dict[str, Any]]:
    """Name and data."""
    name, data, *rest = event.decode().split("\n")
    assert rest == ["", ""]
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def feed_over(read: CountingRead, **limits: Any) -> Feed:
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


async def test_watch_gives_changed_views_until_the_feed_closes() -> None:
    feed = feed_over(ChangingRead(), cache_ms=0, watch_interval_ms=1)
    seen = []
    async for event in feed.watch():
        seen.append(parsed(event))
        if len(seen) == 3:
            feed.close()
    assert [(name, data["asOfMs"]) for name, data in seen] == [("cluster", 1), ("cluster", 2), ("cluster", 3)]


async def test_watch_says_that_nothing_changed_and_when_it_looked_instead_of_the_same_again() -> None:
    feed = feed_over(CountingRead(), cache_ms=0, watch_interval_ms=1, unchanged_interval_ms=0)
    stream = feed.watch()
    assert parsed(await anext(stream))[0] == "cluster"
    assert parsed(await anext(stream)) == ("unchanged", {"asOfMs": 2})
    assert parsed(await anext(stream)) == ("unchanged", {"asOfMs": 3})


async def test_watch_is_silent_between_times_while_nothing_changes() -> None:
    read = CountingRead()
    feed = feed_over(read, cache_ms=0, watch_interval_ms=1, unchanged_interval_ms=60_000)
    stream = feed.watch()
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream, None))
    await read.has_reached(5)
    assert not waiting.done()
    feed.close()
    assert await waiting is None


async def test_the_age_of_a_last_contact_is_no_change() -> None:
    feed = feed_over(AgeingContact(), cache_ms=0, watch_interval_ms=1, unchanged_interval_ms=0)
    stream = feed.watch()
    names = [parsed(await anext(stream))[0] for _ in range(2)]
    assert names == ["cluster", "unchanged"]


async def test_streams_share_each_look_and_its_bytes() -> None:
    read = ChangingRead()
    feed = feed_over(read, cache_ms=0, watch_interval_ms=1)
    streams = [feed.watch() for _ in range(4)]
    firsts = await asyncio.gather(*map(anext, streams))
    reads = read.reads
    nexts = await asyncio.gather(*map(anext, streams))
    assert len({id(event) for event in nexts}) == 1
    assert parsed(nexts[0]) != parsed(firsts[0])
    assert read.reads == reads + 1


async def test_a_stream_that_was_slow_gets_what_changed_meanwhile() -> None:
    read = ChangingRead()
    feed = feed_over(read, cache_ms=0, watch_interval_ms=1)
    slow, quick = feed.watch(), feed.watch()
    await anext(slow)
    while parsed(await anext(quick))[1]["asOfMs"] < 4:
        pass
    name, data = parsed(await anext(slow))
    assert (name, data["asOfMs"] >= 4) == ("cluster", True)


async def test_nothing_goes_on_once_the_last_stream_is_closed() -> None:
    read = CountingRead()
    feed = feed_over(read, cache_ms=0, watch_interval_ms=1, unchanged_interval_ms=0)
    stream = feed.watch()
    for _ in range(3):
        await anext(stream)
    await stream.aclose()
    await until(lambda: len(asyncio.all_tasks()) == 1)


async def test_a_look_that_fails_is_no_news_and_the_next_is(caplog: pytest.LogCaptureFixture) -> None:
    read = ChangingRead()
    feed = feed_over(read, cache_ms=0, watch_interval_ms=1)
    stream = feed.watch()
    await anext(stream)
    read.fails_at = 2
    assert parsed(await anext(stream))[1]["asOfMs"] == 3
    assert "reading the cluster failed" in caplog.text


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
