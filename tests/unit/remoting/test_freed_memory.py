"""Freed memory is kept, in a process of its own: the setting stays for a process's life."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from remoting.loop import keep_freed_memory

def faults_of(size_bytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        first, second = bytes(bytearray(size_bytes)), bytes(bytearray(size_bytes))
        del first, second
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert keep_freed_memory()
faults_of(1 << 20)
print(faults_of(1 << 20))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc only")
def test_large_blocks_are_taken_again_without_the_system() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 1_000  # else 50 rounds clear 256 pages for each block
