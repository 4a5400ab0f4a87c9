"""The admin application: routes, the page's files, the guard in front of them, and what runs beside them."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from admin_api.access.routes import router as access_router
from admin_api.audit.log import AuditLog, Auditor, Refusals
from admin_api.audit.routes import router as audit_router
from admin_api.brokers.routes import maintenance_router
from admin_api.brokers.routes import router as brokers_router
from admin_api.changes import Action, Changes
from admin_api.cluster.feed import Feed
from admin_api.cluster.history import History
from admin_api.cluster.routes import grpc_router, history_router, replication_router
from admin_api.cluster.routes import router as cluster_router
from admin_api.dead_letters.routes import router as dlq_router
from admin_api.gateway import Invoker
from admin_api.groups.routes import producers_router
from admin_api.groups.routes import router as consumer_groups_router
from admin_api.health_checks.routes import doctor_router, metrics_router
from admin_api.health_checks.routes import router as health_router
from admin_api.messages.routes import router as messages_router
from admin_api.metrics import AdminMetrics, CountedClient, CountedRequests
from admin_api.openapi import completed
from admin_api.problems import add_problem_handlers
from admin_api.security.http_guard import Guard
from admin_api.security.policy import Policy
from admin_api.security.rates import RateLimit, Turns
from admin_api.services import open_services
from admin_api.settings import Settings
from admin_api.sources.broker_admin import RuntimeSource
from admin_api.topics.routes import router as topics_router
from admin_api.upgrades.routes import finish_router
from admin_api.upgrades.routes import router as upgrade_router

STATIC = Path(__file__).parent / "static"
_HEADERS = {"Cache-Control": "no-cache"}
"""The others are put on every answer (security/http_guard.py)."""

page_router = APIRouter(include_in_schema=False)


@page_router.get("/")
async def get_page() -> FileResponse:
    return FileResponse(STATIC / "index.html", headers=_HEADERS)


@page_router.get("/docs")
async def get_docs() -> FileResponse:
    return FileResponse(STATIC / "docs.html", headers=_HEADERS)


class _Files(StaticFiles):
    """No file has a NUL in its name; the system calls that a fault, and Starlette before 1.0 hands it on."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        return ("", None) if "\0" in path else super().lookup_path(path)


def mount_static(app: FastAPI) -> None:
    app.mount("/static", _Files(directory=STATIC), name="static")


_ROUTERS = (
    access_router,
    audit_router,
    brokers_router,
    cluster_router,
    consumer_groups_router,
    health_router,
    maintenance_router,
    metrics_router,
    history_router,
    page_router,
    producers_router,
    replication_router,
    topics_router,
    upgrade_router,
    finish_router,
    dlq_router,
    doctor_router,
    grpc_router,
    messages_router,
)
_DESCRIPTION = """Reads and changes a cluster over the brokers' own protocol. A change that loses something is
first previewed (`dryRun`), and made with the `confirmation` that the preview gives.

Errors are `application/problem+json` (RFC 9457). An unknown number is null, never 0."""


class AdminApp(FastAPI):
    """FastAPI behind the guard, with a complete description."""

    policy = Policy()
    metrics = AdminMetrics()
    refusals: Refusals | None = None

    def build_middleware_stack(self) -> ASGIApp:
        """The guard is in front of everything, error answers included; all requests are counted."""
        record = None if self.refusals is None else self.refusals.add
        guard = Guard(super().build_middleware_stack(), self.policy, record)
        return CountedRequests(guard, self.metrics)

    async def warm_up(self) -> None:
        """FastAPI builds what a route needs for the first request that passes by it, and anyio loads its part
        for threads with the first: 0.1 s of CPU time and more, which the first who asks would wait for.
        """
        nowhere: Scope = {"type": "http", "method": "GET", "path": "/none", "root_path": "", "headers": []}
        for route in self.routes:
            route.matches(nowhere)
        await run_in_threadpool(int)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = completed(
                super().openapi(), [r for router in _ROUTERS for r in router.routes]
            )
        return self.openapi_schema


def create_app(
    settings: Settings,
    client: Invoker | None = None,
    *,
    policy: Policy | None = None,
    audit_log: AuditLog | None = None,
) -> AdminApp:
    """The application over one name server. Given `client` and `audit_log` are the caller's to close.

    Without `policy` it serves every caller that uses a name of the loopback address; without `audit_log`
    changes are remembered in memory.
    """
    audit_log = audit_log or AuditLog(None)
    auditor, figures = Auditor(audit_log), AdminMetrics()
    refusals = Refusals(auditor, Action.REQUEST)

    @asynccontextmanager
    async def lifespan(app: AdminApp) -> AsyncIterator[None]:
        async with open_services(settings, client, lambda own: CountedClient(own, figures)) as services:
            services.make_all()
            await app.warm_up()
            await figures.delay.start()
            app.state.services = services
            app.state.feed = Feed(services.reader.read, settings)
            runtime = RuntimeSource(services.gateway)
            app.state.history = History(app.state.feed.current, runtime.read, settings)
            app.state.history.start()
            yield
            await app.state.history.close()
            app.state.feed.close()
            await refusals.close()
            await figures.delay.stop()

    app = AdminApp(
        title="LedgerMQ admin",
        description=_DESCRIPTION,
        version="1",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.policy = policy or Policy()
    app.metrics = app.state.metrics = figures
    app.refusals = refusals
    app.state.audit, app.state.auditor = audit_log, auditor
    app.state.changes = Changes(audit_log)
    app.state.settings = settings
    app.state.costly_limit = RateLimit(settings.costly_burst, settings.costly_per_s)
    app.state.costly_turns = Turns(settings.costly_at_once, settings.costly_at_once_max)
    add_problem_handlers(app)
    for router in _ROUTERS:
        app.include_router(router)
    mount_static(app)
    return app
