"""What `ledgermq up` shows when it is ready."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from ledgermq.local.cluster import ready_table
from ledgermq.local.foreground import forget_tls_of_others
from ledgermq.local.plan import ClusterPlan
from remoting.client.tls import client_tls_from

PIDS = {"namesrv": 1234567, "n0": 1234568, "n1": 1234569, "n2": 1234570, "admin": 1234571, "grpc": 1234572}
PIDS |= {"namesrv-2": 1234573}


def test_addresses_are_whole_on_a_narrow_terminal(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path, namesrv_count=2)
    out = io.StringIO()
    Console(file=out, width=80).print(ready_table(plan, PIDS))
    text = out.getvalue()
    wanted = [*(each.address for each in plan.namesrvs), str(plan.admin_url), f"{plan.admin_url}/metrics"]
    wanted += [address for node in plan.nodes for address in (node.remoting_address, node.metrics_url)]
    assert [address for address in wanted if address not in text] == []
    assert [str(pid) for pid in PIDS.values() if str(pid) not in text] == []


def test_a_process_that_there_is_not_has_no_address(tmp_path: Path) -> None:
    out = io.StringIO()
    plan = ClusterPlan(tmp_path, admin_port=0, grpc_port=0)
    others = {name: pid for name, pid in PIDS.items() if name not in ("admin", "grpc")}
    Console(file=out, width=80).print(ready_table(plan, others))
    assert [word for word in ("admin", "gRPC", "None", ":0") if word in out.getvalue()] == []


def test_tls_that_the_environment_names_is_of_another_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise its admin service would speak TLS to nodes without it."""
    monkeypatch.setenv("LEDGERMQ_TLS", "true")
    monkeypatch.setenv("LEDGERMQ_TLS_AUTHORITIES", "/another/ca.pem")
    forget_tls_of_others()
    assert client_tls_from(os.environ) is None
