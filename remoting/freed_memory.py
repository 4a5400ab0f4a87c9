"""Has the C library keep memory that was freed, so that the next answer takes it again.

By itself glibc takes a large block from the system, which clears every page of it, and soon gives it back.
For answers of some 100 KiB and more that costs several times what is done with their bytes.
"""

import ctypes
from typing import Final

TRIM_BYTES: Final = 16 * 1024 * 1024
"""So much free memory at the heap's end is kept."""
MAPPED_BYTES_MIN: Final = 2 * 1024 * 1024
"""Blocks from this size on come from the system one by one."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> bool:
    """Of this process, from now on. Whether the C library can do so: others than glibc are left alone."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    set_option.argtypes, set_option.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(set_option(_M_TRIM_THRESHOLD, TRIM_BYTES) and set_option(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN))
