"""The members change again and again, under load, while nodes are killed: each change is made in the end, and
the checked history has everything that was acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from broker.admin.types import ChangeKind, MemberChange
from remoting.codes import RequestCode, ResponseCode
from remoting.errors import RemotingError
from tests.chaos.cluster import Disk, eventually
from tests.chaos.nemesis import LEADER_BIAS, victim
from tests.chaos.run import Run, start_run
from tests.integration.cluster import REPLICATION_PORT_OFFSET

pytestmark = pytest.mark.integration
NODES, SPARES = 3, 3
CHANGES_MANY = 200
CHANGE_LIMIT_S = 120.0
SENDS = 20
KILL_CHANCE = 0.5
SMALLEST_TO_LOSE_ONE = 3
Roles = dict[str, str]
Step = Callable[[Run, random.Random], Awaitable[None]]


async def roles_of(run: Run) -> Roles:
    """By the leader's newest configuration; none while it is not committed or a change goes on."""
    leader = await run.cluster.leader()
    status = await run.cluster.status(leader) if leader is not None else None
    if status is None or not status["isConfigurationCommitted"]:
        return {}
    members: list[dict[str, Any]] = status["members"]
    is_finished = all(member["replaces"] is None for member in members)
    return {member["id"]: member["role"] for member in members} if is_finished else {}


async def change(run: Run, wanted: Roles, request: MemberChange) -> None:
    """Ask until the members are so: an answer may be lost with its leader, before the change or after it."""
    cluster, said = run.cluster, ""

    async def is_made() -> bool:
        nonlocal said
        leader = await cluster.leader()
        if leader is None or await roles_of(run) == wanted:
            return leader is not None
        try:
            answer = await cluster.ask(leader, RequestCode.LEDGERMQ_CHANGE_MEMBERS, body=request.to_json())
        except RemotingError as error:
            said = str(error)
        else:
            said = "made" if answer.code == ResponseCode.SUCCESS else str(answer.remark)
        return False

    try:
        await eventually(f"{request.change} is made, {wanted}", is_made, CHANGE_LIMIT_S, 0.2)
    except AssertionError as error:
        raise AssertionError(f"{error}; last answer: {said}; {await cluster.statuses()}") from None


async def disturbed(run: Run, rng: random.Random, wanted: Roles, request: MemberChange) -> None:
    """Make the change; perhaps a node is killed meanwhile, most often the leader."""
    run.note(f"{request.to_json().decode()}")
    async with asyncio.TaskGroup() as group:
        group.create_task(change(run, wanted, request))
        if rng.random() < KILL_CHANCE:
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            node_id = await victim(run, rng)
            run.note(f"power failure of {node_id}")
            await run.cluster.kill(node_id)
            await asyncio.sleep(rng.uniform(0.0, 2.0))
            await run.revive()


def voters_of(run: Run) -> Roles:
    return dict.fromkeys(run.cluster.nodes, "voter")


async def joining(run: Run, rng: random.Random) -> tuple[str, str]:
    """A spare that is started to join, and its address."""
    node_id = rng.choice(sorted(run.cluster.spares))
    await run.cluster.start_joining(node_id)
    return node_id, f"127.0.0.1:{run.cluster.nodes[node_id].port + REPLICATION_PORT_OFFSET}"


async def chosen(run: Run, rng: random.Random) -> str:
    """Most often who leads."""
    leader = await run.cluster.wait_leader()
    return leader if rng.random() < LEADER_BIAS else rng.choice(sorted(run.cluster.nodes))


async def add(run: Run, rng: random.Random) -> None:
    node_id, address = await joining(run, rng)
    await disturbed(
        run, rng, voters_of(run), MemberChange(change=ChangeKind.ADD, id=node_id, address=address)
    )


async def remove(run: Run, rng: random.Random) -> None:
    """It runs on, until it is to join again."""
    node_id = await chosen(run, rng)
    wanted = voters_of(run)
    del wanted[node_id]
    await disturbed(run, rng, wanted, MemberChange(change=ChangeKind.REMOVE, id=node_id))
    run.cluster.retire(node_id)


async def replace(run: Run, rng: random.Random) -> None:
    old = await chosen(run, rng)
    node_id, address = await joining(run, rng)
    wanted = voters_of(run)
    del wanted[old]
    request = MemberChange(change=ChangeKind.REPLACE, old=old, id=node_id, address=address)
    await disturbed(run, rng, wanted, request)
    run.cluster.retire(old)


async def replace_dead(run: Run, rng: random.Random) -> None:
    """Its disk is gone, too."""
    await run.cluster.wait_in_touch()
    old = await chosen(run, rng)
    run.note(f"{old} is gone for good")
    await run.cluster.kill(old)
    run.cluster.retire(old)
    node_id, address = await joining(run, rng)
    request = MemberChange(change=ChangeKind.REPLACE, old=old, id=node_id, address=address)
    await disturbed(run, rng, voters_of(run), request)


async def demote_and_promote(run: Run, rng: random.Random) -> None:
    node_id = await chosen(run, rng)
    demoted = voters_of(run) | {node_id: "learner"}
    await disturbed(run, rng, demoted, MemberChange(change=ChangeKind.DEMOTE, id=node_id))
    await disturbed(run, rng, voters_of(run), MemberChange(change=ChangeKind.PROMOTE, id=node_id))


ORDINARY: Final[tuple[Step, ...]] = (add, replace_dead, remove, demote_and_promote)


def step_for(run: Run, rng: random.Random) -> Step:
    """One that a group of this size can take."""
    steps: list[Step] = [replace] if run.cluster.spares else []
    if run.cluster.spares:
        steps += [add, add]
    if len(run.cluster.nodes) > 1:
        steps += [remove, remove, demote_and_promote]
    if len(run.cluster.nodes) >= SMALLEST_TO_LOSE_ONE and run.cluster.spares:
        steps += [replace_dead, replace_dead]
    return rng.choice(steps)


@pytest.mark.parametrize(
    ("changes", "disk"),
    [
        pytest.param(len(ORDINARY), Disk(), id="few"),
        pytest.param(CHANGES_MANY, Disk(is_volatile=True, leak=0.1), id="many", marks=pytest.mark.long),
    ],
)
async def test_members_change_under_load_and_kills(
    tmp_path: Path, seed: int, changes: int, disk: Disk
) -> None:
    rng = random.Random(seed)
    async with start_run(tmp_path, seed, nodes=NODES, spares=SPARES, disk=disk) as run:
        for number in range(changes):
            step = ORDINARY[number] if changes == len(ORDINARY) else step_for(run, rng)
            run.note(f"change {number}: {step.__name__} of {sorted(run.cluster.nodes)}")
            await step(run, rng)
            await run.revive()
            await run.load.wait_acknowledged(SENDS)
        for node in run.cluster.spares.values():
            node.send_signal(signal.SIGKILL)
        await run.finish()
