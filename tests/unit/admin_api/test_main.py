"""admin_api.__main__: how the process ends."""

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from urllib.error import URLError

import pytest

LIMIT_S = 60.0


def free_port() -> int:
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        port: int = there.getsockname()[1]
        return port


def wait_until_served(port: int, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        assert process.poll() is None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5):
                return
        except URLError:
            time.sleep(0.1)
    raise AssertionError("it does not serve")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_no_failure(number: signal.Signals) -> None:
    port = free_port()
    command = [sys.executable, "-m", "admin_api", "--namesrv", "127.0.0.1:1", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            wait_until_served(port, process)
            process.send_signal(number)
            _, said = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert (process.returncode, b"Traceback" in said) == (0, False), said.decode()
