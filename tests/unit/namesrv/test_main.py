"""`python -m namesrv` as a process: one line when it listens, a clean end by signal, a clear failure."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def _start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "error", "-m", "namesrv", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_says_where_it_listens_and_ends_cleanly(number: signal.Signals) -> None:
    with _start("--port", "0") as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"name server listens on 127\.0\.0\.1:(\d+)$", line)
        assert found, line
        with socket.create_connection(("127.0.0.1", int(found.group(1))), 5):
            process.send_signal(number)
            _, rest = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "Traceback" not in rest


def test_process_that_cannot_listen_says_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with _start("--port", str(port)) as process:
            _, text = process.communicate(timeout=10)
    assert process.returncode == 1
    assert f"cannot start: port {port} is in use by process {os.getpid()} (" in text
    assert "Traceback" not in text


def test_process_with_a_damaged_kv_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    path.write_text("{")
    with _start("--port", "0", "--kv-config", str(path)) as process:
        _, text = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "kv.json" in text
