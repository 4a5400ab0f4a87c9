"""Gives way to brokers on the same machine: people who look at a cluster must not slow it down."""

import os
from pathlib import Path
from typing import Final

NICE_MAX: Final = 19
_AUTOGROUP: Final = Path("/proc/self/autogroup")


def give_way(nice: int) -> None:
    """Lowers this process's share of the CPU by `nice` (0: not at all, 19: what others leave).

    Linux desktops weigh whole sessions against one another (sched(7), autogroup) and a process only within
    its own, so that the session is lowered too where it is this process's alone.
    """
    if nice == 0 or not hasattr(os, "nice"):
        return
    os.nice(nice)
    if os.getsid(0) != os.getpid():
        return
    try:
        # Of the session: it does not follow the process's own.
        level = int(_AUTOGROUP.read_text().split()[-1])
        _AUTOGROUP.write_text(str(min(level + nice, NICE_MAX)))
    except (OSError, ValueError, IndexError):
        return  # a kernel that weighs no sessions
