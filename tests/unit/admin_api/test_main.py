"""admin_api.__main__: how the process ends, and when it does not begin."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest

import admin_api
from admin_api.settings import Settings, SettingsError, with_environment

LIMIT_S = 60.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(admin_api.__path__[0]).parent)}


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


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--tls-cert", "none.pem"], 1, "none.pem cannot be used for HTTPS: No such file or directory"),
        (["--tls-cert", "odd.pem", "--tls-key", "odd.pem"], 1, "odd.pem odd.pem cannot be used for HTTPS: "),
        (["--tls-key", "odd.pem"], 2, "give --tls-cert, too"),
        (["--broker-tls-ca", "odd.pem"], 1, "odd.pem has no certificates as PEM"),
        (["--broker-tls", "--broker-tls-key", "odd.pem"], 1, "a key for TLS is of no use"),
    ],
)
def test_files_of_no_use_for_tls_are_said(tmp_path: Path, options: list[str], code: int, said: str) -> None:
    (tmp_path / "odd.pem").write_text("no certificate")
    command = [sys.executable, "-m", "admin_api", "--namesrv", "127.0.0.1:1", "--port", "0", *options]
    ended = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (ended.returncode, said in ended.stderr, "Traceback" in ended.stderr) == (code, True, False)


def test_account_that_is_not_whole_is_said() -> None:
    """It would fail each request to a broker with access control."""
    command = [sys.executable, "-m", "admin_api", "--namesrv", "127.0.0.1:1", "--port", "0"]
    environment = ENVIRONMENT | {"LEDGERMQ_ACCESS_KEY": "someone"}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == "the environment has no LEDGERMQ_SECRET_KEY, which access control needs.\n"


@pytest.mark.parametrize(
    "text", ["", "300", "300/", "/30", "0/30", "300/0", "3e2/30", "-1/1", "9999999999/1"]
)
def test_bound_on_queries_that_is_none_is_said(text: str) -> None:
    with pytest.raises(SettingsError, match=rf"^LEDGERMQ_ADMIN_QUERIES is '{text}'; it has "):
        with_environment(Settings(namesrv="h:1"), {"LEDGERMQ_ADMIN_QUERIES": text})


def test_process_with_such_a_bound_does_not_begin() -> None:
    command = [sys.executable, "-m", "admin_api", "--namesrv", "127.0.0.1:1", "--port", "0"]
    environment = ENVIRONMENT | {"LEDGERMQ_ADMIN_QUERIES": "many"}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (ended.returncode, ended.stderr.partition(";")[0]) == (1, "LEDGERMQ_ADMIN_QUERIES is 'many'")


def test_bound_on_queries_is_of_the_environment() -> None:
    given = with_environment(Settings(namesrv="h:1"), {"LEDGERMQ_ADMIN_QUERIES": " 7/2 "})
    assert (given.costly_burst, given.costly_per_s) == (7, 2.0)
    assert with_environment(given, {}) == given


def test_port_in_use_is_said_with_the_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "admin_api", "--namesrv", "127.0.0.1:1", "--port", str(port)]
        ended = subprocess.run(
            command, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    assert ended.returncode == 1
    said = f"cannot listen on 127.0.0.1:{port}: port {port} is in use by process {os.getpid()} ("
    assert ended.stderr.startswith(said)
