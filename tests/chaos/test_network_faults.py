"""The network fails under load, in each shape, between processes that live: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chaos.link import Quality
from tests.chaos.network import CLIENTS
from tests.chaos.run import Run, start_run

pytestmark = pytest.mark.integration
SENDS = 100


async def wait_deposed(run: Run, old: str) -> None:
    """Another node leads, and the clients' messages reach it."""
    leader = await run.cluster.wait_other_leader(old)
    run.note(f"{leader} leads in place of {old}")
    await run.load.wait_acknowledged(SENDS)


async def mended(run: Run, *, is_reset: bool) -> None:
    run.mend_network(is_reset=is_reset)
    await run.load.wait_acknowledged(SENDS)
    await run.cluster.wait_in_touch()


@pytest.mark.parametrize(
    "is_reset", [False, pytest.param(True, marks=pytest.mark.long)], ids=["held", "reset"]
)
async def test_isolated_leader_is_deposed_and_comes_back(tmp_path: Path, seed: int, is_reset: bool) -> None:
    """Its connections stay open without a byte; what they hold arrives late, or is lost with them."""
    async with start_run(tmp_path, seed) as run:
        await run.load.wait_acknowledged(SENDS)
        for with_clients in (False, True):
            leader = await run.cluster.wait_leader()
            run.note(f"{leader} is cut off{' from its clients too' if with_clients else ''}")
            run.network.isolate(leader, with_clients=with_clients)
            await wait_deposed(run, leader)
            await mended(run, is_reset=is_reset)
        await run.finish()


async def test_directions_that_stop_alone(tmp_path: Path, seed: int) -> None:
    """A leader whose messages reach no node is deposed. One that gets no messages cannot commit, and must not
    keep the others from an election.
    """
    async with start_run(tmp_path, seed) as run:
        await run.load.wait_acknowledged(SENDS)
        for is_dumb in (True, False):
            leader = await run.cluster.wait_leader()
            others = run.cluster.nodes.keys() - {leader}
            run.note(f"{leader} {'reaches no node' if is_dumb else 'gets no messages'}")
            for other in others:
                run.network.silence(*((leader, other) if is_dumb else (other, leader)))
            await wait_deposed(run, leader)
            await mended(run, is_reset=False)
        await run.finish()


async def test_answers_that_never_come(tmp_path: Path, seed: int) -> None:
    """Requests arrive, their answers do not: whatever became of the sends, each is there at most once."""
    async with start_run(tmp_path, seed) as run:
        await run.load.wait_acknowledged(SENDS)
        link = run.network.links[CLIENTS, await run.cluster.wait_leader()]
        unsure = run.load.unsure
        link.backward.cut()
        async with asyncio.timeout(30.0):
            while run.load.unsure < unsure + run.load.producers:
                await asyncio.sleep(0.02)
        await mended(run, is_reset=True)
        report = await run.finish()
        assert report.operations["send info"] >= run.load.producers


async def test_bridge_and_majority_ring_of_five(tmp_path: Path, seed: int) -> None:
    async with start_run(tmp_path, seed, nodes=5) as run:
        await run.load.wait_acknowledged(SENDS)
        nodes = sorted(run.cluster.nodes)
        for middle in nodes[:2]:
            rest = [node for node in nodes if node != middle]
            run.note(f"{middle} is the bridge")
            run.network.split([[*rest[:2], middle], [middle, *rest[2:]]])
            await run.load.wait_acknowledged(SENDS)
            await mended(run, is_reset=False)
        run.note("each node hears two neighbours only")
        run.network.majority_ring()
        await run.load.wait_acknowledged(SENDS)
        await mended(run, is_reset=True)
        await run.finish()


async def test_bad_links(tmp_path: Path, seed: int) -> None:
    """Latency and jitter, lost segments, resets, and a slow link to one follower, one after the other."""
    async with start_run(tmp_path, seed) as run:
        for quality in (
            Quality(delay_ms=30, jitter_ms=30),
            Quality(loss=0.03),
            Quality(resets=0.01),
            Quality(bytes_per_s=200e3),
        ):
            run.note(f"every link between nodes: {quality}")
            run.network.set_quality(run.network.between_nodes(), quality)
            await run.load.wait_acknowledged(SENDS)
            run.mend_network()
        await run.finish()
