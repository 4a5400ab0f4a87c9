"""Nodes are killed, paused and restarted under load, on disks that lose what was not synced."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.cluster import Disk
from tests.chaos.run import start_run

pytestmark = pytest.mark.integration
POWER_LOSS = Disk(is_volatile=True, leak=0.3)


async def test_power_failure_of_the_leader_loses_nothing(tmp_path: Path, seed: int) -> None:
    async with start_run(tmp_path, seed, disk=POWER_LOSS) as run:
        await run.load.wait_acknowledged(300)
        leader = await run.cluster.wait_leader()
        run.note(f"power failure of the leader {leader}")
        await run.cluster.kill(leader)
        await run.load.wait_acknowledged(300)
        await run.cluster.restart(leader)
        await run.finish()
