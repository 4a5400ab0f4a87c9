"""`ledgermq grpc --workers`: processes that share a port; one that is killed is started again."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.error import URLError
from urllib.request import urlopen

import grpc
import psutil
import pytest

from grpc_endpoint.health import HEALTH_SERVICE
from grpc_endpoint.health_pb2 import HealthCheckRequest, HealthCheckResponse
from ledgermq.local.plan import METRICS_PORT_STEP
from tests.integration.cluster import COMMAND, free_ports
from tests.integration.waiting import wait_for
from tests.support.children import ending_with_parent

pytestmark = pytest.mark.integration
WORKERS = 2
CONNECTIONS = 24
"""The kernel chooses a worker for each: the chance that one gets none is below one in a million."""


@contextmanager
def supervised(port: int, metrics_port: int) -> Iterator[psutil.Process]:
    """The process that supervises the workers. They are healthy or not without a name server, too."""
    command = [str(COMMAND), "grpc", "--namesrv", f"127.0.0.1:{port + 1}", "--port", str(port)]
    command += ["--workers", str(WORKERS), "--metrics-port", str(metrics_port)]
    with subprocess.Popen(ending_with_parent(command)) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            status = process.wait(20)
    assert status == 0


def connections(metrics_port: int) -> list[int]:
    """How many each worker has; empty as long as one of them does not answer."""
    found = []
    for worker in range(WORKERS):
        try:
            with urlopen(f"http://127.0.0.1:{metrics_port + worker}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except (URLError, ConnectionError):
            return []
        found.append(int(float(re.findall(r"^\w*grpc_connections (\S+)", text, re.MULTILINE)[0])))
    return found


def ask_all(port: int, metrics_port: int) -> list[int]:
    """Ask on CONNECTIONS connections, each answered; how many of them each worker had."""
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}", options))
            check = channel.unary_unary(
                f"/{HEALTH_SERVICE}/Check",
                HealthCheckRequest.SerializeToString,
                HealthCheckResponse.FromString,
            )
            assert check(HealthCheckRequest(), timeout=10).status == HealthCheckResponse.NOT_SERVING
        return connections(metrics_port)


def test_workers_share_the_connections_and_a_killed_one_comes_back() -> None:
    port = free_ports(1)[2] + 1
    metrics_port = port + METRICS_PORT_STEP
    with supervised(port, metrics_port) as supervisor:
        wait_for("both workers", lambda: connections(metrics_port), 20)
        shares = ask_all(port, metrics_port)
        assert all(shares)
        assert sum(shares) == CONNECTIONS
        killed = supervisor.children()[0]
        killed.kill()
        wait_for("the other process", lambda: killed not in supervisor.children(), 10)
        wait_for("both workers again", lambda: connections(metrics_port), 20)
        assert all(ask_all(port, metrics_port))
        started = supervisor.children()
        assert len(started) == WORKERS
    assert not any(worker.is_running() for worker in started)


def test_a_port_that_another_program_has_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as other:
        port = other.getsockname()[1]
        command = [str(COMMAND), "grpc", "--port", str(port), "--workers", "2"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == 1
    assert f"the endpoint seems to run already: its port {port} is in use" in result.stderr


def test_workers_that_cannot_start_are_not_tried_for_ever() -> None:
    port = free_ports(1)[2] + 1
    command = [str(COMMAND), "grpc", "--port", str(port), "--workers", "2", "--tls-cert", "no-such-file.pem"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == 1
    assert "the endpoint cannot start" in result.stderr
