"""What the pipeline's bench holds of the machine, with real processes and files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.pipeline_machine import kept_in_memory, only_cores, tasks_of

THREADS = """
import sys, threading
for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child() -> Iterator[int]:
    """A process with three threads besides its first."""
    command = [sys.executable, "-c", THREADS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.communicate("")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor")
def test_every_thread_of_what_was_started_is_held_to_one_processor_and_let_go(child: int) -> None:
    whole = os.sched_getaffinity(0)
    tasks = tasks_of(child)
    assert len(tasks) == 4
    with only_cores(1):
        first = {min(whole)}
        assert os.sched_getaffinity(0) == first
        assert [os.sched_getaffinity(task) for task in tasks] == [first] * 4
        shown = "import os; print(*os.sched_getaffinity(0))"
        later = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
        assert {int(word) for word in later.stdout.split()} == first
    assert os.sched_getaffinity(0) == whole
    assert [os.sched_getaffinity(task) for task in tasks] == [whole] * 4


def locked_kb() -> int:
    """How much this process keeps locked."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmLck:")[1].split()[0])


def test_files_are_locked_while_they_are_kept_and_not_longer(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "empty", tmp_path / "b"]
    for path, size in zip(paths, (16 << 10, 0, 8 << 10), strict=True):
        path.write_bytes(bytes(size))
    before = locked_kb()
    with kept_in_memory(paths) as is_locked:
        assert locked_kb() == before + (24 if is_locked else 0)
        assert is_locked, "24 KiB are within what anybody may lock"
    assert locked_kb() == before
