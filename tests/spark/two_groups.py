"""A name server and two brokers, each of one node: started, ended and started again one by one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from remoting.errors import RemotingError
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.errors import RocketmqSparkError
from tests.integration.client_runs import ROOT
from tests.integration.cluster import NODE_PORT_STEP, REPLICATION_PORT_OFFSET, free_ports
from tests.integration.waiting import wait_for
from tests.support.children import ending_with_parent

NAMES = ("broker-a", "broker-b")
READY_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0


class TwoGroups:
    """`namesrv` is its address. Every process is ended by its own pid."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._namesrv_port, first, _ = free_ports(len(NAMES))
        self._ports = {name: first + number * NODE_PORT_STEP for number, name in enumerate(NAMES)}
        self.namesrv = f"127.0.0.1:{self._namesrv_port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self.start_namesrv()
        for name in NAMES:
            self._spawn_broker(name)
        for name in NAMES:
            self.wait_listed(name)

    def start_namesrv(self) -> None:
        self._spawn("namesrv", ["namesrv", "--host", "127.0.0.1", "--port", str(self._namesrv_port)])

    def start_broker(self, name: str) -> None:
        self._spawn_broker(name)
        self.wait_listed(name)

    def end(self, name: str) -> None:
        """End the name server, or a broker, which leaves the name server's tables at once."""
        process = self._processes.pop(name)
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self, name: str) -> None:
        """As a machine that loses its power: the name server lists the broker for a while."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for name in reversed(tuple(self._processes)):
            self.end(name)

    def wait_listed(self, name: str, is_wanted: bool = True) -> None:
        """Wait until the name server knows a leader of the broker, or does not know the broker."""

        def is_so() -> bool:
            assert all(process.poll() is None for process in self._processes.values()), self._log_text()
            try:
                with Cluster(self.namesrv, timeout_s=2.0, deadline_s=0.1) as cluster:
                    broker = cluster.cluster_info().brokers.get(name)
            except (RocketmqSparkError, RemotingError):
                return False
            return broker is None if not is_wanted else broker is not None and broker.master_addr is not None

        wait_for(f"{name} is {'known' if is_wanted else 'gone'}", is_so, READY_LIMIT_S)

    def _spawn_broker(self, name: str) -> None:
        port = self._ports[name]
        settings = {
            "brokerName": name,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "listenPort": port,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": self.folder / name,
            "enableDLegerCommitLog": "true",
            "dLegerPeers": f"n0-127.0.0.1:{port + REPLICATION_PORT_OFFSET}",
            "dLegerSelfId": "n0",
        }
        arguments = [f"--set={key}={value}" for key, value in settings.items()]
        self._spawn(name, ["broker", *arguments])

    def _spawn(self, name: str, arguments: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ending_with_parent([sys.executable, "-P", "-m", *arguments]),
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _log_text(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)[-4000:]
