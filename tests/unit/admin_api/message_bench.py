"""The whole admin application over brokers that keep messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from httpx import ASGITransport, AsyncClient, Response

from admin_api.app import create_app
from admin_api.settings import Settings
from tests.unit.admin_api.fake_messages import NAMESRV, FakeMessages, FakeStore


def one_broker() -> tuple[FakeMessages, FakeStore]:
    store = FakeStore("broker-a", "127.0.0.1:10911")
    return FakeMessages(store), store


def two_brokers() -> tuple[FakeMessages, FakeStore, FakeStore]:
    first, second = FakeStore("broker-a", "127.0.0.1:10911"), FakeStore("broker-b", "127.0.0.1:10921")
    return FakeMessages(first, second), first, second


@asynccontextmanager
async def browsing(cluster: FakeMessages) -> AsyncIterator[AsyncClient]:
    app = create_app(Settings(namesrv=NAMESRV, brokers_cache_ms=0), cluster)
    transport = ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


async def get(client: AsyncClient, path: str, **params: Any) -> dict[str, Any]:
    """The JSON of an answer that must be 200."""
    answer = await client.get(f"/api/v1{path}", params=params)
    return content(answer)


async def post(client: AsyncClient, path: str, body: dict[str, Any], **params: Any) -> dict[str, Any]:
    return content(await client.post(f"/api/v1{path}", json=body, params=params))


async def confirmed(client: AsyncClient, path: str, body: dict[str, Any], **params: Any) -> dict[str, Any]:
    """A change, by its dry run and the confirmation from it."""
    dry = await post(client, path, body, **params)
    assert dry["isDryRun"]
    return await post(client, path, body, dryRun="false", confirmation=dry["confirmation"], **params)


def content(answer: Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert isinstance(body, dict)
    return body


def detail(answer: Response, status: int) -> str:
    """The sentence of a problem."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["detail"])
