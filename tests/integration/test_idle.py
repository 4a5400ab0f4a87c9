"""A cluster that nobody uses costs next to nothing. The exact figures are bench/idle.py's."""

from __future__ import annotations

import time

import pytest

from tests.integration.cluster import Cluster
from tests.integration.conftest import Measured

pytestmark = pytest.mark.integration
SETTLE_S = 2.0
MEASURED_S = 10.0
RESIDENT_BYTES_MAX = 100 * 1000 * 1000
CPU_SHARE_MAX = 0.03
"""Three times what is promised: this machine may be busy with other things meanwhile."""


def test_idle_cluster_uses_little_memory_and_hardly_any_time(
    tmp_path_factory: pytest.TempPathFactory, measured: Measured
) -> None:
    cluster = Cluster(tmp_path_factory.mktemp("idle"))
    try:
        cluster.start(admin=True)
        time.sleep(SETTLE_S)
        processes = cluster.processes()
        before = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
        time.sleep(MEASURED_S)
        shares = {
            name: (sum(process.cpu_times()[:2]) - before[name]) / MEASURED_S
            for name, process in processes.items()
        }
        resident = {name: process.memory_info().rss for name, process in processes.items()}
    finally:
        cluster.stop()
    for name, share in shares.items():
        measured(f"idle {name}", f"{share:.2%} of a core, {resident[name] / 1e6:.1f} MB")
    assert {"n0", "n1", "n2", "namesrv", "admin_api"} <= shares.keys()
    assert {name: share for name, share in shares.items() if share > CPU_SHARE_MAX} == {}
    assert {name: size for name, size in resident.items() if size > RESIDENT_BYTES_MAX} == {}
