"""What `ledgermq up` shows when it is ready."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from ledgermq.local.cluster import ready_table
from ledgermq.local.plan import ClusterPlan

PIDS = {"namesrv": 1234567, "n0": 1234568, "n1": 1234569, "n2": 1234570, "admin": 1234571}


def test_addresses_are_whole_on_a_narrow_terminal(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path)
    out = io.StringIO()
    Console(file=out, width=80).print(ready_table(plan, PIDS))
    text = out.getvalue()
    wanted = [plan.namesrv_address, plan.admin_url, f"{plan.admin_url}/metrics"]
    wanted += [address for node in plan.nodes for address in (node.remoting_address, node.metrics_url)]
    assert [address for address in wanted if address not in text] == []
    assert [str(pid) for pid in PIDS.values() if str(pid) not in text] == []
