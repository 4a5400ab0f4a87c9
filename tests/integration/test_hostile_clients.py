"""Clients and strangers that mean harm: what they cost is bounded, and everybody else is served."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self

import psutil
import pytest

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, encode_command
from remoting.limits import room_within
from tests.integration.client_runs import ROOT
from tests.integration.cluster import Cluster, free_ports
from tests.integration.test_bad_input import assert_takes_messages, send_ext
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire, WireError, broker_of

pytestmark = pytest.mark.integration
MIB = 1 << 20
DESCRIPTORS = 256
FLOOD = 400
GROUP = "HostileGroup"
LIMIT_S = 20.0


@pytest.fixture
def broker(namesrv: str) -> str:
    return broker_of(namesrv)


def connected(address: str, receive_bytes: int | None = None) -> socket.socket:
    host, _, port = address.rpartition(":")
    peer = socket.socket()
    if receive_bytes is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    peer.settimeout(LIMIT_S)
    peer.connect((host, int(port)))
    return peer


@contextmanager
def flood(address: str, count: int) -> Iterator[list[socket.socket]]:
    """So many connections that say nothing yet."""
    with ExitStack() as held:
        yield [held.enter_context(connected(address)) for _ in range(count)]


def is_closed(peer: socket.socket) -> bool:
    """Whether the other side has closed, as far as is known here and now."""
    peer.setblocking(False)
    try:
        return peer.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        peer.settimeout(LIMIT_S)


def pull_frame(topic: str, offset: int, opaque: int, suspend_ms: int = 0) -> bytes:
    ext = {"consumerGroup": GROUP, "topic": topic, "queueId": "0", "queueOffset": str(offset)}
    ext |= {"maxMsgNums": "32", "sysFlag": str(4 | (2 if suspend_ms else 0)), "commitOffset": "0"}
    ext |= {"suspendTimeoutMillis": str(suspend_ms), "subscription": "*", "expressionType": "TAG"}
    return encode_command(RemotingCommand(RequestCode.PULL_MESSAGE, opaque, ext_fields=ext))


class Peak:
    """The most memory a process has had while the block ran, over what it had before."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._before = process.memory_info().rss
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.grown_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.02):
            self.grown_bytes = max(self.grown_bytes, self._process.memory_info().rss - self._before)


def leader_process(cluster: Cluster) -> psutil.Process:
    return psutil.Process(cluster.nodes[cluster.wait_leader()].pid)


def test_dribbled_frames_and_silence_keep_nobody_waiting(broker: str, name: str) -> None:
    frame = encode_command(RemotingCommand(RequestCode.SEND_MESSAGE_V2, 1, ext_fields=send_ext("T")))
    with flood(broker, 200) as peers:
        for at in range(10):
            for peer in peers[:100]:
                peer.sendall(frame[at : at + 1])
            assert_takes_messages(broker, f"Dribble{name}")


def test_announced_lengths_take_no_memory(cluster: Cluster, broker: str, name: str) -> None:
    with Peak(leader_process(cluster)) as peak, flood(broker, 100) as peers:
        for peer in peers:
            peer.sendall(struct.pack(">II", 16 * MIB - 4, 1000) + bytes(100))
        assert_takes_messages(broker, f"Announced{name}")
        # What is announced counts at once, so that no more connections may begin than memory is for.
        assert 20 < sum(not is_closed(peer) for peer in peers) <= 32
    assert peak.grown_bytes < 64 * MIB, peak.grown_bytes


def test_half_frames_take_bounded_memory_and_give_it_back(cluster: Cluster, broker: str, name: str) -> None:
    process = leader_process(cluster)
    before = process.memory_info().rss
    with Peak(process) as peak, flood(broker, 60) as peers:
        for peer in peers:
            with suppress(OSError):
                peer.sendall(struct.pack(">II", 15 * MIB, 1000) + bytes(15 * MIB - 100))
        assert_takes_messages(broker, f"Half{name}")
    assert peak.grown_bytes < 600 * MIB, peak.grown_bytes
    deadline_s = time.monotonic() + LIMIT_S
    while process.memory_info().rss > before + 64 * MIB:
        assert time.monotonic() < deadline_s, process.memory_info().rss - before
        time.sleep(0.1)


def test_header_without_end_closes_the_connection(broker: str, name: str) -> None:
    with Wire(broker) as wire:
        wire.send_bytes(struct.pack(">II", 15 * MIB, 2 * MIB))
        assert wire.is_closed_by_peer()
    assert_takes_messages(broker, f"Header{name}")


def test_garbage_after_a_whole_frame_closes_the_connection(broker: str, name: str) -> None:
    topic = f"Garbage{name}"
    assert_takes_messages(broker, topic)
    with Wire(broker) as wire:
        assert wire.invoke(RequestCode.SEND_MESSAGE_V2, send_ext(topic), b"whole").code == 0
        wire.send_bytes(b"\xff" * 100)
        assert wire.is_closed_by_peer()
    assert_takes_messages(broker, topic)


def test_half_closed_connection_is_closed_and_harms_nobody(broker: str, name: str) -> None:
    with connected(broker) as peer:
        peer.sendall(pull_frame(f"HalfClosed{name}", 0, 1)[:-5])
        peer.shutdown(socket.SHUT_WR)
        assert peer.recv(1) == b""
    assert_takes_messages(broker, f"HalfClosed{name}")


def test_clients_that_read_no_answers_cost_bounded_memory(cluster: Cluster, broker: str, name: str) -> None:
    """Each of four clients asks for 2,000 pulls that are answered with 256 KiB. They would
    be cut off after 30 s.
    """
    topic = f"Unread{name}"
    with Wire(broker) as wire:
        for _ in range(64):
            answer = wire.invoke(RequestCode.SEND_MESSAGE_V2, send_ext(topic), bytes(32 * 1024))
            assert answer.code == ResponseCode.SUCCESS, answer
        wire.send_bytes(pull_frame(topic, 0, 99))
        assert len(wire.read_command().body) > 200_000
    pulls = b"".join(pull_frame(topic, 0, opaque) for opaque in range(1, 2001))
    with Peak(leader_process(cluster)) as peak, ExitStack() as held:
        peers = [held.enter_context(connected(broker, 4096)) for _ in range(4)]
        for peer in peers:
            send_until_full(peer, pulls)
            assert_takes_messages(broker, topic)
    assert peak.grown_bytes < 512 * MIB, peak.grown_bytes


def send_until_full(peer: socket.socket, data: bytes) -> None:
    """As much as the server and the system take."""
    peer.settimeout(1.0)
    try:
        peer.sendall(data)
    except OSError:
        return
    finally:
        peer.settimeout(LIMIT_S)


def wait_closed(peers: list[socket.socket]) -> None:
    for peer in peers:
        wait_for("a stranger is cut off", partial(is_closed, peer), LIMIT_S)


def test_endless_pulls_of_one_client_leave_room_for_others(broker: str, name: str) -> None:
    """Ten times as many as a connection may leave unanswered; they are held for 30 s."""
    topic = f"Endless{name}"
    assert_takes_messages(broker, topic)
    with connected(broker) as greedy, connected(broker) as modest:
        send_until_full(greedy, b"".join(pull_frame(topic, 1, n, 30_000) for n in range(1, 160_001)))
        modest.sendall(pull_frame(topic, 1, 7, 30_000))
        assert_takes_messages(broker, topic)
        modest.settimeout(LIMIT_S)
        (length,) = struct.unpack(">I", modest.recv(4, socket.MSG_WAITALL))
        assert length > 100
    assert_takes_messages(broker, topic)


def test_replication_ports_take_strangers_calmly(cluster: Cluster, broker: str, name: str) -> None:
    """Noise, lying lengths, silence by the hundred, at every node at once: the leader stays, and commits."""
    leader = cluster.wait_leader()
    before = cluster.status(leader)
    assert before is not None
    with ExitStack() as held:
        silent = [
            peer
            for node in cluster.nodes.values()
            for peer in held.enter_context(flood(node.replication, 300))
        ]
        for node in cluster.nodes.values():
            for data in (b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", struct.pack(">II", 31 * MIB, 60_000)):
                with connected(node.replication) as peer:
                    peer.sendall(data + (bytes(100_000) if data[0] == 1 else b""))
                    with suppress(ConnectionResetError):  # it is closed with bytes that were not read
                        assert not peer.recv(1)
        for _ in range(20):
            assert_takes_messages(broker, f"Strangers{name}")
        wait_closed(silent)
    after = cluster.status(leader)
    assert after is not None
    assert (after["role"], after["term"]) == ("LEADER", before["term"])
    complaints = cluster.log_text().count("closing the replication connection")
    assert complaints < 300, complaints


class Node:
    """One broker of its own with few file descriptors."""

    def __init__(self, folder: Path) -> None:
        namesrv_port, port, _ = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        values = {"listenPort": port, "namesrvAddr": f"127.0.0.1:{namesrv_port}"}
        values |= {"storePathRootDir": folder / "store", "dLegerPeers": f"n0-127.0.0.1:{port + 3}"}
        settings = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
        command = f'ulimit -n {DESCRIPTORS}; exec "$@"'
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", command, "sh", sys.executable, "-m", "broker", *settings], cwd=ROOT, stderr=log
            )

    def takes_messages(self) -> bool:
        try:
            assert_takes_messages(self.address, "Flood")
        except (OSError, WireError, AssertionError):
            return False
        return True

    @property
    def open_files(self) -> int:
        return psutil.Process(self.process.pid).num_fds()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    try:
        wait_for("the node takes messages", node.takes_messages, LIMIT_S)
        yield node
    finally:
        node.stop()


def test_flood_of_silent_connections_locks_nobody_out(node: Node) -> None:
    connections_max = room_within(DESCRIPTORS, 10_000).connections_max
    with flood(node.address, FLOOD) as peers:
        for _ in range(10):
            assert node.takes_messages(), node.log.read_text()[-2000:]
        open_now = sum(not is_closed(peer) for peer in peers)
        assert 0 < open_now <= connections_max
        assert node.open_files < DESCRIPTORS
    assert node.process.poll() is None
    assert node.log.stat().st_size < 100_000


def test_flood_of_speaking_connections_is_refused_beyond_the_bound(node: Node) -> None:
    """Whoever is in stays in, and when the flood is over others come in again."""
    connections_max = room_within(DESCRIPTORS, 10_000).connections_max
    request = encode_command(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO, 1))
    with ExitStack() as held:
        speaking = []
        for _ in range(FLOOD):
            peer = held.enter_context(connected(node.address))
            try:
                peer.sendall(request)
                if peer.recv(4, socket.MSG_WAITALL):
                    speaking.append(peer)
            except ConnectionError:
                continue
        assert connections_max - 5 <= len(speaking) <= connections_max
        assert node.open_files < DESCRIPTORS
        assert not node.takes_messages()
        speaking[0].sendall(request)
        assert speaking[0].recv(1 << 16)
    wait_for("there is room again", node.takes_messages, LIMIT_S)
    assert node.process.poll() is None
    assert node.log.stat().st_size < 100_000
