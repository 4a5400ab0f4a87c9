"""A group whose nodes are of different releases: real processes, each of this checkout or of an installed
release, on loopback and without certificates, since 0.1.0 has no TLS between members.

Start, stop and replace nodes on one running event loop; what waits does so in threads, so that clients of the
test go on.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ledgermq.local.plan import to_toml
from remoting.codes import RequestCode
from tests.integration.client_runs import ROOT
from tests.integration.cluster import REPLICATION_PORT_OFFSET, free_ports
from tests.integration.waiting import wait_for
from tests.integration.wire import WireError, broker_of, call
from tests.support.children import ending_with_parent
from tests.support.releases import Release

T = TypeVar("T")
START_LIMIT_S = 40.0
STOP_LIMIT_S = 20.0
NEAR_ENTRIES = 500
DATA_FILE_BYTES = 8 * 1024 * 1024
THIS = None
"""In the place of a `Release`: this checkout."""


@dataclass(slots=True)
class MixedNode:
    """One node, what it runs, and its process if it runs."""

    node_id: str
    port: int
    folder: Path
    release: Release | None = THIS
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class MixedCluster:
    """One name server and a group of nodes."""

    def __init__(self, folder: Path, releases: Sequence[Release | None], namesrv: Release | None) -> None:
        """`releases`: what n0, n1, … run first; `namesrv`: what the name server runs."""
        self.folder = folder
        namesrv_port, broker_port, _ = free_ports(len(releases))
        self.namesrv = f"127.0.0.1:{namesrv_port}"
        self.nodes = {
            f"n{number}": MixedNode(f"n{number}", broker_port + 10 * number, folder / f"n{number}", each)
            for number, each in enumerate(releases)
        }
        self.settings: dict[str, str | int | bool] = {}
        self._namesrv_release = namesrv
        self._namesrv: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start everything and wait for a leader that takes messages and is known to the name server."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _, _, port = self.namesrv.rpartition(":")
        options = ["--host", "127.0.0.1", "--port", port, "--kv-config", str(self.folder / "kvConfig.json")]
        self._namesrv = self._spawn(self._namesrv_release, ["-m", "namesrv", *options], "namesrv")
        for node in self.nodes.values():
            self.start_node(node.node_id, node.release)
        await self.wait_leader(START_LIMIT_S)
        await self._wait("the name server names the leader", self._route, START_LIMIT_S)

    def _route(self) -> str | None:
        try:
            return broker_of(self.namesrv)
        except (OSError, WireError, AssertionError, IndexError):
            return None

    async def stop(self) -> None:
        """End every process: asked first, and killed when that takes too long."""
        processes = [node.process for node in self.nodes.values()] + [self._namesrv]
        running = [process for process in processes if process is not None and process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            await asyncio.to_thread(_end, process)

    def start_node(self, node_id: str, release: Release | None) -> None:
        """Start a node that is down, as this release; `wait_answers` says when it is up."""
        node = self.nodes[node_id]
        assert not node.is_running, node_id
        node.folder.mkdir(exist_ok=True)
        config = node.folder / "broker.toml"
        config.write_text(to_toml(self._config(node)), encoding="utf-8")
        node.release = release
        node.process = self._spawn(
            release, ["-m", "broker", "--config", str(config)], f"{node_id}-{node.starts}"
        )
        node.starts += 1

    def _config(self, node: MixedNode) -> Mapping[str, str | int | bool]:
        """Keys that all releases know."""
        peers = (f"{e.node_id}-127.0.0.1:{e.port + REPLICATION_PORT_OFFSET}" for e in self.nodes.values())
        return {
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": node.port,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(node.store),
            "dLegerPeers": ";".join(peers),
            "dLegerSelfId": node.node_id,
            "registerNameServerPeriod": 1000,
            "mappedFileSizeCommitLog": DATA_FILE_BYTES,
            "cleanFileForciblyEnable": False,
            **self.settings,
        }

    def _spawn(self, release: Release | None, argv: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        """The modules of a release are those of its environment."""
        checkout = [sys.executable, *argv]
        command = checkout if release is None else release.command(*argv)
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                ending_with_parent(command),
                cwd=ROOT if release is None else self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    async def end_node(self, node_id: str, number: int = signal.SIGTERM) -> int:
        """Send a signal that ends the node, and wait until it has ended; its exit code."""
        process = self.nodes[node_id].process
        assert process is not None, node_id
        process.send_signal(number)
        return await asyncio.to_thread(process.wait, STOP_LIMIT_S)

    async def replace(self, node_id: str, release: Release | None, settle_s: float = 0.0) -> None:
        """One step of a rolling upgrade, as docs/upgrading.md describes it: leadership is handed over, the
        node stops, and starts as the other release; it ends when the leader is in touch with all.

        settle_s: how long clients have to ask for routes between the first two, while a node of this release
        forwards what they still send to it. One of an earlier release refuses that: it is replaced at once.
        """
        if self.leader() == node_id:
            await self.hand_over(node_id)
            await asyncio.sleep(settle_s if self.nodes[node_id].release is THIS else 0)
        await self.end_node(node_id)
        self.start_node(node_id, release)
        await self.wait_answers(node_id)
        await self.wait_in_touch()

    async def hand_over(self, node_id: str) -> None:
        """Another node leads afterwards."""
        others = [each.node_id for each in self.nodes.values() if each.node_id != node_id and each.is_running]

        def is_handed_over() -> bool:
            leader = self.leader()
            if leader == node_id:
                self._transfer(node_id, others[0])
            return leader is not None and leader != node_id

        await self._wait(f"another node than {node_id} leads", is_handed_over, START_LIMIT_S)

    async def lead(self, node_id: str) -> None:
        """Have leadership handed over until the node has it."""

        def leads() -> bool:
            leader = self.leader()
            if leader not in (None, node_id):
                self._transfer(leader, node_id)
            return leader == node_id

        await self._wait(f"{node_id} leads", leads, START_LIMIT_S)

    def _transfer(self, leader: str, node_id: str) -> None:
        """Refused, or begun; who leads afterwards must be asked."""
        with suppress(OSError, WireError):
            code = RequestCode.LEDGERMQ_TRANSFER_LEADER
            call(self.nodes[leader].address, code, {"transferee": node_id})

    def status(self, node_id: str) -> dict[str, Any] | None:
        """The node's own status, None while it does not answer."""
        try:
            answer = call(self.nodes[node_id].address, RequestCode.LEDGERMQ_NODE_STATUS, limit_s=2.0)
        except (OSError, WireError):
            return None
        status: dict[str, Any] = json.loads(answer.body)
        return status

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Of every node that answers."""
        found = {node.node_id: self.status(node.node_id) for node in self.nodes.values() if node.is_running}
        return {node_id: status for node_id, status in found.items() if status is not None}

    def leader(self) -> str | None:
        """The writable node of the highest term."""
        leaders = {each["term"]: node_id for node_id, each in self.statuses().items() if each["isWritable"]}
        return leaders[max(leaders)] if leaders else None

    async def wait_leader(self, limit_s: float = START_LIMIT_S) -> str:
        leader = await self._wait("a writable leader", self.leader, limit_s)
        assert leader is not None
        return leader

    async def wait_answers(self, node_id: str) -> None:
        def answer() -> dict[str, Any] | None:
            process = self.nodes[node_id].process
            assert process is not None
            assert process.poll() is None, (
                f"{node_id} ended with {process.poll()}:\n{self.log(node_id)[-3000:]}"
            )
            return self.status(node_id)

        await self._wait(f"{node_id} answers", answer, START_LIMIT_S)

    async def wait_in_touch(self) -> None:
        """The leader knows how far each of its peers is, and none is far behind or without a vote."""

        def in_touch() -> bool:
            leader = self.leader()
            statuses = self.statuses()
            if leader is None or len(statuses) < len(self.nodes):
                return False
            peers = [peer for peer in statuses[leader]["peers"] if peer["id"] != leader]
            return not any(status["impairment"] for status in statuses.values()) and all(
                peer["pushState"] == "APPEND" and (peer["lagEntries"] or 0) < NEAR_ENTRIES for peer in peers
            )

        await self._wait("the leader is in touch with all others", in_touch, START_LIMIT_S)

    async def wait_level(self, level: int) -> None:
        """The log of each node says that the group writes these formats."""

        def is_raised() -> bool:
            statuses = self.statuses().values()
            levels = [status.get("formatLevel") for status in statuses]
            return levels == [level] * len(self.nodes)

        await self._wait(f"all nodes are at format level {level}", is_raised, START_LIMIT_S)

    async def wait_whole(self) -> dict[str, dict[str, Any]]:
        """All nodes follow one leader and have applied all of one log."""

        def equal() -> dict[str, dict[str, Any]] | None:
            statuses = self.statuses()
            keys = ("term", "leaderId", "endIndex", "committedIndex", "appliedIndex")
            seen = {tuple(status[key] for key in keys) for status in statuses.values()}
            if len(statuses) != len(self.nodes) or len(seen) != 1:
                return None
            _, leader, *indexes = seen.pop()
            return statuses if leader and len(set(indexes)) == 1 else None

        whole = await self._wait("all nodes show one leader and one log", equal, START_LIMIT_S)
        assert whole is not None
        return whole

    async def _wait(self, what: str, probe: Callable[[], T], limit_s: float) -> T:
        try:
            return await asyncio.to_thread(wait_for, what, probe, limit_s)
        except AssertionError as error:
            logs = "".join(f"\n--- {node_id}\n{self.log(node_id)[-1500:]}" for node_id in self.nodes)
            raise AssertionError(f"{error}{logs}") from error

    def log(self, node_id: str) -> str:
        """What a node has said since its last start."""
        path = self.folder / f"{node_id}-{self.nodes[node_id].starts - 1}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
