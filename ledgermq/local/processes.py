"""The processes of a local cluster: the command line of each, in the order of their start, and the commands
that replace this process by one of them (`ledgermq node`, `ledgermq admin`, `ledgermq grpc`).
"""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ledgermq.errors import UserError
from ledgermq.local.node_files import KnownBroker, namesrv_tls_options
from ledgermq.local.plan import (
    GROUPS_MAX,
    HOST,
    NAME_SERVER,
    ClusterPlan,
    NamesrvPlan,
    NodePlan,
    node_name,
    numbers_of,
    require_plan,
)
from ledgermq.local.supervisor import Command, Exit, Supervisor, describe_exit
from ledgermq.output import remark
from sockets.listening import PortInUseError, bound

NAMESRV_STAGE = 0
NODE_STAGE = 1
ADMIN_STAGE = 2
GRPC_STAGE = 2
ADMIN_NICE = 10
"""The admin process must not slow down the brokers beside it."""
STARTING_S = 10.0
"""A gRPC worker that cannot start within this time of the first one ends them all."""
CANNOT_START = 1
"""Exit code of `grpc_endpoint`."""
_AGAIN = "stop and start `ledgermq up`; the nodes go on meanwhile"

PYTHON_MODULE = (sys.executable, "-P", "-m")
"""-P: Python must not import a folder in the working directory that has the name of one of our packages."""


def node_argv(config_file: Path) -> tuple[str, ...]:
    return (*PYTHON_MODULE, "broker", "--config", str(config_file))


def namesrv_argv(host: str, port: int, home: Path) -> tuple[str, ...]:
    """Without options of TLS."""
    options = ("--host", host, "--port", str(port), "--kv-config", str(home / "kvConfig.json"))
    return (*PYTHON_MODULE, "namesrv", *options)


def node_hint(node: NodePlan, data_dir: Path) -> str:
    """The command with which the user starts the node again."""
    return f"ledgermq node {node.id} --data {shlex.quote(str(data_dir))}"


def _log_options(plan: ClusterPlan) -> tuple[str, ...]:
    """The log format as an option; brokers read this key from their own file."""
    line_format = plan.settings.get("logFormat")
    return () if line_format is None else ("--log-format", str(line_format))


def namesrv_command(plan: ClusterPlan, namesrv: NamesrvPlan) -> Command:
    argv = (
        *namesrv_argv(HOST, namesrv.port, namesrv.home),
        *(_namesrv_tls_options(plan) if plan.has_known_brokers else ()),
        *_log_options(plan),
    )
    return Command(namesrv.name, argv, plan.logs_dir / f"{namesrv.name}.log", NAMESRV_STAGE, _AGAIN)


def _namesrv_tls_options(plan: ClusterPlan) -> tuple[str, ...]:
    """Clients need no certificate, and without `--tls` no TLS either."""
    mode = plan.client_tls_mode if plan.has_client_tls else "permissive"
    # Also those that may be added while it runs: only this cluster's authority makes their certificates.
    brokers = [
        KnownBroker(*plan.names_of(group), map(node_name, numbers_of(group))) for group in range(GROUPS_MAX)
    ]
    return namesrv_tls_options(plan.certificates_dir, NAME_SERVER, brokers, mode)


def node_command(plan: ClusterPlan, node: NodePlan) -> Command:
    log = plan.logs_dir / f"{node.id}.log"
    return Command(node.id, node_argv(node.config_file), log, NODE_STAGE, node_hint(node, plan.data_dir))


def admin_command(plan: ClusterPlan) -> Command:
    argv = (
        *PYTHON_MODULE,
        *("admin_api", "--namesrv", plan.namesrv_address),
        *("--host", HOST, "--port", str(plan.admin_port), "--nice", str(ADMIN_NICE)),
        *_admin_tls_options(plan),
        *_log_options(plan),
        *("--audit", str(plan.data_dir / "admin" / "audit.jsonl")),
    )
    return Command("admin", argv, plan.logs_dir / "admin.log", ADMIN_STAGE, _AGAIN)


def _admin_tls_options(plan: ClusterPlan) -> tuple[str, ...]:
    return ("--broker-tls-ca", str(plan.certificates_dir / "ca.pem")) if plan.has_client_tls else ()


def grpc_command(plan: ClusterPlan) -> Command:
    """The endpoint of gRPC clients; its certificate is the cluster's own where clients' TLS is on."""
    argv = (
        *PYTHON_MODULE,
        *("grpc_endpoint", "--namesrv", plan.namesrv_address),
        *("--host", HOST, "--port", str(plan.grpc_port)),
        *("--metrics-port", str(plan.grpc_metrics_port)),
        *_grpc_tls_options(plan),
        *_log_options(plan),
    )
    return Command("grpc", argv, plan.logs_dir / "grpc.log", GRPC_STAGE, _AGAIN)


def _grpc_tls_options(plan: ClusterPlan) -> tuple[str, ...]:
    if not plan.has_client_tls:
        return ()
    folder = plan.certificates_dir
    return (
        *("--tls-mode", plan.client_tls_mode),
        *("--tls-cert", str(folder / f"{NAME_SERVER}.pem")),
        *("--tls-key", str(folder / f"{NAME_SERVER}.key")),
        *("--broker-tls-ca", str(folder / "ca.pem")),
    )


def run_node(node_id: str, data_dir: Path) -> None:
    """Replace this process by the node's, in the foreground; does not return.

    Raises: UserError when there is no such node or it runs already.
    """
    plan = require_plan(data_dir.absolute())
    wanted = plan.node(node_id)
    for port in (wanted.remoting_port, wanted.replication_port, wanted.metrics_port):
        _require_free(node_id, HOST, port)
    argv = node_argv(wanted.config_file)
    os.execv(argv[0], argv)


def _require_free(name: str, host: str, port: int) -> None:
    try:
        bound(host, port).close()
    except PortInUseError as error:
        what = "seems to run already" if error.is_listening else "cannot start"
        raise UserError(f"{name} {what}: its {error}.") from error


@dataclass(frozen=True, slots=True)
class AdminOptions:
    """As `python -m admin_api` has them."""

    namesrv: str
    host: str
    port: int
    tokens: Path | None = None
    audit: Path | None = None
    allowed_hosts: Sequence[str] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    nice: int = 0
    broker_tls: bool = False
    broker_tls_ca: Path | None = None
    broker_tls_cert: Path | None = None
    broker_tls_key: Path | None = None
    broker_tls_any_host: bool = False

    def argv(self) -> list[str]:
        files = {
            "--tokens": self.tokens,
            "--audit": self.audit,
            "--tls-cert": self.tls_cert,
            "--tls-key": self.tls_key,
            "--broker-tls-ca": self.broker_tls_ca,
            "--broker-tls-cert": self.broker_tls_cert,
            "--broker-tls-key": self.broker_tls_key,
        }
        switches = {"--broker-tls": self.broker_tls, "--broker-tls-any-host": self.broker_tls_any_host}
        return [
            *(*PYTHON_MODULE, "admin_api", "--namesrv", self.namesrv),
            *("--host", self.host, "--port", str(self.port), "--nice", str(self.nice)),
            *(part for option, path in files.items() if path is not None for part in (option, str(path))),
            *(option for option, is_on in switches.items() if is_on),
            *(part for name in self.allowed_hosts for part in ("--allowed-host", name)),
        ]


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """As `python -m grpc_endpoint` has them."""

    namesrv: str
    host: str
    port: int
    tls_mode: str
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    broker_tls_ca: Path | None = None
    numbers: Mapping[str, int | None] = field(default_factory=dict)
    """Further options; None: not given."""
    metrics_address: str = HOST
    workers: int = 1

    def argv(self, worker: int = 0) -> list[str]:
        """Of one worker, from 0: each has a port of its own for metrics."""
        numbers = dict(self.numbers)
        if metrics_port := numbers.get("--metrics-port"):
            numbers["--metrics-port"] = metrics_port + worker
        files = {
            "--tls-cert": self.tls_cert,
            "--tls-key": self.tls_key,
            "--tls-ca": self.tls_ca,
            "--broker-tls-ca": self.broker_tls_ca,
        }
        return [
            *(*PYTHON_MODULE, "grpc_endpoint", "--namesrv", self.namesrv),
            *("--host", self.host, "--port", str(self.port), "--tls-mode", self.tls_mode),
            *("--metrics-address", self.metrics_address),
            *(("--shared-port",) if self.workers > 1 else ()),
            *(
                part
                for option, value in {**files, **numbers}.items()
                if value is not None
                for part in (option, str(value))
            ),
        ]


def run_grpc(options: GrpcOptions) -> None:
    """The endpoint for gRPC clients, in the foreground: replaces this process, or with several workers
    supervises them until SIGTERM or SIGINT.

    Raises: UserError when the port is in use, or a worker cannot start.
    """
    if options.workers > 1:
        asyncio.run(_run_workers(options))
        return
    argv = options.argv()
    os.execv(argv[0], argv)


async def _run_workers(options: GrpcOptions) -> None:
    """One that ends is started again, unless it said that it cannot start at all."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    began_s, refused = loop.time(), list[Exit]()

    def report(worker: Exit) -> None:
        remark(f"{worker.command.name} (pid {worker.pid}) {describe_exit(worker.returncode)}.")
        if worker.returncode == CANNOT_START and loop.time() - began_s < STARTING_S:
            refused.append(worker)
            ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    # Workers would share the port with any program of this user that allows it.
    _require_free("the endpoint", options.host, options.port)
    supervisor = Supervisor(report, restart=True)
    try:
        for worker in range(options.workers):
            await supervisor.start(Command(f"gRPC worker {worker}", tuple(options.argv(worker)), log=None))
        await ended.wait()
    finally:
        await supervisor.stop()
    if refused:
        raise UserError("the endpoint cannot start; its words stand above.")


def run_admin(options: AdminOptions) -> None:
    """Replace this process by the admin process, in the foreground; does not return."""
    argv = options.argv()
    os.execv(argv[0], argv)
