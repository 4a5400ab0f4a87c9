"""What `ledgermq up` shows when it is ready."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from ledgermq.local import cluster
from ledgermq.local.cluster import LocalCluster, ready_table
from ledgermq.local.foreground import forget_tls_of_others
from ledgermq.local.plan import ClusterPlan
from remoting.client.tls import client_tls_from
from tests.support.polling import until

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


async def test_a_plan_that_cannot_be_read_does_not_end_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_PLAN_INTERVAL_S", 0.001)
    plan = ClusterPlan(tmp_path)
    plan.save()
    said: list[str] = []
    following = asyncio.create_task(LocalCluster(plan, restart=False, say=said.append)._follow_plan())
    try:
        await asyncio.sleep(0)
        (tmp_path / "cluster.toml").write_text("version = ")
        await until(lambda: said != [])
        assert "cluster.toml is not a TOML file" in said[0]
        (tmp_path / "cluster.toml").unlink()
        await until(lambda: len(said) > 1)
        assert not following.done()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
