"""The members of a group know each other: forged connections to a cluster as `ledgermq up` starts it, and a
group on several addresses whose authority is replaced while it runs.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dledger.codec import INTEGER_MAX, PROTOCOL_VERSION, Hello, encode_frame
from dledger.core.messages import (
    AppendResponse,
    CompareRequest,
    CompareResponse,
    HeartbeatRequest,
    Message,
    TakeLeadershipRequest,
    TruncateRequest,
    VoteRequest,
)
from dledger.core.types import ResponseCode
from dledger.credentials import member_uri
from ledgermq.certificates import issue, make_authority
from remoting.codes import RequestCode
from tests.integration.client_runs import ROOT
from tests.integration.cluster import COMMAND, REPLICATION_PORT_OFFSET, Cluster, free_ports
from tests.integration.test_bad_input import assert_stores_messages, assert_takes_messages
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire, WireError, call
from tests.support.children import ending_with_parent

pytestmark = pytest.mark.integration
GROUP = "broker-a"
STOP_LIMIT_S = 20.0
AGE_MAX_MS = 1_500
SEND_PAUSE_S = 0.01


def forged(status: Mapping[str, Any], sender: str) -> bytes:
    """All that has destroyed groups whose members believe everything, in the name of `sender`."""
    term, end = status["term"], status["endIndex"]
    messages: tuple[Message, ...] = (
        HeartbeatRequest(term + 5, -1),
        CompareRequest(term + 5, end + 99, end + 99, term),
        TruncateRequest(term + 5, end + 99, end + 100, term, 1 << 40, True, end, term),
        CompareResponse(term, ResponseCode.SUCCESS, end, 0, end, term, end, term),
        AppendResponse(term, ResponseCode.SUCCESS, end, end, end),
        TakeLeadershipRequest(term, end),
        VoteRequest(term + 1, term + 1, end + 100, term, False, True),
        HeartbeatRequest(INTEGER_MAX, -1),
    )
    frames = [
        encode_frame(Hello(GROUP, sender, PROTOCOL_VERSION, "127.0.0.1:1")),
        *map(encode_frame, messages),
    ]
    return b"".join(bytes(part) for frame in frames for part in frame)


def own_certificate(folder: Path, node: str) -> ssl.SSLContext:
    """With the member's name, of another authority."""
    pair = issue(make_authority(f"LedgerMQ {GROUP}"), node, ("127.0.0.1",), (member_uri(GROUP, node),))
    pair.save(folder / "own.pem", folder / "own.key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(folder / "own.pem", folder / "own.key")
    return context


def send(address: str, data: bytes, context: ssl.SSLContext | None) -> None:
    """Returns when the other side has closed the connection."""
    host, _, port = address.rpartition(":")
    connected = socket.create_connection((host, int(port)), 5)
    try:
        if context is not None:
            connected = context.wrap_socket(connected)
        connected.sendall(data)
        while connected.recv(1 << 16):
            pass
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        connected.close()


def test_forged_members_have_no_effect_on_a_cluster_as_it_comes(cluster: Cluster, tmp_path: Path) -> None:
    leader = cluster.wait_leader()
    assert_takes_messages(cluster.address(leader), "Forged")
    before = cluster.statuses()
    for node_id, node in cluster.nodes.items():
        for sender in cluster.nodes.keys() - {node_id}:
            data = forged(before[node_id], sender)
            for context in (None, own_certificate(tmp_path, sender)):
                send(node.replication, data, context)
    assert_takes_messages(cluster.address(leader), "Forged")
    for node_id, status in cluster.statuses().items():
        assert (status["term"], status["leaderId"]) == (before[node_id]["term"], leader), status
        assert status["beginIndex"] == before[node_id]["beginIndex"]
        assert status["committedIndex"] >= before[node_id]["committedIndex"]
        assert status["impairment"] is None


class Group:
    """A group that `ledgermq cluster init` made: each node has its folder, as on a machine of its own, and
    its address of loopback.
    """

    addresses: Mapping[str, str] = {"n0": "127.0.0.1", "n1": "127.0.0.2", "n2": "127.0.0.3"}

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_ports(1)[1]
        self._processes: list[subprocess.Popen[bytes]] = []
        members = [part for node, ip in self.addresses.items() for part in ("--node", f"{node}={ip}")]
        self.command("init", "--port", str(self._port), *members)

    def command(self, name: str, *options: str) -> None:
        subprocess.run(
            [str(COMMAND), "cluster", name, "--data", str(self._folder / "made"), *options],
            capture_output=True,
            cwd=ROOT,
            timeout=60,
            check=True,
        )

    def copy(self, node: str) -> None:
        """To the node's machine."""
        shutil.copytree(self._folder / "made" / node, self._folder / "machines" / node, dirs_exist_ok=True)

    def start(self, node: str) -> None:
        machine = self._folder / "machines" / node
        command = [sys.executable, "-P", "-m", "broker", "--config", "broker.toml"]
        command += ["--set", f"replicationTlsAgeMaxMs={AGE_MAX_MS}"]
        with (machine / "log").open("wb") as log:
            self._processes.append(subprocess.Popen(ending_with_parent(command), cwd=machine, stderr=log))

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(STOP_LIMIT_S)

    def address(self, node: str) -> str:
        return f"{self.addresses[node]}:{self._port}"

    def replication(self, node: str) -> str:
        return f"{self.addresses[node]}:{self._port + REPLICATION_PORT_OFFSET}"

    def status(self, node: str) -> dict[str, Any]:
        answer = call(self.address(node), RequestCode.LEDGERMQ_NODE_STATUS, limit_s=2.0)
        status: dict[str, Any] = json.loads(answer.body)
        return status

    def leader(self) -> str | None:
        with contextlib.suppress(OSError, WireError):
            return next((node for node in self.addresses if self.status(node)["isWritable"]), None)
        return None


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    try:
        for node in made.addresses:
            made.copy(node)
            made.start(node)
        yield made
    finally:
        made.stop()


def test_an_authority_is_replaced_while_the_group_takes_messages(group: Group, tmp_path: Path) -> None:
    """One node after the other, in the three steps of docs/dledger.md."""
    leader = wait_for("a writable leader", group.leader, 30)
    term = group.status(leader)["term"]
    sent, slowest_s = 0, 0.0
    with Wire(group.address(leader)) as wire:
        for step in ("add-authority", "renew", "remove-old-authorities"):
            group.command(step)
            for node in group.addresses:
                group.copy(node)
                end_s = time.monotonic() + 1.1 * AGE_MAX_MS / 1_000
                while (begin_s := time.monotonic()) < end_s:
                    assert_stores_messages(wire, "Kept")
                    sent, slowest_s = sent + 1, max(slowest_s, time.monotonic() - begin_s)
                    time.sleep(SEND_PAUSE_S)
    statuses = [group.status(node) for node in group.addresses]
    assert {(status["term"], status["leaderId"]) for status in statuses} == {(term, leader)}
    assert slowest_s < 2, slowest_s
    wait_for(
        "all nodes have all messages",
        lambda: all(group.status(node)["committedIndex"] >= sent for node in group.addresses),
        10,
    )
    assert "closing the replication connection" not in (tmp_path / "machines" / leader / "log").read_text()
