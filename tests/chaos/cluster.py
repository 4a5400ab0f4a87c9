"""A cluster of real processes that are connected through proxies: node to node, node to name server,
and clients to node.

The nodes know each other by certificates, as with `ledgermq up`, and replace their connections every few
seconds. A node tells the world an address of its own of the loopback network (`127.0.0.11` for n0), where
its proxy for clients listens, and listens at 127.0.0.1 itself. The test asks a node's status there, past
all faults.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ledgermq.local.node_files import replication_keys
from ledgermq.local.plan import to_toml
from ledgermq.members import MemberFiles
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from tests.chaos.faulty_fs import DiskFaults
from tests.chaos.network import CLIENTS, NAMESRV, Network
from tests.integration.client_runs import ROOT
from tests.integration.cluster import REPLICATION_PORT_OFFSET, free_ports
from tests.integration.waiting import POLL_INTERVAL_S, pause_after

T = TypeVar("T")
START_LIMIT_S = 40.0
STOP_LIMIT_S = 20.0
STATUS_LIMIT_S = 1.0
PR_SET_PDEATHSIG = 1
NEAR_ENTRIES = 500
DATA_FILE_BYTES = 8 * 1024 * 1024
GROUP, CERTIFICATES = "broker-a", "certificates"
CONNECTION_AGE_MAX_MS = 5_000


async def eventually(
    what: str,
    probe: Callable[[], Awaitable[T | None]],
    limit_s: float,
    interval_s: float = 0.0,
) -> T:
    """Call `probe` till it gives something true. Raises AssertionError with the last value at the limit."""
    end_s = time.monotonic() + limit_s
    while True:
        asked_s = time.monotonic()
        value = await probe()
        if value:
            return value
        now_s = time.monotonic()
        if now_s >= end_s:
            raise AssertionError(f"after {limit_s:g} s still not so: {what} (last seen: {value!r})")
        await asyncio.sleep(max(interval_s, pause_after(now_s - asked_s)))


@dataclass(frozen=True, slots=True)
class Disk:
    """What a node's disk is: sound, or one of `tests.chaos.node`."""

    is_volatile: bool = False
    leak: float = 0.0

    def options(self) -> list[str]:
        options = ["--leak", str(self.leak)]
        return options + ["--volatile"] * self.is_volatile


NOWHERE = "127.0.0.99"
"""Nothing listens there."""


@dataclass(slots=True)
class ChaosNode:
    """One node: where it is, and its process if it runs."""

    node_id: str
    port: int
    folder: Path
    public_ip: str
    store_root: Path
    disk: Disk
    peers: tuple[str, ...] = ()
    """The others of its dLegerPeers."""
    is_joining: bool = False
    """Whether it was started to join a running group."""
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def own_address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def store(self) -> Path:
        """The folder of the replicated log, of the vote and of their marks."""
        return self.store_root / f"dledger-{self.node_id}"

    @property
    def control(self) -> Path:
        return self.folder / "disk-faults.json"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send_signal(self, number: int) -> None:
        """To the node's own process; nothing happens when it has ended."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def fault(self, faults: DiskFaults) -> None:
        """From now on the disk of the node does this."""
        faults.write(self.control)


@dataclass(slots=True)
class ChaosCluster:
    """Use `start` and `stop` on one running loop, on which the proxies live, too."""

    folder: Path
    rng: random.Random
    node_count: int = 3
    disk: Disk = field(default_factory=Disk)
    settings: Mapping[str, str | int | bool] = field(default_factory=dict)
    spare_count: int = 0
    nodes: dict[str, ChaosNode] = field(default_factory=dict)
    """Those that belong to the group, or are to join it."""
    spares: dict[str, ChaosNode] = field(default_factory=dict)
    """All others; one that was removed may run."""
    namesrv: str = ""
    _network: Network | None = None
    _client: RemotingClient | None = None
    _namesrv_process: subprocess.Popen[bytes] | None = None

    @property
    def network(self) -> Network:
        assert self._network is not None, "the cluster is not started"
        return self._network

    async def start(self) -> None:
        """Start everything and wait for a leader that takes messages."""
        self.folder.mkdir(parents=True, exist_ok=True)
        count = self.node_count + self.spare_count
        namesrv_port, broker_port, _ = free_ports(count)
        self.namesrv = f"127.0.0.1:{namesrv_port}"
        self._client = RemotingClient()
        first = [f"n{number}" for number in range(self.node_count)]
        for number in range(count):
            node_id = f"n{number}"
            folder = self.folder / node_id
            folder.mkdir(exist_ok=True)
            public_ip, port = f"127.0.0.{11 + number}", broker_port + 10 * number
            store = folder / "store"
            peers = tuple(other for other in first if other != node_id)
            made = self.nodes if node_id in first else self.spares
            made[node_id] = ChaosNode(node_id, port, folder, public_ip, store, self.disk, peers)
        hosts = dict.fromkeys([*self.nodes, *self.spares], ("127.0.0.1",))
        MemberFiles(self.folder / CERTIFICATES).complete(GROUP, hosts)
        await self._connect(namesrv_port)
        argv = ["-m", "namesrv", "--host", "127.0.0.1", "--port", str(namesrv_port)]
        argv += ["--kv-config", str(self.folder / "kvConfig.json")]
        self._namesrv_process = self._spawn(argv, "namesrv")
        for node_id in self.nodes:
            self.start_node(node_id)
        await self.wait_leader(START_LIMIT_S)

    async def _connect(self, namesrv_port: int) -> None:
        known = [*self.nodes.values(), *self.spares.values()]
        self._network = network = Network([node.node_id for node in known], self.rng)
        for source in known:
            for target in known:
                if source is not target:
                    to = ("127.0.0.1", target.port + REPLICATION_PORT_OFFSET)
                    await network.add(source.node_id, target.node_id, to)
            await network.add(source.node_id, NAMESRV, ("127.0.0.1", namesrv_port))
            to = ("127.0.0.1", source.port)
            await network.add(CLIENTS, source.node_id, to, host=source.public_ip, port=source.port)

    async def start_joining(self, node_id: str) -> None:
        """Start a spare with an empty disk, to join those that are there."""
        node = self.spares[node_id]
        node.send_signal(signal.SIGKILL)
        if node.process is not None:
            node.process.wait()
        shutil.rmtree(node.store_root, ignore_errors=True)
        node.peers, node.is_joining = tuple(self.nodes), True
        self.nodes[node_id] = self.spares.pop(node_id)
        await self.restart(node_id)

    def retire(self, node_id: str) -> None:
        """The node is no member of the group any more. If it runs, it goes on."""
        self.spares[node_id] = self.nodes.pop(node_id)

    def start_node(self, node_id: str) -> None:
        """Start a node that is down, on a disk without faults; `wait_answers` says when it is up."""
        node = self.nodes[node_id]
        assert not node.is_running, node_id
        node.fault(DiskFaults())
        config = node.folder / "broker.toml"
        config.write_text(to_toml(self._config(node)), encoding="utf-8")
        argv = ["-m", "tests.chaos.node", "--config", str(config), "--control", str(node.control)]
        argv += [*node.disk.options(), "--seed", str(self.rng.randrange(2**32))]
        node.process = self._spawn(argv, f"{node_id}-{node.starts}")
        node.starts += 1

    def _config(self, node: ChaosNode) -> dict[str, str | int | float | bool]:
        # Who dials the address that a node says of itself must not get round the faults of the network.
        peers = [f"{node.node_id}-{NOWHERE}:{node.port + REPLICATION_PORT_OFFSET}"]
        links = self.network.links
        peers += [f"{other}-127.0.0.1:{links[node.node_id, other].port}" for other in node.peers]
        return {
            "brokerIP1": node.public_ip,
            "bindAddress": "127.0.0.1",
            "listenPort": node.port,
            "namesrvAddr": f"127.0.0.1:{self.network.links[node.node_id, NAMESRV].port}",
            "storePathRootDir": str(node.store_root),
            "dLegerPeers": ";".join(peers),
            "dLegerSelfId": node.node_id,
            "dLegerJoin": node.is_joining,
            "registerNameServerPeriod": 1000,
            "mappedFileSizeCommitLog": DATA_FILE_BYTES,
            "replicationTlsAgeMaxMs": CONNECTION_AGE_MAX_MS,
            **replication_keys(self.folder / CERTIFICATES, node.node_id),
            **self.settings,
        }

    def _spawn(self, argv: list[str], name: str) -> subprocess.Popen[bytes]:
        """The process ends with the test's, however that ends."""
        libc = ctypes.CDLL(None, use_errno=True)
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, *argv],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(libc.prctl, PR_SET_PDEATHSIG, signal.SIGKILL),
            )

    async def stop(self) -> None:
        """End every process: asked first, and killed when that takes too long."""
        nodes = [*self.nodes.values(), *self.spares.values()]
        processes = [*(node.process for node in nodes), self._namesrv_process]
        running = [process for process in processes if process is not None and process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        end_s = time.monotonic() + STOP_LIMIT_S
        while time.monotonic() < end_s and any(process.poll() is None for process in running):
            await asyncio.sleep(POLL_INTERVAL_S)
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait()
        if self._client is not None:
            await self._client.close()
        if self._network is not None:
            await self._network.stop()

    async def kill(self, node_id: str, number: int = signal.SIGKILL) -> None:
        """Send a signal that ends the node, and wait till it has ended."""
        node = self.nodes[node_id]
        node.send_signal(number)
        await self.wait_ended(node_id)

    async def wait_ended(self, node_id: str, limit_s: float = STOP_LIMIT_S) -> int:
        """The exit code of a node that stopped by itself or by a signal."""
        process = self.nodes[node_id].process
        assert process is not None

        async def has_ended() -> bool:
            return process.poll() is not None

        await eventually(f"{node_id} has ended", has_ended, limit_s)
        return process.wait()

    async def restart(self, node_id: str) -> None:
        """Start a node that has ended, and wait till it answers."""
        self.start_node(node_id)
        await self.wait_answers(node_id)

    async def wait_answers(self, node_id: str, limit_s: float = START_LIMIT_S) -> dict[str, Any]:
        async def answer() -> dict[str, Any] | None:
            process = self.nodes[node_id].process
            assert process is not None
            assert process.poll() is None, f"{node_id} ended with {process.poll()}:\n{self.log_end(node_id)}"
            return await self.status(node_id)

        return await eventually(f"{node_id} answers", answer, limit_s)

    def last_log(self, node_id: str) -> str:
        """What a node has said since its last start."""
        log = self.folder / f"{node_id}-{self.nodes[node_id].starts - 1}.log"
        return log.read_text(encoding="utf-8", errors="replace")

    def log_end(self, node_id: str) -> str:
        """The last words of that."""
        return self.last_log(node_id)[-2000:]

    async def ask(
        self, node_id: str, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """An operator's request, past all faults. Raises RemotingError."""
        assert self._client is not None
        request = RemotingCommand(code=code, ext_fields=dict(ext or {}), body=body)
        return await self._client.invoke(self.nodes[node_id].own_address, request, STATUS_LIMIT_S)

    async def status(self, node_id: str) -> dict[str, Any] | None:
        """The node's own status, None while it does not answer."""
        if not self.nodes[node_id].is_running:
            return None
        try:
            answer = await self.ask(node_id, RequestCode.LEDGERMQ_NODE_STATUS)
        except RemotingError:
            return None
        if answer.code != ResponseCode.SUCCESS:
            return None
        status: dict[str, Any] = json.loads(answer.body)
        return status

    async def statuses(self) -> dict[str, dict[str, Any]]:
        """Of every node that answers."""
        found = await asyncio.gather(*(self.status(node_id) for node_id in self.nodes))
        return {name: status for name, status in zip(self.nodes, found, strict=True) if status is not None}

    async def leader(self) -> str | None:
        """The writable node of the highest term: one that is cut off may think it leads, too."""
        statuses = await self.statuses()
        leaders = {status["term"]: name for name, status in statuses.items() if status["isWritable"]}
        return leaders[max(leaders)] if leaders else None

    async def wait_leader(self, limit_s: float = 30.0) -> str:
        return await eventually("a writable leader", self.leader, limit_s)

    async def wait_other_leader(self, than: str, limit_s: float = 30.0) -> str:
        """A writable leader that is another node."""

        async def leader() -> str | None:
            found = await self.leader()
            return found if found != than else None

        return await eventually(f"a writable leader other than {than}", leader, limit_s)

    async def wait_whole(self, limit_s: float = 60.0) -> dict[str, dict[str, Any]]:
        """All nodes follow one leader; all that it holds is committed, and each has applied it."""

        async def equal() -> dict[str, dict[str, Any]] | None:
            statuses = await self.statuses()
            keys = ("term", "leaderId", "endIndex", "committedIndex", "appliedIndex")
            seen = {tuple(status[key] for key in keys) for status in statuses.values()}
            if len(statuses) != len(self.nodes) or len(seen) != 1:
                return None
            _, leader, *indexes = seen.pop()
            return statuses if leader and len(set(indexes)) == 1 else None

        return await eventually("all nodes show one leader and one log", equal, limit_s)

    async def wait_in_touch(self, limit_s: float = 60.0) -> None:
        """The leader knows how far each of its peers is, and none is far behind: the next fault meets a group
        that is whole, though clients are at work.
        """

        async def in_touch() -> bool:
            leader = await self.leader()
            status = await self.status(leader) if leader is not None else None
            peers = [peer for peer in status["peers"] if peer["id"] != leader] if status is not None else []
            return bool(peers) and all(
                peer["pushState"] == "APPEND"
                and peer["lagEntries"] is not None
                and peer["lagEntries"] < NEAR_ENTRIES
                for peer in peers
            )

        await eventually("the leader is in touch with all others", in_touch, limit_s)

    async def wait_healed(self, node_id: str, limit_s: float = 60.0) -> None:
        """The node has its vote back, and the group is whole."""

        async def is_healed() -> bool:
            status = await self.status(node_id)
            return status is not None and not status["impairment"]

        await eventually(f"{node_id} is healed", is_healed, limit_s)
        await self.wait_in_touch(limit_s)

    async def lead(self, node_id: str, limit_s: float = 60.0) -> None:
        """Have leadership handed over till the node has it."""

        async def leads() -> bool:
            if await self.leader() == node_id:
                return True
            await self.transfer(node_id)
            return False

        await eventually(f"{node_id} leads", leads, limit_s, 0.2)

    async def transfer(self, to: str) -> bool:
        """Request a transfer of leadership. False when there is no leader, or when it refuses."""
        leader = await self.leader()
        if leader is None:
            return False
        try:
            answer = await self.ask(leader, RequestCode.LEDGERMQ_TRANSFER_LEADER, {"transferee": to})
        except RemotingError:
            return False
        return bool(answer.code == ResponseCode.SUCCESS)
