"""The composition of the admin application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from admin_api.examples import CLUSTER_EXAMPLE
from admin_api.feed import Feed
from admin_api.problems import add_problem_handlers
from admin_api.reader import ClusterReader, Invoker
from admin_api.routes import cluster, health, page
from admin_api.settings import Settings
from remoting.client import RemotingClient

_DESCRIPTION = """Reads a LedgerMQ cluster over the brokers' own protocol; it changes nothing.

Errors are `application/problem+json` (RFC 9457). A number nobody knows is null, never 0."""


class AdminApp(FastAPI):
    """FastAPI, with a description whose example keeps its nulls (FastAPI drops them)."""

    def openapi(self) -> dict[str, Any]:
        described = super().openapi()
        answers = described["paths"]["/api/v1/cluster"]["get"]["responses"]
        answers["200"]["content"]["application/json"]["example"] = CLUSTER_EXAMPLE
        return described


def create_app(settings: Settings, client: Invoker | None = None) -> AdminApp:
    """The application over one name server. A `client` that is given is the caller's to close."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if client is not None:
            app.state.feed = Feed(ClusterReader(client, settings).read, settings)
            yield
            return
        own = RemotingClient()
        app.state.feed = Feed(ClusterReader(own, settings).read, settings)
        yield
        app.state.feed.close()
        await own.close()

    app = AdminApp(
        title="LedgerMQ admin",
        description=_DESCRIPTION,
        version="1",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    add_problem_handlers(app)
    for routes in (cluster, health, page):
        app.include_router(routes.router)
    page.mount_static(app)
    return app
