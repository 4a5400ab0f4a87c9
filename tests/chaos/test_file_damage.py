"""The files of one node of three are damaged: it heals by itself, and nothing acknowledged is lost."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.chaos.cluster import ChaosNode, eventually
from tests.chaos.damage import HARMS, KINDS, damage, files_of, files_of_no_kind, flip_in_log, wipe
from tests.chaos.run import Run, start_run

pytestmark = pytest.mark.integration
SENDS = 50
EVERYTHING = "everything"
WRITTEN_LAST = {"timer index"}
"""The files that a node without timer messages writes when it is stopped."""
VOTE_LOST = {"vote", EVERYTHING}
WRITTEN_LIMIT_S = 60.0
SCRUBBED_LIMIT_S = 150.0


async def damage_stopped(run: Run, node_id: str, kind: str, harm: str, rng: random.Random) -> None:
    """Kill the node, damage a file, start it, and wait till it has its vote back."""
    node = run.cluster.nodes[node_id]

    async def has_one() -> bool:
        return kind == EVERYTHING or kind in WRITTEN_LAST or bool(files_of(node, kind))

    await run.load.wait_acknowledged(SENDS)
    await eventually(f"{node_id} keeps a file of the kind: {kind}", has_one, WRITTEN_LIMIT_S)
    await run.cluster.wait_in_touch()
    is_asked = kind in WRITTEN_LAST or rng.random() < 0.5
    await run.cluster.kill(node_id, signal.SIGTERM if is_asked else signal.SIGKILL)
    assert kind == EVERYTHING or files_of(node, kind), f"{node_id} left no {kind}"
    run.note(wipe(node) if kind == EVERYTHING else damage(node, kind, harm, rng))
    await run.cluster.restart(node_id)
    await run.cluster.wait_healed(node_id)
    if kind in VOTE_LOST:
        assert "term and vote are not known" in run.cluster.last_log(node_id), "the lost vote went unnoticed"


async def test_log_vote_and_disk_of_each_node_in_turn(tmp_path: Path, seed: int) -> None:
    """Who was healed has to be able to stand in for the others: each of the three is damaged once."""
    rng = random.Random(seed)
    async with start_run(tmp_path, seed) as run:
        harms = [("data", "flip"), ("vote", "flip"), (EVERYTHING, "delete")]
        for node_id, (kind, harm) in zip(sorted(run.cluster.nodes), harms, strict=True):
            await damage_stopped(run, node_id, kind, harm, rng)
        await run.finish(from_each=True)


@pytest.mark.long
@pytest.mark.parametrize("harm", sorted(HARMS))
async def test_every_kind_of_file(tmp_path: Path, seed: int, harm: str) -> None:
    rng = random.Random(seed)
    async with start_run(tmp_path, seed) as run:
        for kind in KINDS:
            await damage_stopped(run, rng.choice(sorted(run.cluster.nodes)), kind, harm, rng)
        for node in run.cluster.nodes.values():
            assert files_of_no_kind(node) == [], "a kind of file that is never damaged"
        await run.finish(from_each=True)


async def test_damaged_message_is_repaired_when_somebody_reads_it(tmp_path: Path, seed: int) -> None:
    """The leader finds that a body is not what its CRC says, asks the others, and gives the reader theirs."""
    async with start_run(tmp_path, seed) as run:
        await run.load.wait_acknowledged(SENDS)
        for node in run.cluster.nodes.values():  # after a start nothing is in memory
            await run.cluster.kill(node.node_id, signal.SIGTERM)
        await run.revive()
        await run.load.wait_acknowledged(SENDS)
        await run.cluster.wait_in_touch()
        leader = run.cluster.nodes[await run.cluster.wait_leader()]
        run.note(f"the body of p0-5 is damaged in the log of the leader {leader.node_id}")
        flip_in(leader, b"p0-5")
        starts = leader.starts
        await run.load.read_all()
        await run.finish()
        assert leader.starts == starts


def flip_in(node: ChaosNode, text: bytes) -> None:
    """One bit of a text that stands in the node's log."""
    for path in sorted(node.store.glob("data/*")):
        at = path.read_bytes().find(text)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([text[0] ^ 1]))
            return
    raise AssertionError(f"{text!r} is in no data file of {node.node_id}")


@pytest.mark.long
@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_flipped_bit_under_a_running_node(tmp_path: Path, seed: int, role: str) -> None:
    """It is found by the look through all files (each minute), and repaired in place; the node goes on."""
    async with start_run(tmp_path, seed) as run:
        await run.load.wait_acknowledged(10 * SENDS)
        await run.cluster.wait_in_touch()
        leader = await run.cluster.wait_leader()
        node_id = leader if role == "leader" else min(run.cluster.nodes.keys() - {leader})
        node, starts = run.cluster.nodes[node_id], run.cluster.nodes[node_id].starts
        status = await run.cluster.status(node_id)
        assert status is not None
        flip = flip_in_log(node, int(status["committedPosition"]), random.Random(seed))
        run.note(f"{node_id}, under the running node: {flip}")

        async def is_repaired() -> bool:
            assert node.is_running, run.cluster.log_end(node_id)
            return flip.is_undone()

        await eventually("the flipped bit is repaired", is_repaired, SCRUBBED_LIMIT_S, 0.5)
        await run.finish()
        assert node.starts == starts
