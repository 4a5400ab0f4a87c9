"""Disks that fill up, fail and crawl under load: the node that cannot keep its word stops, the rest go on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.cluster import Disk, eventually
from tests.chaos.faulty_fs import DiskFaults
from tests.chaos.run import Run, start_run

pytestmark = pytest.mark.integration
POWER_LOSS = Disk(is_volatile=True)
SENDS = 100
TMPFS_BYTES = 40 * 1024 * 1024
KEPT_FREE_BYTES = 1024 * 1024
DECISION_LIMIT_S = 60.0


async def followers(run: Run) -> list[str]:
    leader = await run.cluster.wait_leader()
    return sorted(run.cluster.nodes.keys() - {leader})


FAILING, FULL = DiskFaults(failing_syncs=1), DiskFaults(is_full=True)
STOPPED = [
    pytest.param("leader", FAILING, id="leader, EIO of a sync"),
    pytest.param("follower", FULL, id="follower, ENOSPC of a write"),
    pytest.param("follower", FAILING, id="follower, EIO of a sync", marks=pytest.mark.long),
    pytest.param("leader", FULL, id="leader, ENOSPC of a write", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("role", "fault"), STOPPED)
async def test_node_whose_write_fails_stops_and_loses_nothing(
    tmp_path: Path, seed: int, role: str, fault: DiskFaults
) -> None:
    """What the failed sync was to save is gone, as the kernel has it: only a stopped node keeps its word."""
    async with start_run(tmp_path, seed, disk=POWER_LOSS) as run:
        await run.load.wait_acknowledged(SENDS)
        node = await run.cluster.wait_leader() if role == "leader" else (await followers(run))[0]
        run.note(f"{fault} of {role} {node}")
        run.cluster.nodes[node].fault(fault)
        assert await run.cluster.wait_ended(node, DECISION_LIMIT_S) != 0
        await run.load.wait_acknowledged(SENDS)
        await run.cluster.restart(node)
        await run.cluster.wait_in_touch()
        await run.load.wait_acknowledged(SENDS)
        await run.finish()


async def test_slow_disks(tmp_path: Path, seed: int) -> None:
    """A slow follower delays no commit; a slow leader is slow, but right."""
    async with start_run(tmp_path, seed, disk=POWER_LOSS) as run:
        await run.load.wait_acknowledged(SENDS)
        for node in ((await followers(run))[0], await run.cluster.wait_leader()):
            run.note(f"each sync of {node} takes 200 ms")
            run.cluster.nodes[node].fault(DiskFaults(sync_delay_ms=200))
            await run.load.wait_acknowledged(SENDS)
            run.cluster.nodes[node].fault(DiskFaults())
        await run.finish()


async def refuses(run: Run, fill: Callable[[], None], free: Callable[[], None]) -> None:
    """While the leader's disk is full it takes no messages, or another leads that can; then it goes on."""
    leader, refused = await run.cluster.wait_leader(), run.load.refused
    run.note(f"the disk of the leader {leader} is full")
    fill()

    async def is_felt() -> bool:
        return run.load.refused > refused or await run.cluster.leader() != leader

    await eventually("a full disk refuses messages", is_felt, DECISION_LIMIT_S)
    assert run.cluster.nodes[leader].is_running, run.cluster.log_end(leader)
    free()
    await run.load.wait_acknowledged(SENDS)


async def test_leader_with_a_disk_that_is_nearly_full(tmp_path: Path, seed: int) -> None:
    async with start_run(tmp_path, seed, disk=POWER_LOSS) as run:
        await run.load.wait_acknowledged(SENDS)
        node = run.cluster.nodes[await run.cluster.wait_leader()]
        await refuses(run, lambda: node.fault(DiskFaults(used_ratio=0.99)), lambda: node.fault(DiskFaults()))
        await run.finish()


async def test_real_file_system_that_fills_up(tmp_path: Path, seed: int) -> None:
    """The stores are on small file systems in memory; another program fills the leader's."""
    mounted = []
    try:
        for number in range(3):
            store = tmp_path / f"n{number}" / "store"
            store.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(store)]
            result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
            if result.returncode != 0:
                pytest.skip(f"no tmpfs can be mounted here: {result.stderr.strip()}")
            mounted.append(store)
        async with start_run(tmp_path, seed) as run:
            await run.load.wait_acknowledged(SENDS)
            filler = run.cluster.nodes[await run.cluster.wait_leader()].store_root / "filler"
            await refuses(run, lambda: fill_up(filler), filler.unlink)
            await run.finish()
    finally:
        for store in mounted:
            subprocess.run(["umount", "-l", str(store)], timeout=10, check=False)


def fill_up(path: Path) -> None:
    """Take all blocks but some."""
    with path.open("wb") as file:
        try:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        except OSError:
            file.truncate(max(0, path.stat().st_size - KEPT_FREE_BYTES))
