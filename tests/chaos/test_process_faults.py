"""Nodes are killed, paused and restarted under load, on disks that lose what was not synced."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.chaos.cluster import Disk
from tests.chaos.run import Run, start_run
from tests.chaos.stock_clients import stock_clients
from tests.histories.words import Word

pytestmark = pytest.mark.integration
POWER_LOSS = Disk(is_volatile=True)
TORN_WRITES = Disk(is_volatile=True, leak=0.3)
SENDS = 100


@pytest.mark.parametrize(
    "disk", [TORN_WRITES, pytest.param(POWER_LOSS, marks=pytest.mark.long)], ids=["torn", "nothing unsynced"]
)
async def test_power_failures(tmp_path: Path, seed: int, disk: Disk) -> None:
    """The leader's machine, a majority's, all at one moment: what was acknowledged is there."""
    async with start_run(tmp_path, seed, disk=disk) as run:
        await run.load.wait_acknowledged(SENDS)
        nodes = sorted(run.cluster.nodes)
        leader = await run.cluster.wait_leader()
        followers = [node for node in nodes if node != leader]
        for victims in ([leader], followers[:1], [leader, followers[1]], nodes):
            run.note(f"power failure of {victims}")
            for node in victims:
                run.cluster.nodes[node].send_signal(signal.SIGKILL)
            for node in victims:
                await run.cluster.wait_ended(node)
            await run.revive()
            await run.load.wait_acknowledged(SENDS)
        await run.finish()


async def test_disks_that_forget_are_noticed(tmp_path: Path, seed: int) -> None:
    """All disks go back to an earlier day. If nothing were found then, the other tests would show nothing."""
    async with start_run(tmp_path, seed) as run:
        await run.load.wait_acknowledged(SENDS)
        await stop_all(run)
        for node in run.cluster.nodes.values():
            shutil.copytree(node.store_root, node.folder / "earlier")
        await run.revive()
        await run.load.wait_acknowledged(SENDS)
        await stop_all(run)
        run.note("every disk is what it was before")
        for node in run.cluster.nodes.values():
            shutil.rmtree(node.store_root)
            shutil.copytree(node.folder / "earlier", node.store_root)
            shutil.rmtree(node.folder / "earlier")
        report = await run.judge()
        assert {finding.word for finding in report.faults} & {Word.LOST_WRITE, Word.INCONSISTENT_OFFSETS}


async def stop_all(run: Run) -> None:
    for node in run.cluster.nodes.values():
        node.send_signal(signal.SIGTERM)
    for node_id in run.cluster.nodes:
        await run.cluster.wait_ended(node_id)


async def test_leaders_that_stand_still(tmp_path: Path, seed: int) -> None:
    """Paused, deposed and continued, each leader finds out before it does harm."""
    async with start_run(tmp_path, seed) as run:
        await run.load.wait_acknowledged(SENDS)
        for _ in range(2):
            leader = await run.cluster.wait_leader()
            run.note(f"{leader} stands still")
            run.cluster.nodes[leader].send_signal(signal.SIGSTOP)
            await run.cluster.wait_other_leader(leader)
            await run.load.wait_acknowledged(SENDS)
            run.cluster.nodes[leader].send_signal(signal.SIGCONT)
            await run.load.wait_acknowledged(SENDS)
        await run.finish()


async def test_rolling_restart_and_planned_transfers(tmp_path: Path, seed: int) -> None:
    async with start_run(tmp_path, seed, disk=POWER_LOSS) as run:
        await run.load.wait_acknowledged(SENDS)
        for node in sorted(run.cluster.nodes):
            run.note(f"{node} is stopped and started")
            await run.cluster.kill(node, signal.SIGTERM)
            assert await run.cluster.wait_ended(node) == 0
            await run.cluster.restart(node)
            await run.load.wait_acknowledged(SENDS)
        for _ in range(3):
            leader = await run.cluster.wait_leader()
            await run.cluster.wait_in_touch()
            target = min(run.cluster.nodes.keys() - {leader})
            assert await run.cluster.transfer(target), f"{leader} refuses to hand over to {target}"
            await run.cluster.wait_other_leader(leader)
            await run.load.wait_acknowledged(SENDS)
        await run.finish()


@pytest.mark.parametrize("client", ["python", pytest.param("java", marks=pytest.mark.long)])
async def test_stock_clients_through_a_kill_and_a_partition(tmp_path: Path, seed: int, client: str) -> None:
    async with start_run(tmp_path, seed, disk=POWER_LOSS) as run, stock_clients(run, [client]) as stock:
        leader = await run.cluster.wait_leader()
        run.note(f"power failure of {leader}")
        await run.cluster.kill(leader)
        await run.load.wait_acknowledged(SENDS)
        await run.cluster.restart(leader)
        await run.cluster.wait_in_touch()
        leader = await run.cluster.wait_leader()
        run.note(f"{leader} is cut off from all nodes and clients")
        run.network.isolate(leader, with_clients=True)
        await run.cluster.wait_other_leader(leader)
        await run.load.wait_acknowledged(SENDS)
        run.mend_network(is_reset=True)
        await run.heal()
        await stock.finish()
        await run.finish()
