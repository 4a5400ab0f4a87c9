"""Figures of the process and its machine for GET_BROKER_RUNTIME_INFO. RocketMQ has none of them; readers that
do not know them pass them over. What a system does not tell is left out.
"""

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final

_OPEN_FILES: Final = Path("/proc/self/fd")
_MEMORY: Final = Path("/proc/meminfo")
_PAGES: Final = Path("/proc/self/statm")


def process_figures(clock: Callable[[], int]) -> dict[str, str]:
    """`clockMs`: Unix time of this node; open files, connections among them, and how many there may be; bytes
    of memory that the process has, and that the machine has left.
    """
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    figures = {"clockMs": str(clock())}
    if files_max != resource.RLIM_INFINITY:
        figures["openFilesMax"] = str(files_max)
    try:
        figures["openFiles"] = str(sum(1 for _ in os.scandir(_OPEN_FILES)))
        figures["residentBytes"] = str(_resident_bytes(_PAGES.read_text(encoding="ascii")))
        figures["memoryAvailableBytes"] = str(available_bytes(_MEMORY.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return figures
    return figures


def _resident_bytes(statm: str) -> int:
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def available_bytes(meminfo: str) -> int:
    """Raises: ValueError when it is not told."""
    line = next((line for line in meminfo.splitlines() if line.startswith("MemAvailable:")), "")
    amount = line.removeprefix("MemAvailable:").removesuffix("kB").strip()
    return int(amount) * 1024
