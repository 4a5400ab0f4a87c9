"""`python -m namesrv` as a process: one line when it listens, a clean end by signal, a clear failure."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from namesrv.__main__ import main
from remoting.client.blocking import Connection
from remoting.client.tls import ClientTls
from remoting.command import RemotingCommand
from remoting.errors import RemotingClosedError
from tests.support.certificates import TlsPlace

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


def test_broker_identity_of_another_form_is_refused_with_the_right_one() -> None:
    with _start("--port", "0", "--broker-identity", "broker-a") as process:
        _, text = process.communicate(timeout=10)
    assert process.returncode == 2
    assert "NAME=IDENTITY[,IDENTITY…] with host:…" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tls-cert", "none.pem"), "none.pem cannot be read"),
        (("--tls-mode", "enforcing"), "mode enforcing needs a certificate"),
        (("--tls-client-auth", "require"), "needs the authorities"),
    ],
)
def test_tls_that_cannot_be_used_is_said(options: tuple[str, ...], said: str) -> None:
    with _start("--port", "0", *options) as process:
        _, error = process.communicate(timeout=10)
    assert (process.returncode, said in error, "Traceback" in error) == (1, True, False), error


def test_process_speaks_tls(tmp_path: Path) -> None:
    place = TlsPlace(tmp_path)
    files = ("--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key"))
    tls = ClientTls(tmp_path / "ca.pem").credentials()
    with _start("--port", "0", "--tls-mode", "enforcing", *files) as process:
        assert process.stderr is not None
        port = process.stderr.readline().rpartition(":")[2].strip()
        for host in ("first.example", "second.example"):
            place.add("server", host)
            with Connection(f"127.0.0.1:{port}", 5.0, tls) as connection:
                assert connection.invoke(RemotingCommand(106)).code == 0
        with Connection(f"127.0.0.1:{port}", 5.0) as plain, pytest.raises(RemotingClosedError):
            plain.invoke(RemotingCommand(106))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--address-requests", "-1", "-1 is no number from 0 to 1000000000"),
        ("--address-connections", "many", "many is no number from 0 to 1000000000"),
        ("--quota-exempt", "10.0.0.0/8,x", "'x' does not appear to be an IPv4 or IPv6 network"),
    ],
)
def test_wrong_quotas_are_refused(
    option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([f"{option}={value}"])
    assert words in capsys.readouterr().err
