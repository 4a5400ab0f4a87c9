"""`ledgermq up`: a whole local cluster in the foreground."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ledgermq.errors import UserError
from ledgermq.local.cluster import LocalCluster, locked
from ledgermq.local.node_files import read_settings, write_node_files
from ledgermq.local.plan import ClusterPlan, load_plan, merge_plan, require_free


def up(
    data_dir: Path,
    *,
    nodes: int | None,
    namesrv_port: int | None,
    broker_port: int | None,
    admin_port: int | None,
    durability: str | None,
    restart: bool,
    config: Path | None,
    overrides: Sequence[str],
) -> None:
    """Makes or continues the cluster in the folder and runs it until a signal.

    Raises: UserError.
    """
    os.umask(0o077)  # messages and logs are not for other users of the machine; children inherit it
    data_dir = data_dir.absolute()
    settings = read_settings(config, overrides)
    if durability is not None:
        settings["durability"] = durability
    with locked(data_dir):
        plan = merge_plan(
            load_plan(data_dir),
            data_dir,
            nodes=nodes,
            namesrv_port=namesrv_port,
            broker_port=broker_port,
            admin_port=admin_port,
            settings=settings,
        )
        require_free(plan.ports())
        _write_files(plan)
        asyncio.run(_run(plan, restart))


def _write_files(plan: ClusterPlan) -> None:
    try:
        write_node_files(plan)
        plan.save()
    except OSError as error:
        raise UserError(f"{error.filename or plan.data_dir} cannot be written: {error.strerror}.") from error


async def _run(plan: ClusterPlan, restart: bool) -> None:
    console = Console(stderr=True, highlight=False)

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    def on_ready() -> None:
        console.print(ready_table(plan, cluster.pids))
        say(f"Data and logs: {plan.data_dir}. Ctrl-C stops everything.")
        print(f"READY {json.dumps(_ready(plan, cluster.pids))}", flush=True)

    say(f"Starting {plan.node_count} node{'s' if plan.node_count > 1 else ''} in {plan.data_dir} ...")
    cluster = LocalCluster(plan, restart=restart, say=say)
    await cluster.run(on_ready)


def _ready(plan: ClusterPlan, pids: dict[str, int]) -> dict[str, object]:
    return {
        "namesrv": plan.namesrv_address,
        "admin": plan.admin_url,
        "nodes": [
            {
                "id": node.id,
                "pid": pids[node.id],
                "remoting": node.remoting_address,
                "replication": node.replication_address,
                "metrics": node.metrics_url,
            }
            for node in plan.nodes
        ],
    }


def ready_table(plan: ClusterPlan, pids: dict[str, int]) -> Table:
    """Whom to talk to. It fits into 80 columns: an address cut in two can be neither clicked nor copied."""
    table = Table(title="LedgerMQ is ready", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("process", "pid", "clients", "metrics"):
        table.add_column(name, justify="right" if name == "pid" else "left", overflow="fold")
    table.add_row("name server", str(pids["namesrv"]), plan.namesrv_address, "")
    for node in plan.nodes:
        table.add_row(node.id, str(pids[node.id]), node.remoting_address, node.metrics_url)
    table.add_row("admin", str(pids["admin"]), plan.admin_url, f"{plan.admin_url}/metrics")
    return table
