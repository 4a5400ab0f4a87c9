"""How many expensive queries are under way at one time."""

import asyncio

import pytest
from fastapi import APIRouter, Depends

from admin_api.app import create_app
from admin_api.routing import costly
from admin_api.security.rates import Turns
from admin_api.settings import Settings
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS, FakeCluster
from tests.unit.admin_api.serving import asking_app

LONG_S = 60.0
NO_TIME_S = 0.0


async def test_a_client_has_its_own_places() -> None:
    turns = Turns(each=2, total=3)
    assert [await turns.acquire("a", LONG_S), await turns.acquire("a", LONG_S)] == [True, True]
    assert not await turns.acquire("a", NO_TIME_S)
    assert await turns.acquire("b", LONG_S), "what a waits for takes no place of all"
    assert not await turns.acquire("c", NO_TIME_S), "three are under way"
    turns.release("a")
    assert await turns.acquire("c", LONG_S)


async def test_who_waits_comes_next() -> None:
    turns = Turns(each=1, total=1)
    assert await turns.acquire("a", LONG_S)
    order: list[str] = []

    async def come(client: str) -> None:
        assert await turns.acquire(client, LONG_S)
        order.append(client)
        turns.release(client)

    async with asyncio.TaskGroup() as group:
        for client in ("b", "c", "a"):
            group.create_task(come(client))
            await asyncio.sleep(0)
        turns.release("a")
    assert order == ["b", "c", "a"]


@pytest.mark.parametrize("client", ["a", "b"])
async def test_who_leaves_the_line_leaves_nothing(client: str) -> None:
    turns = Turns(each=1, total=1)
    assert await turns.acquire("a", LONG_S)
    for _ in range(3):
        assert not await turns.acquire(client, NO_TIME_S)
        waiting = asyncio.create_task(turns.acquire(client, LONG_S))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    turns.release("a")
    assert turns.clients == 0, "nothing is kept of a client that asks nothing"
    assert await turns.acquire(client, NO_TIME_S), "its place is free"


async def test_query_waits_for_those_under_way_and_is_refused_after_a_while() -> None:
    """A failed one gives its place back as well."""
    router, may_end = APIRouter(prefix="/api/v1/test"), asyncio.Event()

    @router.get("/slow", dependencies=[Depends(costly)])
    async def slow(*, fails: bool = False) -> str:
        await may_end.wait()
        if fails:
            raise ValueError
        return "found"

    settings = Settings(namesrv=NAMESRV_ADDRESS, costly_at_once=2, costly_wait_ms=200)
    app = create_app(settings, FakeCluster())
    app.include_router(router)
    async with asking_app(app) as client, asyncio.TaskGroup() as group:
        held = [
            group.create_task(client.get("/test/slow", params={"fails": fails})) for fails in (True, False)
        ]
        while app.state.costly_turns.clients == 0:
            await asyncio.sleep(0)
        refused = await client.get("/test/slow")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "under way" in refused.json()["detail"]
        may_end.set()
        assert [(await each).status_code for each in held] == [500, 200]
        assert (await client.get("/test/slow")).status_code == 200
        assert app.state.costly_turns.clients == 0
