"""Runs a program's main coroutine on the fastest loop there is, with room for many connections."""

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from remoting.descriptors import raise_limit
from remoting.freed_memory import keep_freed_memory

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run `main` to its end on uvloop where it is installed, else on asyncio's own loop."""
    raise_limit()
    keep_freed_memory()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
