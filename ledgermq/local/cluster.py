"""A local cluster in the foreground (`ledgermq up`): start, wait until it is writable, watch, stop."""

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from admin_api.cluster.schemas import ClusterView, GroupState
from admin_api.services import open_services
from admin_api.settings import Settings
from ledgermq.errors import UserError
from ledgermq.local.foreground import PROBE_INTERVAL_S, Foreground, forget_tls_of_others, locked
from ledgermq.local.node_files import read_settings, write_node_files
from ledgermq.local.plan import (
    HOST,
    NAME_SERVER,
    ClusterPlan,
    NodePlan,
    load_plan,
    merge_plan,
    require_free,
    require_plan,
)
from ledgermq.local.processes import admin_command, grpc_command, namesrv_command, node_command
from ledgermq.members import MemberFiles
from remoting.client.tls import AUTHORITIES_VARIABLE, ClientTls

_STILL_WAITING_S = 10.0
_PLAN_INTERVAL_S = 0.5
"""How often the plan's file is looked at for other groups."""


class LocalCluster:
    """The processes of one plan. `say` prints a line for the user."""

    def __init__(self, plan: ClusterPlan, *, restart: bool, say: Callable[[str], None]) -> None:
        self.plan = plan
        self._say = say
        self._processes = Foreground(say, restart=restart)

    @property
    def pids(self) -> dict[str, int]:
        return self._processes.pids

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Start everything, call `on_ready` once a message can be written, return after a signal to stop.

        Recovery of a long log may need minutes: there is no time limit, but a report every 10 s.

        Raises: UserError when too few nodes are left to write a message; these are stopped too.
        """
        await self._processes.run(self._start_and_wait, on_ready, self._follow_plan)

    async def _start_and_wait(self) -> None:
        for namesrv in self.plan.namesrvs:
            await self._processes.start(namesrv_command(self.plan, namesrv))
        for namesrv in self.plan.namesrvs:
            await self._wait_for_port(namesrv.name, namesrv.port)
        for node in self.plan.nodes:
            await self._processes.start(node_command(self.plan, node))
        if self.plan.admin_port:
            await self._processes.start(admin_command(self.plan))
        if self.plan.grpc_port:
            await self._processes.start(grpc_command(self.plan))
        await self._wait_until_writable()
        if self.plan.admin_port:
            await self._wait_for_port("admin", self.plan.admin_port)
        if self.plan.grpc_port:
            await self._wait_for_port("grpc", self.plan.grpc_port)

    async def _follow_plan(self) -> None:
        """`ledgermq replication add` and `remove` change the groups of the plan while it runs. Where the plan
        cannot be read, or a process of it not be started, the cluster goes on.
        """
        seen_ns = self.plan.changed_ns
        while True:
            await asyncio.sleep(_PLAN_INTERVAL_S)
            if self.plan.changed_ns == seen_ns:
                continue
            seen_ns = self.plan.changed_ns
            try:
                await self._become(require_plan(self.plan.data_dir))
            except (UserError, OSError) as error:
                self._say(f"The changed plan is not followed: {error}")

    async def _become(self, plan: ClusterPlan) -> None:
        """Start the groups that this plan has and the one before did not, and stop those that it lacks."""
        before, self.plan = self.plan, plan
        for group in before.groups:
            if group.number not in plan.group_numbers:
                await asyncio.gather(*(self._stop_node(node) for node in group.nodes))
                print(f"REMOVED {json.dumps({'group': group.name})}", flush=True)
                self._say(f"The group {group.name} is stopped; its messages stay in {plan.data_dir}.")
        for group in plan.groups:
            if group.number not in before.group_numbers:
                for node in group.nodes:
                    await self._processes.start(node_command(plan, node))
                rows = [_node_row(plan, node, self.pids) for node in group.nodes]
                print(f"ADDED {json.dumps({'group': group.name, 'nodes': rows})}", flush=True)
                self._say(f"The group {group.name} is started: {', '.join(node.id for node in group.nodes)}.")

    async def _stop_node(self, node: NodePlan) -> None:
        if await self._processes.stop_one(node.id):
            self._say(f"{node.id} did not stop in time and was killed.")

    async def _wait_for_port(self, name: str, port: int) -> None:
        """Raises: UserError when the process ended instead of listening."""

        def must_go_on() -> None:
            if not self._processes.is_running(name):
                raise UserError(f"{name} did not start; its log is in {self.plan.logs_dir}.")

        await self._processes.wait_until_listening(HOST, port, must_go_on)

    async def _wait_until_writable(self) -> None:
        """Wait until a leader accepts messages and the name server directs producers to it.

        Raises: UserError when too few nodes are left for a majority.
        """
        loop = asyncio.get_running_loop()
        report_at_s = loop.time() + _STILL_WAITING_S
        async with open_services(self._settings()) as services:
            while not is_writable(view := await services.reader.read(), len(self.plan.groups)):
                self._require_majority()
                if loop.time() > report_at_s:
                    report_at_s += _STILL_WAITING_S
                    self._say(f"Still waiting for a leader: {describe_nodes(view)}.")
                await asyncio.sleep(PROBE_INTERVAL_S)

    def _settings(self) -> Settings:
        tls = ClientTls(self.plan.certificates_dir / "ca.pem") if self.plan.has_client_tls else None
        return Settings(namesrv=self.plan.namesrv_address, tls=tls)

    def _require_majority(self) -> None:
        for group in self.plan.groups:
            running = sum(self._processes.is_running(node.id) for node in group.nodes)
            if running <= len(group.nodes) // 2:
                raise UserError(
                    f"only {running} of {len(group.nodes)} nodes of {group.name} run, that is no majority; "
                    f"their logs are in {self.plan.logs_dir}."
                )


def is_writable(view: ClusterView, group_count: int) -> bool:
    """Whether so many groups' leaders accept messages and are registered as brokerId 0 at a name server."""
    return len(view.groups) >= group_count and all(
        group.state is GroupState.WRITABLE
        and any(node.id == group.leader_id and node.broker_id == 0 for node in group.nodes)
        for group in view.groups
    )


def describe_nodes(view: ClusterView) -> str:
    """`n0 follower, n1 down`; or a text that says that no broker has registered."""
    nodes = [node for group in view.groups for node in group.nodes]
    words = [f"{node.id or node.remoting_address} {(node.role or node.state).lower()}" for node in nodes]
    return ", ".join(words) or "no broker has registered yet"


def up(
    data_dir: Path,
    *,
    nodes: int | None,
    groups: int | None,
    namesrvs: int | None,
    namesrv_port: int | None,
    broker_port: int | None,
    admin_port: int | None,
    grpc_port: int | None,
    durability: str | None,
    tls: str | None,
    restart: bool,
    config: Path | None,
    overrides: Sequence[str],
    has_replication_tls: bool | None,
) -> None:
    """Create the cluster in the folder, or continue the one there, and run it until a signal.

    Raises: UserError.
    """
    os.umask(0o077)  # other users of the machine must not read messages and logs; child processes inherit it
    data_dir = data_dir.absolute()
    settings = read_settings(config, overrides)
    if durability is not None:
        settings["durability"] = durability
    if tls is not None:
        settings["tlsMode"] = tls
    with locked(data_dir):
        plan = merge_plan(
            load_plan(data_dir),
            data_dir,
            nodes=nodes,
            groups=groups,
            namesrvs=namesrvs,
            namesrv_port=namesrv_port,
            broker_port=broker_port,
            admin_port=admin_port,
            grpc_port=grpc_port,
            settings=settings,
            has_replication_tls=has_replication_tls,
        )
        require_free(plan.ports())
        write_files(plan)
        forget_tls_of_others()
        asyncio.run(_run(plan, restart))


def write_files(plan: ClusterPlan, nodes: Sequence[NodePlan] | None = None) -> None:
    """The certificates, the broker.toml of these nodes or of all, and the plan itself. Raises: UserError."""
    try:
        if plan.has_certificates:
            files = MemberFiles(plan.certificates_dir)
            for group in plan.groups:
                ids = [node.id for node in group.nodes]
                files.complete(group.name, dict.fromkeys(ids, (HOST, "localhost")))
            if plan.has_client_tls or files.may_sign:
                files.complete(plan.group, {NAME_SERVER: (HOST, "localhost")})
        write_node_files(plan, nodes)
        plan.save()
    except OSError as error:
        raise UserError(f"{error.filename or plan.data_dir} cannot be written: {error.strerror}.") from error


async def _run(plan: ClusterPlan, restart: bool) -> None:
    console = Console(stderr=True, highlight=False)

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    def on_ready() -> None:
        console.print(ready_table(plan, cluster.pids))
        if plan.has_client_tls:
            authorities = f"{AUTHORITIES_VARIABLE}={plan.certificates_dir / 'ca.pem'}"
            say(f"Commands speak TLS ({plan.client_tls_mode}) with {authorities}")
        say(f"Data and logs: {plan.data_dir}. Ctrl-C stops everything.")
        print(f"READY {json.dumps(_ready(plan, cluster.pids))}", flush=True)

    if plan.has_certificates and not plan.has_known_brokers:
        say(
            f"Any process of this machine can register as a broker: {plan.certificates_dir} has no "
            f"{NAME_SERVER}.pem, and no ca.key to make it."
        )
    count = len(plan.nodes)
    say(f"Starting {count} node{'s' if count > 1 else ''} in {plan.data_dir} ...")
    cluster = LocalCluster(plan, restart=restart, say=say)
    await cluster.run(on_ready)


def _ready(plan: ClusterPlan, pids: dict[str, int]) -> dict[str, object]:
    return {
        "namesrv": plan.namesrv_address,
        "namesrvs": [
            {"id": each.name, "pid": pids[each.name], "remoting": each.address} for each in plan.namesrvs
        ],
        "admin": plan.admin_url,
        "grpc": plan.grpc_address,
        "grpcMetrics": plan.grpc_metrics_url if plan.grpc_port else None,
        "nodes": [_node_row(plan, node, pids) for node in plan.nodes],
    }


def _node_row(plan: ClusterPlan, node: NodePlan, pids: Mapping[str, int]) -> dict[str, object]:
    """A node as the READY line has it."""
    return {
        "id": node.id,
        "group": plan.group_of(node).name,
        "pid": pids[node.id],
        "remoting": node.remoting_address,
        "replication": node.replication_address,
        "metrics": node.metrics_url,
    }


def ready_table(plan: ClusterPlan, pids: dict[str, int]) -> Table:
    """The addresses of the cluster."""
    # The table fits into 80 columns: an address that is split over two lines cannot be clicked or copied.
    table = Table(title="LedgerMQ is ready", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("process", "pid", "clients", "metrics"):
        table.add_column(name, justify="right" if name == "pid" else "left", overflow="fold")
    for namesrv in plan.namesrvs:
        table.add_row(namesrv.name, str(pids[namesrv.name]), namesrv.address, "")
    for group in plan.groups:
        if len(plan.groups) > 1:
            table.add_row(group.name)
        for node in group.nodes:
            table.add_row(node.id, str(pids[node.id]), node.remoting_address, node.metrics_url)
    if plan.admin_url is not None:
        table.add_row("admin", str(pids["admin"]), plan.admin_url, f"{plan.admin_url}/metrics")
    if plan.grpc_address is not None:
        table.add_row("gRPC", str(pids["grpc"]), plan.grpc_address, plan.grpc_metrics_url)
    return table
