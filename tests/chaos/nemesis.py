"""Faults drawn from a seed: each begins, lasts, and ends. Whom a draw means depends on who leads then."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Final

from tests.chaos.damage import HARMS, KINDS, damage, wipe
from tests.chaos.faulty_fs import DiskFaults
from tests.chaos.link import Quality
from tests.chaos.network import CLIENTS, NAMESRV
from tests.chaos.run import Run

Fault = Callable[[Run, random.Random, float], Awaitable[None]]
"""Does it all: begins, lasts about so many seconds, ends."""

LEADER_BIAS = 0.6
DAMAGE_CHANCE = 0.15


async def victim(run: Run, rng: random.Random) -> str:
    """Most often the leader."""
    leader = await run.cluster.leader()
    return (
        leader if leader is not None and rng.random() < LEADER_BIAS else rng.choice(sorted(run.cluster.nodes))
    )


def majority(run: Run, rng: random.Random) -> list[str]:
    nodes = sorted(run.cluster.nodes)
    return rng.sample(nodes, len(nodes) // 2 + 1)


async def isolate(run: Run, rng: random.Random, lasts_s: float) -> None:
    node, with_clients = await victim(run, rng), rng.random() < 0.5
    run.note(f"{node} is cut off from {'all nodes and clients' if with_clients else 'the other nodes'}")
    run.network.isolate(node, with_clients=with_clients)
    await asyncio.sleep(lasts_s)
    run.mend_network(is_reset=rng.random() < 0.5)


async def split(run: Run, rng: random.Random, lasts_s: float) -> None:
    many = majority(run, rng)
    few = sorted(run.cluster.nodes.keys() - set(many))
    run.note(f"split into {many} and {few}")
    run.network.split([many, few])
    await asyncio.sleep(lasts_s)
    run.mend_network(is_reset=rng.random() < 0.5)


async def scatter(run: Run, rng: random.Random, lasts_s: float) -> None:
    run.note("every node is alone")
    run.network.split([])
    await asyncio.sleep(lasts_s)
    run.mend_network(is_reset=rng.random() < 0.5)


async def silence(run: Run, rng: random.Random, lasts_s: float) -> None:
    node = await victim(run, rng)
    others = sorted(run.cluster.nodes.keys() - {node})
    others = rng.sample(others, rng.randint(1, len(others)))
    is_dumb = rng.random() < 0.5
    run.note(f"{node} {'is not heard by' if is_dumb else 'does not hear'} {others}")
    for other in others:
        run.network.silence(*((node, other) if is_dumb else (other, node)))
    await asyncio.sleep(lasts_s)
    run.mend_network(is_reset=rng.random() < 0.5)


async def bridge(run: Run, rng: random.Random, lasts_s: float) -> None:
    nodes = sorted(run.cluster.nodes)
    rng.shuffle(nodes)
    middle = len(nodes) // 2
    run.note(f"{nodes[:middle]} and {nodes[middle + 1 :]} hear each other only through {nodes[middle]}")
    run.network.split([nodes[: middle + 1], nodes[middle:]])
    await asyncio.sleep(lasts_s)
    run.mend_network(is_reset=rng.random() < 0.5)


async def flap(run: Run, rng: random.Random, lasts_s: float) -> None:
    node = await victim(run, rng)
    run.note(f"{node}'s links to the other nodes flap")
    for _ in range(max(1, int(lasts_s / 0.5))):
        run.network.isolate(node)
        await asyncio.sleep(rng.uniform(0.05, 0.4))
        run.network.mend(is_reset=rng.random() < 0.3)
        await asyncio.sleep(rng.uniform(0.05, 0.4))


async def bad_links(run: Run, rng: random.Random, lasts_s: float) -> None:
    quality = rng.choice(
        [
            Quality(delay_ms=rng.uniform(5, 200), jitter_ms=rng.uniform(0, 200)),
            Quality(loss=rng.uniform(0.01, 0.2)),
            Quality(resets=rng.uniform(0.005, 0.1)),
            Quality(delay_ms=20, bytes_per_s=rng.uniform(20e3, 500e3)),
        ]
    )
    node = await victim(run, rng) if rng.random() < 0.5 else None
    run.note(f"{node or 'every node'} has links of {quality}")
    run.network.set_quality(run.network.between_nodes() if node is None else run.network.of(node), quality)
    await asyncio.sleep(lasts_s)
    run.mend_network()


async def lost_answers(run: Run, rng: random.Random, lasts_s: float) -> None:
    node = await victim(run, rng)
    run.note(f"clients get no answers from {node}")
    link = run.network.links[CLIENTS, node]
    link.backward.cut()
    await asyncio.sleep(lasts_s)
    run.mend_network(is_reset=rng.random() < 0.5)


async def unregistered(run: Run, rng: random.Random, lasts_s: float) -> None:
    run.note("the name server hears of no node")
    for node in run.cluster.nodes:
        run.network.links[node, NAMESRV].cut()
    await asyncio.sleep(lasts_s)
    run.mend_network(is_reset=rng.random() < 0.5)


async def kill(run: Run, rng: random.Random, lasts_s: float) -> None:
    await down(run, [await victim(run, rng)], lasts_s)


async def kill_majority(run: Run, rng: random.Random, lasts_s: float) -> None:
    await down(run, majority(run, rng), lasts_s)


async def kill_all(run: Run, rng: random.Random, lasts_s: float) -> None:
    await down(run, sorted(run.cluster.nodes), lasts_s)


async def down(run: Run, nodes: list[str], lasts_s: float) -> None:
    """Power failure of these nodes at one moment."""
    run.note(f"power failure of {nodes}")
    for node in nodes:
        run.cluster.nodes[node].send_signal(signal.SIGKILL)
    await asyncio.sleep(lasts_s)
    await run.revive()


async def pause(run: Run, rng: random.Random, lasts_s: float) -> None:
    nodes = [await victim(run, rng)] if rng.random() < 0.7 else majority(run, rng)
    run.note(f"{nodes} stand still")
    for node in nodes:
        run.cluster.nodes[node].send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        for node in nodes:
            run.cluster.nodes[node].send_signal(signal.SIGCONT)


async def hammer(run: Run, rng: random.Random, lasts_s: float) -> None:
    """The current leader is stopped for a moment, again and again."""
    run.note("hammer time for every leader")
    for _ in range(max(1, int(lasts_s / 0.6))):
        node = run.cluster.nodes[await victim(run, rng)]
        node.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(rng.uniform(0.1, 0.6))
        finally:
            node.send_signal(signal.SIGCONT)
        await asyncio.sleep(rng.uniform(0.0, 0.3))


async def rolling_restart(run: Run, rng: random.Random, lasts_s: float) -> None:
    for node in sorted(run.cluster.nodes):
        if run.cluster.nodes[node].is_running:
            run.note(f"{node} is stopped and started")
            await run.cluster.kill(node, signal.SIGTERM)
        await run.revive()


async def transfer(run: Run, rng: random.Random, lasts_s: float) -> None:
    node = rng.choice(sorted(run.cluster.nodes))
    is_taken = await run.cluster.transfer(node)
    run.note(f"transfer of leadership to {node}{'' if is_taken else ' (refused)'}")
    await asyncio.sleep(min(1.0, lasts_s))


async def full_disk(run: Run, rng: random.Random, lasts_s: float) -> None:
    node = await victim(run, rng)
    sudden = rng.random() < 0.5
    run.note(f"the disk of {node} is full{', suddenly' if sudden else ''}")
    run.cluster.nodes[node].fault(DiskFaults(is_full=sudden, used_ratio=0.99))
    await asyncio.sleep(lasts_s)
    run.cluster.nodes[node].fault(DiskFaults())
    await run.revive()


async def failing_sync(run: Run, rng: random.Random, lasts_s: float) -> None:
    node = await victim(run, rng)
    run.note(f"the next sync of {node} fails")
    run.cluster.nodes[node].fault(DiskFaults(failing_syncs=1))
    await asyncio.sleep(lasts_s)
    run.cluster.nodes[node].fault(DiskFaults())  # a node that is cut off may not have met it
    await run.revive()


async def slow_disk(run: Run, rng: random.Random, lasts_s: float) -> None:
    nodes = [await victim(run, rng)] if rng.random() < 0.7 else sorted(run.cluster.nodes)
    delay_ms = rng.choice([20, 100, 400])
    run.note(f"each sync of {nodes} takes {delay_ms} ms")
    for node in nodes:
        run.cluster.nodes[node].fault(DiskFaults(sync_delay_ms=delay_ms))
    await asyncio.sleep(lasts_s)
    for node in nodes:
        run.cluster.nodes[node].fault(DiskFaults())


async def damaged_file(run: Run, rng: random.Random, lasts_s: float) -> None:
    """A stopped node of a whole group finds one of its files damaged, or all of them gone, and must heal."""
    await run.heal()
    await run.revive()  # who met the end of an earlier fault too late
    await run.cluster.wait_in_touch()
    node_id, kind, harm = await victim(run, rng), rng.choice([*KINDS, None]), rng.choice(sorted(HARMS))
    await run.cluster.kill(node_id, rng.choice([signal.SIGKILL, signal.SIGTERM]))
    node = run.cluster.nodes[node_id]
    run.note(wipe(node) if kind is None else damage(node, kind, harm, rng))
    await run.revive()
    await run.cluster.wait_healed(node_id)


NETWORK_FAULTS: Final[tuple[Fault, ...]] = (
    isolate,
    split,
    scatter,
    silence,
    bridge,
    flap,
    bad_links,
    lost_answers,
    unregistered,
)
PROCESS_FAULTS: Final[tuple[Fault, ...]] = (
    kill,
    kill,
    kill_majority,
    kill_all,
    pause,
    hammer,
    rolling_restart,
    transfer,
)
DISK_FAULTS: Final[tuple[Fault, ...]] = (full_disk, failing_sync, slow_disk)
KINDS_TOGETHER: Final = (NETWORK_FAULTS, PROCESS_FAULTS, DISK_FAULTS)


async def harm(run: Run, rng: random.Random, *, may_damage: bool = True) -> None:
    """One fault, or at times one each of two kinds at once. Damage comes alone: others must be whole."""
    if may_damage and rng.random() < DAMAGE_CHANCE:
        await damaged_file(run, rng, 0.0)
        return
    kinds = rng.sample(KINDS_TOGETHER, 2 if rng.random() < 0.3 else 1)
    chosen = [(rng.choice(kind), random.Random(rng.random()), rng.uniform(0.5, 5.0)) for kind in kinds]
    async with asyncio.TaskGroup() as group:
        for fault, chance, lasts_s in chosen:
            group.create_task(_run_fault(fault, run, chance, lasts_s))


async def _run_fault(fault: Fault, run: Run, rng: random.Random, lasts_s: float) -> None:
    await fault(run, rng, lasts_s)
