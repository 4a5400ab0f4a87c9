"""A real cluster for tests: processes started by `ledgermq up`, in a folder and on ports of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from admin_api.settings import QUERIES_KEY
from ledgermq.local.plan import METRICS_PORT_STEP, is_free, require_plan
from remoting.codes import RequestCode
from tests.integration.client_runs import ROOT
from tests.integration.waiting import wait_for
from tests.integration.wire import WireError, call
from tests.support.children import ending_with_parent

COMMAND = Path(sys.executable).with_name("ledgermq")
READY_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0
NODE_PORT_STEP = 10
REPLICATION_PORT_OFFSET = 3
PORT_OFFSETS = (0, REPLICATION_PORT_OFFSET, 5)
"""Of a node's ports: clients, replication, metrics."""
PORT_TRIES = 200
PORTS_FROM, PORTS_FOR_A_WORKER, WORKERS_MAX = 21_000, 3_000, 3
"""Below the range of outgoing connections. Workers of pytest-xdist look at one moment: each in its part."""
FAMILY_PORTS_MAX = 280
UNBOUNDED = "999999999/999999999"
"""As good as no bound on the expensive queries of one client."""


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """Where a node is, as the READY line told it."""

    node_id: str
    pid: int
    remoting: str
    replication: str
    metrics: str
    group: str = "broker-a"


def free_ports(nodes: int, groups: int = 1) -> tuple[int, int, int]:
    """A name server port, the first of the brokers' ports and an admin port; behind the first a port for a
    second name server, and behind the last one for gRPC and that of its metrics: all free just now.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS_MAX
    begin = PORTS_FROM + worker * PORTS_FOR_A_WORKER
    for attempt in range(PORT_TRIES):
        first = begin + (os.getpid() * 37 + attempt * 101) % (PORTS_FOR_A_WORKER - FAMILY_PORTS_MAX)
        numbers = [10 * group + number for group in range(groups) for number in range(nodes)]
        brokers = [first + NODE_PORT_STEP * (number + 1) for number in numbers]
        family = [
            first,
            first + 1,
            first + 1 + METRICS_PORT_STEP,
            first + 2,
            first + 3,
            *(port + offset for port in brokers for offset in PORT_OFFSETS),
        ]
        if all(map(is_free, family)):
            return first + 2, brokers[0], first
    raise AssertionError(f"no free family of ports in {PORT_TRIES} tries")


class Cluster:
    """One local cluster. `start` waits for READY; `stop` ends every process it knows of."""

    def __init__(self, folder: Path, nodes: int = 3, *, nodes_max: int = 0, groups: int = 1) -> None:
        """`nodes_max`: so many have free ports, if that is more."""
        self.folder = folder
        self.data = folder / "data"
        self.node_count = nodes
        self.group_count = groups
        self.namesrv_port, self.broker_port, self.admin_port = free_ports(max(nodes, nodes_max), groups)
        self.namesrv = f"127.0.0.1:{self.namesrv_port}"
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        self.grpc_port = self.admin_port + 1
        self.grpc = f"127.0.0.1:{self.grpc_port}"
        self.namesrvs: dict[str, int] = {}
        """The process ids of the name servers."""
        self.nodes: dict[str, NodeProcess] = {}
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._restarted: list[subprocess.Popen[bytes]] = []
        self._started: list[psutil.Process] = []
        self._starts = 0

    def start(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        restart: bool = False,
        durability: str = "persisted",
        options: Sequence[str] = (),
        admin: bool = False,
        grpc: bool = False,
    ) -> None:
        """`ledgermq up`, and wait till it says that a message can be written. The admin service and the gRPC
        endpoint take as long to start as a node: only where they are wanted.
        """
        arguments = ["up", "--data", str(self.data), "--nodes", str(self.node_count)]
        arguments += ["--groups", str(self.group_count)]
        arguments.append("--restart" if restart else "--no-restart")
        arguments += ["--namesrv-port", str(self.namesrv_port), "--broker-port", str(self.broker_port)]
        arguments += ["--admin-port", str(self.admin_port if admin else 0)]
        arguments += ["--durability", durability, *options]
        arguments += ["--grpc-port", str(self.grpc_port if grpc else 0)]
        for name, value in (settings or {}).items():
            arguments += ["--set", f"{name}={value}"]
        name = f"up-{self._starts}"
        self._starts += 1
        supervisor = self._supervisor = self._spawn(name, arguments)
        try:
            ready = wait_for("READY", lambda: self._read_ready(supervisor, name), READY_LIMIT_S)
        finally:
            self._started += self._children()
        self.namesrv = ready["namesrv"]
        self.namesrvs = {each["id"]: each["pid"] for each in ready["namesrvs"]}
        self.nodes = {}
        self._take(ready["nodes"])

    def take_added(self) -> None:
        """Note the nodes of groups that `ledgermq replication add` has added."""
        self._started += [each for each in self._children() if each not in self._started]
        for line in self._file(f"up-{self._starts - 1}", "out").read_text(encoding="utf-8").splitlines():
            if line.startswith("ADDED "):
                self._take(json.loads(line.removeprefix("ADDED "))["nodes"])

    def _take(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for node in rows:
            self.nodes[node["id"]] = NodeProcess(
                node["id"], node["pid"], node["remoting"], node["replication"], node["metrics"], node["group"]
            )

    def stop(self) -> None:
        """Ask the supervisor to stop everything; what is still there after the limit is killed."""
        asked = [*self._restarted, *([self._supervisor] if self._supervisor else [])]
        for process in asked:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in asked:
            _end(process)
        for started in self._started:
            with suppress(psutil.NoSuchProcess):
                started.kill()  # checks by its start time that the pid is still that process's
        self._supervisor = None
        self._restarted.clear()
        self._started.clear()

    def kill_all(self) -> None:
        """End every process at once, as a power cut would that leaves the page cache whole."""
        assert self._supervisor is not None
        self._supervisor.kill()
        for started in self._started:
            with suppress(psutil.NoSuchProcess):
                started.kill()
        self._supervisor.wait()
        psutil.wait_procs(self._started, STOP_LIMIT_S)
        self._started.clear()

    def kill(self, node_id: str, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal to a node's own process."""
        os.kill(self.nodes[node_id].pid, signal_number)

    def resume(self, node_id: str) -> None:
        """Let a node go on that a SIGSTOP has paused; nothing happens to one that runs or is dead."""
        with suppress(ProcessLookupError):
            os.kill(self.nodes[node_id].pid, signal.SIGCONT)

    def has_ended(self, node_id: str) -> bool:
        """Whether the node's process is gone, its end taken note of by its parent or not."""
        try:
            return psutil.Process(self.nodes[node_id].pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def restart(self, node_id: str) -> None:
        """Start a dead node again as an operator would: `ledgermq node n1 --data DIR`."""
        name = f"node-{node_id}-{len(self._restarted)}"
        process = self._spawn(name, ["node", node_id, "--data", str(self.data)])
        self._restarted.append(process)

        def answer() -> dict[str, Any] | None:
            self._assert_alive(process, name)
            return self.status(node_id)

        status = wait_for(f"{node_id} answers again", answer, READY_LIMIT_S)
        self._started.append(psutil.Process(status["pid"]))
        self.nodes[node_id] = replace(self.nodes[node_id], pid=status["pid"])

    def start_joined(self, node_id: str) -> None:
        """Start a node that `ledgermq member add --local` or `replace --local` has put into the plan."""
        node = require_plan(self.data).node(node_id)
        self.nodes[node_id] = NodeProcess(
            node_id, 0, node.remoting_address, node.replication_address, node.metrics_url
        )
        self.restart(node_id)

    def _spawn(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        """Start the command line; its output goes to `<name>.out` and `<name>.err`."""
        with self._file(name, "out").open("wb") as out, self._file(name, "err").open("wb") as err:
            return subprocess.Popen(
                ending_with_parent([str(COMMAND), *arguments]),
                cwd=ROOT,
                # This checkout, wherever the command is installed; and tests that share a cluster and an
                # address are not to depend on how much the others ask.
                env=os.environ | {"PYTHONPATH": str(ROOT), QUERIES_KEY: UNBOUNDED},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # a Ctrl-C meant for pytest reaches the cluster by stop() only
            )

    def _file(self, name: str, suffix: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{name}.{suffix}"

    def _read_ready(self, supervisor: subprocess.Popen[bytes], name: str) -> dict[str, Any] | None:
        for line in self._file(name, "out").read_text(encoding="utf-8").splitlines():
            if line.startswith("READY "):
                ready: dict[str, Any] = json.loads(line.removeprefix("READY "))
                return ready
        self._assert_alive(supervisor, name)
        return None

    def _assert_alive(self, process: subprocess.Popen[bytes], name: str) -> None:
        if process.poll() is not None:
            text = "".join(
                self._file(name, suffix).read_text(encoding="utf-8", errors="replace")
                for suffix in ("out", "err")
            )
            raise AssertionError(f"`ledgermq {name}` ended with {process.returncode}:\n{text[-4000:]}")

    def _children(self) -> list[psutil.Process]:
        if self._supervisor is None or self._supervisor.poll() is not None:
            return []
        return psutil.Process(self._supervisor.pid).children(recursive=True)

    def processes(self) -> dict[str, psutil.Process]:
        """What `ledgermq up` runs, by name: nodes, name servers, `admin_api`, and `up` itself."""
        assert self._supervisor is not None
        by_pid = {node.pid: node_id for node_id, node in self.nodes.items()}
        by_pid |= {pid: name for name, pid in self.namesrvs.items()}
        found = {"up": psutil.Process(self._supervisor.pid)}
        for process in self._children():
            found[by_pid.get(process.pid) or _module_of(process)] = process
        return found

    def status(self, node_id: str) -> dict[str, Any] | None:
        """The node's own status (request LEDGERMQ_NODE_STATUS), None while it does not answer."""
        try:
            answer = call(self.nodes[node_id].remoting, RequestCode.LEDGERMQ_NODE_STATUS, limit_s=2.0)
        except (OSError, WireError):
            return None
        status: dict[str, Any] = json.loads(answer.body)
        return status

    def statuses(self) -> dict[str, dict[str, Any]]:
        """The status of every node that answers."""
        found = {node_id: self.status(node_id) for node_id in self.nodes}
        return {node_id: status for node_id, status in found.items() if status is not None}

    def leader(self) -> str | None:
        """The node that says it leads and takes writes, None while there is none."""
        return next((node_id for node_id, status in self.statuses().items() if status["isWritable"]), None)

    def wait_leader(self, limit_s: float = 20.0) -> str:
        return wait_for("a writable leader", self.leader, limit_s)

    def address(self, node_id: str) -> str:
        return self.nodes[node_id].remoting

    def log_text(self) -> str:
        """Everything the processes of this cluster have logged so far."""
        logs = sorted((self.data / "logs").glob("*.log"))
        return "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)


@contextmanager
def admin_service(cluster: Cluster, options: Sequence[str] = ()) -> Iterator[int]:
    """One more admin service for the cluster, bounded as it is by itself; its port. It may not listen yet."""
    port = free_ports(1)[2]
    command = [sys.executable, "-m", "admin_api", "--namesrv", cluster.namesrv, "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([*command, *options], env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield port
        finally:
            process.terminate()
            process.wait(STOP_LIMIT_S)


def _module_of(process: psutil.Process) -> str:
    """The package a process was started from: `python -m namesrv …` is `namesrv`."""
    command = process.cmdline()
    return command[command.index("-m") + 1].split(".")[0] if "-m" in command else process.name()


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
