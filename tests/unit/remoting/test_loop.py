"""The helper that runs a program's main coroutine."""

import asyncio
import importlib.machinery
import importlib.util

import pytest

from remoting import loop


async def _loop_module() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_run_uses_uvloop_where_it_is_installed() -> None:
    assert loop.run(_loop_module()).startswith("uvloop")


def test_run_uses_asyncio_where_uvloop_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str, package: str | None = None) -> importlib.machinery.ModuleSpec | None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_nothing)
    assert loop.run(_loop_module()).startswith("asyncio")
