"""The whole application over fake brokers, asked as a client does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from httpx import ASGITransport, AsyncClient, Response

from admin_api.app import AdminApp, create_app
from admin_api.settings import Settings
from tests.unit.admin_api.fake_brokers import NAMESRV, FakeBrokers

OWN = {"X-LedgerMQ-Request": "1"}


@asynccontextmanager
async def asking(brokers: FakeBrokers, **limits: Any) -> AsyncIterator[AsyncClient]:
    """A client without a token, on the loopback address; nothing is cached unless told."""
    settings = Settings(namesrv=NAMESRV, **{"cache_ms": 0, "brokers_cache_ms": 0, **limits})
    async with asking_app(create_app(settings, brokers)) as client:
        yield client


@asynccontextmanager
async def asking_app(app: AdminApp) -> AsyncIterator[AsyncClient]:
    """The same of any application."""
    transport = ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        AsyncClient(transport=transport, base_url="http://127.0.0.1:8080/api/v1", headers=OWN) as client,
    ):
        yield client


def answered(answer: Response, status: int = 200) -> Any:
    """The body. A test that expects another status sees what came instead."""
    assert answer.status_code == status, answer.text
    return answer.json()
