"""The application of these tests begins without the work that its first requests are spared."""

from __future__ import annotations

import pytest

from admin_api.app import AdminApp


async def _cold(_app: AdminApp) -> None:
    """Nothing is built."""


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test asks a few routes, of an application of its own: to build all takes half of its time."""
    monkeypatch.setattr(AdminApp, "warm_up", _cold)
