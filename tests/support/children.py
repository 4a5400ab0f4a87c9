"""What tests start ends with them, even when a run is interrupted and its workers are killed."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial

PR_SET_PDEATHSIG = 1


def end_with_parent() -> Callable[[], object] | None:
    """The `preexec_fn` of a process that Linux sends SIGTERM when this one dies.

    The kernel goes by the thread that starts the process: any but the main one may end sooner, and gets None.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if sys.platform != "linux" or not is_main:
        return None
    return partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, signal.SIGTERM)
