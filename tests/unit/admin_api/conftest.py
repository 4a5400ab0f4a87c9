"""The applications of these tests begin without the work that their first requests are spared, and share
what FastAPI builds of each route.
"""

from __future__ import annotations

import pytest
from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute

from admin_api.app import AdminApp

_INCLUDED: list[tuple[APIRouter, BaseRoute]] = []
"""Routers, and what an application before has included each as."""


async def _cold(_app: AdminApp) -> None:
    """Nothing is built."""


def _include(app: AdminApp, router: APIRouter) -> None:
    for known, included in _INCLUDED:
        if known is router:
            app.router.routes.append(included)
            return
    FastAPI.include_router(app, router)
    _INCLUDED.append((router, app.router.routes[-1]))


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test asks a few routes, of an application of its own: to build them takes most of its time. What is
    built of a route holds nothing of an application, but for overrides of dependencies, which none has.
    """
    monkeypatch.setattr(AdminApp, "warm_up", _cold)
    monkeypatch.setattr(AdminApp, "include_router", _include)
