"""The command line of every process of a local cluster, in the order of their start."""

import shlex
import sys
from pathlib import Path

from ledgermq.cluster_file import HOST, ClusterPlan, NodePlan
from ledgermq.supervisor import Command

NAMESRV_STAGE = 0
NODE_STAGE = 1
ADMIN_STAGE = 2
ADMIN_NICE = 10
"""Who looks at the page does not take from the brokers beside it."""
_AGAIN = "stop and start `ledgermq up`; the nodes go on meanwhile"

PYTHON_MODULE = (sys.executable, "-P", "-m")
"""-P: a folder named like one of our packages in the directory of the user is not ours."""


def node_argv(node: NodePlan) -> tuple[str, ...]:
    return (*PYTHON_MODULE, "broker", "--config", str(node.config_file))


def node_hint(node: NodePlan, data_dir: Path) -> str:
    """What a person types to start the node again."""
    return f"ledgermq node {node.id} --data {shlex.quote(str(data_dir))}"


def _log_options(plan: ClusterPlan) -> tuple[str, ...]:
    """The brokers read the key themselves; the others of the cluster are told to do as they do."""
    line_format = plan.settings.get("logFormat")
    return () if line_format is None else ("--log-format", str(line_format))


def namesrv_command(plan: ClusterPlan) -> Command:
    argv = (
        *PYTHON_MODULE,
        *("namesrv", "--host", HOST, "--port", str(plan.namesrv_port)),
        *("--kv-config", str(plan.data_dir / "namesrv" / "kvConfig.json")),
        *_log_options(plan),
    )
    return Command("namesrv", argv, plan.logs_dir / "namesrv.log", NAMESRV_STAGE, _AGAIN)


def node_command(plan: ClusterPlan, node: NodePlan) -> Command:
    log = plan.logs_dir / f"{node.id}.log"
    return Command(node.id, node_argv(node), log, NODE_STAGE, node_hint(node, plan.data_dir))


def admin_command(plan: ClusterPlan) -> Command:
    argv = (
        *PYTHON_MODULE,
        *("admin_api", "--namesrv", plan.namesrv_address),
        *("--host", HOST, "--port", str(plan.admin_port), "--nice", str(ADMIN_NICE)),
        *_log_options(plan),
        *("--audit", str(plan.data_dir / "admin" / "audit.jsonl")),
    )
    return Command("admin", argv, plan.logs_dir / "admin.log", ADMIN_STAGE, _AGAIN)
