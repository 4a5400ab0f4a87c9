"""Spark's Python daemon as ours: what is there in a worker that is forked from it, and before the fork."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketmq_spark.daemon import MODULES

LIMIT_S = 60.0
ROOT = Path(__file__).parents[3]
LOOK = """
import gc, json, os, sys
import rocketmq_spark.daemon as own
own.daemon.manager = lambda: print(json.dumps(
    [sorted(sys.modules), gc.get_freeze_count(), len(gc.get_objects()), len(os.listdir("/proc/self/task"))]
))
own.main()
"""
"""Says what there is when Spark's own daemon begins."""
DRAW = """
import os
import numpy.random
import rocketmq_spark.daemon as own
own.import_modules()
for _ in range(2):
    if (pid := os.fork()) == 0:
        print(numpy.random.random(), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""
"""Two workers, and what a user's function in them gets by chance."""


def environment() -> dict[str, str]:
    """As Spark gives it to its daemon."""
    return os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "YES", "OMP_NUM_THREADS": "1"}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_all_is_imported_and_frozen_before_any_fork_and_no_thread_runs() -> None:
    run = subprocess.run(
        [sys.executable, "-c", LOOK], env=environment(), capture_output=True, timeout=LIMIT_S, check=True
    )
    modules, frozen, followed, threads = json.loads(run.stdout)
    assert {*MODULES, "pyarrow", "numpy", "rocketmq_spark.source.reading"} <= set(modules)
    assert frozen > 10 * followed
    assert threads == 1


def test_workers_draw_random_numbers_of_their_own() -> None:
    run = subprocess.run(
        [sys.executable, "-c", DRAW], env=environment(), capture_output=True, timeout=LIMIT_S, check=True
    )
    first, second = run.stdout.split()
    assert first != second


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    """Started as Spark does, which ends it by closing its input."""
    command = [sys.executable, "-m", "rocketmq_spark.daemon", "pyspark.worker"]
    settings = environment() | {"PYTHON_WORKER_FACTORY_SECRET": "secret"}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=settings)
    try:
        yield process
        process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait(LIMIT_S)


def test_it_speaks_as_sparks_own(daemon: subprocess.Popen[bytes]) -> None:
    assert daemon.stdout is not None
    (port,) = struct.unpack(">i", daemon.stdout.read(4))
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
        (pid,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        assert pid != daemon.pid
        connection.sendall(struct.pack(">i", 6) + b"secret")
        assert connection.recv(6, socket.MSG_WAITALL) == struct.pack(">i", 2) + b"ok"
        if Path("/proc").exists():
            maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
            assert "libarrow" in maps
