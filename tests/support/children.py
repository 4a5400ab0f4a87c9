"""What tests start ends with them, even when a run is interrupted and its workers are killed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence


def ending_with_parent(command: Sequence[str]) -> list[str]:
    """The same command, to which Linux sends SIGTERM when this process dies; its process id is the child's.

    The kernel goes by the thread that starts the process: any but the main one may end sooner, and its
    commands stay as they are, as where there is no setpriv(1).
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None or threading.current_thread() is not threading.main_thread():
        return list(command)
    return [setpriv, "--pdeathsig", "TERM", "--", *command]
