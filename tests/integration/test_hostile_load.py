"""Clients that do their worst for some seconds: the leader stays, a producer goes on, memory is bounded.

`python -m bench.hostile_load` does it for ten minutes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.hostile_load import observe
from tests.integration.cluster import Cluster
from tests.support.long_runs import is_long_run

pytestmark = pytest.mark.integration
CONNECTIONS = 48
SECONDS = 25.0 if is_long_run() else 12.0
ACKNOWLEDGED_MIN = 50
PEAK_MIB_MAX = 1_500
"""Of one process: what its connections may hold together is 512 MiB, and the sends on their way 256."""


def test_hostile_clients_take_the_leadership_from_no_node(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        cluster.start({"enablePropertyFilter": "true"})
        observed = observe(cluster, CONNECTIONS, SECONDS)
    finally:
        cluster.stop()
    assert observed.leader_changes == 0, observed
    assert observed.acknowledged > ACKNOWLEDGED_MIN, observed
    assert max(observed.peak_mib.values()) < PEAK_MIB_MAX, observed
