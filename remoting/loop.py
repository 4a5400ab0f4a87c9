"""Sets the process up for many connections and large answers, then runs its main coroutine.

The loop is uvloop's where it is installed. The limit of open files is raised, and the C library is tuned to
keep freed memory: by default glibc maps each large block from the system, which clears every page of it, and
soon unmaps it again. For answers of 100 KiB and more that costs several times the work on their bytes.
"""

import asyncio
import ctypes
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from remoting.limits import raise_limit

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


TRIM_BYTES: Final = 16 * 1024 * 1024
"""Free memory kept at the heap's end."""
MAPPED_BYTES_MIN: Final = 2 * 1024 * 1024
"""Blocks of this size and more are mapped from the system one by one."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> bool:
    """Tune this process's allocator. Returns whether that worked: only glibc can be tuned."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    set_option.argtypes, set_option.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(set_option(_M_TRIM_THRESHOLD, TRIM_BYTES) and set_option(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN))
