"""A side of a comparison: nodes on this machine that can be started, loaded, measured and stopped."""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from bench.processes import Processes, free_base
from bench.results_file import ROOT, versions
from ledgermq.load.cluster import LoadCluster, ask
from ledgermq.local.plan import numbers_of

START_LIMIT_S = 120.0
FIRST_ACKNOWLEDGED = 50
"""A start is complete when this many sends, one after the other, were acknowledged."""
NODE_IDS = ("n0", "n1", "n2")


class Side(ABC):
    """`durability`: where an acknowledged message is; it is printed next to every figure."""

    name: str
    title: str
    durability: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes = Processes(folder / "run")

    @property
    @abstractmethod
    def version(self) -> str: ...

    @property
    @abstractmethod
    def namesrv(self) -> str:
        """The address that clients connect to."""

    @abstractmethod
    def launch(self) -> float:
        """Start everything; when the time until it is writable began (s of `monotonic`)."""

    @abstractmethod
    def wait_writable(self) -> None: ...

    @abstractmethod
    def nodes(self) -> dict[str, psutil.Process]:
        """The processes that hold messages."""

    def start(self) -> float:
        """Start and wait; seconds until it was writable."""
        began_s = self.launch()
        self.wait_writable()
        return time.monotonic() - began_s

    def stop(self) -> None:
        self.processes.stop()


class RemotingSide(Side):
    """A side that speaks the RocketMQ protocol."""

    def wait_writable(self) -> None:
        async def send_first(cluster: LoadCluster) -> None:
            acknowledged = 0
            end_s = time.monotonic() + START_LIMIT_S
            while acknowledged < FIRST_ACKNOWLEDGED:
                acknowledged += await cluster.send("BenchFirst")
                self.processes.require_alive()
                if time.monotonic() > end_s:
                    raise SystemExit(f"{self.title} took no message within {START_LIMIT_S:g} s.")

        ask(self.namesrv, send_first)

    def leader(self) -> str:
        """Which of `nodes` takes the messages, as the name server has it."""
        address = ask(self.namesrv, lambda cluster: cluster.leader())
        if address is None:
            raise SystemExit(f"{self.title} has no leader.")
        return self.node_at(int(address.rpartition(":")[2]))

    @abstractmethod
    def node_at(self, port: int) -> str:
        """Which node serves clients there."""


class LedgerMQ(RemotingSide):
    """Three nodes as `ledgermq up` starts them, but without certificates, which no rival has."""

    name = "ledgermq"
    title = "LedgerMQ, 3 nodes"
    _tls: tuple[str, ...] = ("--no-replication-tls",)

    def __init__(
        self,
        folder: Path,
        durability: str = "persisted",
        nodes: int = 3,
        settings: tuple[str, ...] = (),
        groups: int = 1,
    ) -> None:
        super().__init__(folder)
        self._mode = durability
        self._node_count = nodes
        self._settings = settings
        self._group_count = groups
        self._ready: dict[str, Any] = {}
        numbers = [number for group in range(groups) for number in numbers_of(group)[:nodes]]
        offsets = [0, 1, *(10 * (number + 1) + offset for number in numbers for offset in (0, 3, 5))]
        self._base = free_base(offsets)
        where = "on the disks (fdatasync)" if durability == "persisted" else "in the memory"
        self.durability = f"{where} of a majority of {nodes}"

    @property
    def version(self) -> str:
        found = versions()
        build = f"compiled modules {found['compiled']}"
        return f"LedgerMQ {found['ledgermq']} ({found['commit']}), Python {found['python']}, {build}"

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self._base}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def launch(self) -> float:
        ports = ("--namesrv-port", str(self._base), "--admin-port", str(self._base + 1), "--grpc-port", "0")
        command = [*_PROGRAM, "up", "--data", str(self.data), "--nodes", str(self._node_count), *ports]
        command += ["--broker-port", str(self._base + 10), "--durability", self._mode, "--no-restart"]
        command += ["--groups", str(self._group_count)]
        command += self._tls
        for setting in self._settings:
            command += ["--set", setting]
        self._ready = {}
        began_s = time.monotonic()
        self.processes.spawn("up", command, {"PYTHONPATH": str(ROOT)})
        return began_s

    def start_node(self, node_id: str) -> None:
        """Start a killed node again, as a person would."""
        command = [*_PROGRAM, "node", node_id, "--data", str(self.data)]
        process = self.processes.spawn(f"{node_id}-again", command, {"PYTHONPATH": str(ROOT)})
        node = next(node for node in self.ready["nodes"] if node["id"] == node_id)
        node["pid"] = process.pid

    @property
    def ready(self) -> dict[str, Any]:
        """The READY line of `ledgermq up`."""
        end_s = time.monotonic() + START_LIMIT_S
        while not self._ready:
            for line in self.processes.log("up").read_text(encoding="utf-8").splitlines():
                if line.startswith("READY "):
                    self._ready = json.loads(line.removeprefix("READY "))
            if time.monotonic() > end_s:
                raise SystemExit(f"`ledgermq up` does not get READY:\n{self.processes.tail('up')}")
            time.sleep(0.02)
        return self._ready

    def nodes(self) -> dict[str, psutil.Process]:
        """The processes of the nodes that run."""
        running = (node for node in self.ready["nodes"] if psutil.pid_exists(node["pid"]))
        return {node["id"]: psutil.Process(node["pid"]) for node in running}

    def node_at(self, port: int) -> str:
        nodes = {node["remoting"].rpartition(":")[2]: node["id"] for node in self.ready["nodes"]}
        return str(nodes[str(port)])

    def address(self, node_id: str) -> str:
        return next(str(node["remoting"]) for node in self.ready["nodes"] if node["id"] == node_id)


_PROGRAM = (sys.executable, "-P", "-c", "from ledgermq.cli import main; main()")


class LedgerMQWithTls(LedgerMQ):
    """As `ledgermq up` starts them: nodes authenticate each other by certificates."""

    name = "ledgermq-tls"
    title = "LedgerMQ, 3 nodes, replication over TLS"
    _tls: tuple[str, ...] = ("--replication-tls",)


class LedgerMQWithTlsForAll(LedgerMQWithTls):
    """As `ledgermq up --tls enforcing` starts them: also clients speak TLS, those of this process as well."""

    name = "ledgermq-all-tls"
    title = "LedgerMQ, 3 nodes, TLS for clients and replication"
    _tls = ("--replication-tls", "--tls", "enforcing")
    _variables: Mapping[str, str] = {}

    def launch(self) -> float:
        began_s = super().launch()
        self._variables = {
            "LEDGERMQ_TLS": "true",
            "LEDGERMQ_TLS_AUTHORITIES": str(self.data / "certificates" / "ca.pem"),
        }
        assert self.ready
        os.environ.update(self._variables)
        return began_s

    def stop(self) -> None:
        for name in self._variables:
            os.environ.pop(name, None)
        super().stop()
