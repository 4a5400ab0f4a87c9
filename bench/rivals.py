"""The rivals, as bench/get_rivals.sh fetches them: RocketMQ in Java with its proxy, and NATS JetStream."""

from __future__ import annotations

import json
import os
import string
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from bench.processes import Processes, free_base
from bench.results_file import ROOT
from bench.sides import NODE_IDS, START_LIMIT_S, RemotingSide, Side
from sockets.dialled import dial

ROCKETMQ_VERSION = "5.5.0"
HEAP = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseG1GC")
PROXY_HEAP = HEAP[1:]
"""The heap may grow as large, but is not made so at the start: the proxy's memory is a figure of its own."""
NODE_PORT_STEP = 10
_FAST_PORT, _HA_PORT, _REPLICATION_PORT = -2, 1, 4
"""Where a broker listens besides its port."""


def rivals_folder() -> Path:
    """Where the rivals are. Raises: SystemExit when they are not."""
    folder = Path(os.environ.get("LEDGERMQ_RIVALS") or ROOT / ".cache/rivals").resolve()
    if not (folder / "classes/Load.class").exists():
        raise SystemExit(f"There are no rivals in {folder}: run bench/get_rivals.sh once.")
    return folder


def class_path(libraries: str = "lib") -> str:
    """The programs of bench/java, and the jars of one folder of bench/get_rivals.sh."""
    folder = rivals_folder()
    if not (folder / libraries).is_dir():
        raise SystemExit(f"There is no {folder / libraries}: run bench/get_rivals.sh again.")
    return f"{folder}/classes:{folder}/{libraries}/*"


def wait_listening(port: int, processes: Processes) -> None:
    """Raises: SystemExit when one of them ended, or nothing listens within `START_LIMIT_S`."""
    end_s = time.monotonic() + START_LIMIT_S
    while True:
        try:
            dial(("127.0.0.1", port), 1).close()
        except OSError:
            processes.require_alive()
            if time.monotonic() > end_s:
                raise SystemExit(f"Nothing listens on port {port}.") from None
            time.sleep(0.05)
        else:
            return


def _properties(path: Path, values: dict[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()), encoding="utf-8")
    return path


class JavaSide(RemotingSide):
    """RocketMQ's own brokers and name server; the name server runs before the start time is measured."""

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        super().__init__(folder)
        ports = [NODE_PORT_STEP * (number + 1) for number in range(len(nodes))]
        offsets = (0, _FAST_PORT, _HA_PORT, _REPLICATION_PORT)
        self._namesrv_port = free_base([0, *(port + offset for port in ports for offset in offsets)])
        self.ports = {node: self._namesrv_port + port for node, port in zip(nodes, ports, strict=True)}
        self._pids: dict[str, int] = {}

    @property
    def version(self) -> str:
        line = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
        return f"RocketMQ {ROCKETMQ_VERSION}, {line.splitlines()[0]}"

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self._namesrv_port}"

    def launch(self) -> float:
        config = _properties(self.folder / "namesrv.conf", {"listenPort": self._namesrv_port})
        self._java("namesrv", ("-Xmx256m",), "org.apache.rocketmq.namesrv.NamesrvStartup", config)
        wait_listening(self._namesrv_port, self.processes)
        began_s = time.monotonic()
        for node in self.ports:
            self.start_node(node)
        return began_s

    def start_node(self, node: str) -> None:
        config = _properties(self.folder / f"{node}.conf", self._config(node))
        main = "org.apache.rocketmq.broker.BrokerStartup"
        self._pids[node] = self._java(node, ("-server", *HEAP), main, config)

    def _java(self, name: str, options: tuple[str, ...], main: str, config: Path) -> int:
        (self.folder / "home/conf").mkdir(parents=True, exist_ok=True)
        command = [
            "java",
            *options,
            f"-Duser.home={self.folder}",
            "-cp",
            class_path(),
            main,
            "-c",
            str(config),
        ]
        return self.processes.spawn(name, command, {"ROCKETMQ_HOME": str(self.folder / "home")}).pid

    def _config(self, node: str) -> dict[str, object]:
        """The broker's settings besides its defaults."""
        store = self.folder / "store" / node
        return {
            "namesrvAddr": self.namesrv,
            "brokerIP1": "127.0.0.1",
            "listenPort": self.ports[node],
            "brokerName": "bench",
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
        }

    def nodes(self) -> dict[str, psutil.Process]:
        return {node: psutil.Process(pid) for node, pid in self._pids.items()}

    def node_at(self, port: int) -> str:
        return next(node for node, own in self.ports.items() if own == port)


class JavaDLedger(JavaSide):
    """Three brokers of one DLedger group."""

    name = "java-dledger"
    title = "RocketMQ (Java), DLedger, 3 nodes"
    durability = "in the page cache of a majority of 3 (written to disk every 10 ms)"

    def __init__(self, folder: Path, groups: int = 1) -> None:
        """The nodes of further groups are `b-n0`, `b-n1`, …"""
        further = (f"{letter}-{node}" for letter in string.ascii_lowercase[1:groups] for node in NODE_IDS)
        super().__init__(folder, (*NODE_IDS, *further))

    def _config(self, node: str) -> dict[str, object]:
        letter, _, own_id = node.rpartition("-")
        group = f"bench-{letter}" if letter else "bench"
        ports = {peer: self.ports[f"{letter}-{peer}" if letter else peer] for peer in NODE_IDS}
        peers = ";".join(f"{peer}-127.0.0.1:{port + _REPLICATION_PORT}" for peer, port in ports.items())
        return {
            **super()._config(node),
            "brokerName": group,
            "enableDLegerCommitLog": "true",
            "enableBatchPush": "true",
            "dLegerGroup": group,
            "dLegerPeers": peers,
            "dLegerSelfId": own_id,
            "sendMessageThreadPoolNums": 4,
        }


class JavaSingle(JavaSide):
    """One broker without replicas, with its default settings: asynchronous flush."""

    name = "java-single"
    title = "RocketMQ (Java), 1 broker"
    durability = "in the page cache of the only broker (asynchronous flush, no replica)"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, NODE_IDS[:1])

    def _config(self, node: str) -> dict[str, object]:
        return {**super()._config(node), "brokerId": 0}


def start_proxy(side: RemotingSide, port: int, remoting_port: int) -> psutil.Process:
    """RocketMQ's proxy in cluster mode before the side's nodes, once it listens for gRPC clients on `port`.

    `side.stop()` ends it. It listens on all addresses: it has no setting for that.
    """
    config = side.folder / "proxy.json"
    values: dict[str, object] = {
        "rocketMQClusterName": "DefaultCluster",
        "proxyMode": "CLUSTER",
        "namesrvAddr": side.namesrv,
    }
    values |= {"localServeAddr": "127.0.0.1", "grpcServerPort": port, "remotingListenPort": remoting_port}
    config.write_text(json.dumps(values), encoding="utf-8")
    command = ["java", "-server", *PROXY_HEAP, f"-Duser.home={side.folder}", "-cp", class_path("lib-proxy")]
    command += ["org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(config), "-n", side.namesrv]
    home = str(side.folder / "home")
    process = side.processes.spawn(
        "proxy", [*command, "-pm", "CLUSTER"], {"ROCKETMQ_HOME": home, "RMQ_PROXY_HOME": home}
    )
    wait_listening(port, side.processes)
    return psutil.Process(process.pid)


class Nats(Side):
    """Three servers; the load program makes streams of three replicas."""

    name = "nats"
    title = "NATS JetStream R3"
    durability = "on the disks of a majority of 3 (sync_interval: always)"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        base = free_base(range(6))
        self._ports = {node: base + number for number, node in enumerate(NODE_IDS)}
        self._routes = {node: base + 3 + number for number, node in enumerate(NODE_IDS)}
        self._pids: dict[str, int] = {}

    @property
    def version(self) -> str:
        command = [str(rivals_folder() / "nats-server"), "--version"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    @property
    def namesrv(self) -> str:
        return ",".join(f"nats://127.0.0.1:{port}" for port in self._ports.values())

    def launch(self) -> float:
        began_s = time.monotonic()
        for node in NODE_IDS:
            config = self.folder / f"{node}.conf"
            config.parent.mkdir(parents=True, exist_ok=True)
            config.write_text(self._config(node), encoding="utf-8")
            command = [str(rivals_folder() / "nats-server"), "-c", str(config)]
            self._pids[node] = self.processes.spawn(node, command).pid
        return began_s

    def _config(self, node: str) -> str:
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in self._routes.values())
        return (
            f"server_name: {node}\nlisten: 127.0.0.1:{self._ports[node]}\n"
            f'jetstream {{ store_dir: "{self.folder / "store" / node}", sync_interval: always, '
            "max_memory_store: 1GB, max_file_store: 100GB }\n"
            f"cluster {{ name: bench, listen: 127.0.0.1:{self._routes[node]}, routes: [{routes}] }}\n"
        )

    def wait_writable(self) -> None:
        """Wait until a short load was successful: the program retries until there is a stream."""
        for port in self._ports.values():
            wait_listening(port, self.processes)
        command = [str(rivals_folder() / "nats-load"), "-servers", self.namesrv, "-stream", "FIRST"]
        command += ["-threads", "1", "-seconds", "0.1", "-warmup", "0"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=START_LIMIT_S, check=False)
        if result.returncode:
            self.processes.require_alive()
            raise SystemExit(f"{self.title} takes no messages: {result.stderr}")

    def nodes(self) -> dict[str, psutil.Process]:
        return {node: psutil.Process(pid) for node, pid in self._pids.items()}
