"""The simulated worlds a seed may mean, behind one function.

`node`: whole processes - brokers, name server, clients. `stalls`: the same, and loops stand still.
`strangers`: the same, with certificates and those who do not belong to the group. `clients`: with consumer
groups, topics that come and go, batches. `transactions`: with transactional producers. `writers`: with
numbered writers, each row exactly once. `timers`: with messages for times to come. `pops`: with consumers
that pop. `deletions`: with topics that are deleted and made again. `group`: the replication core alone,
hundreds of elections an hour. `damage`: the same, and disks lose what was on them. `reads`: either, with
reads by read index. `choices`: whole nodes that are asked for linearizable reads and answers of followers.
`disk`: the core on the real entry store, whose machine loses power between two file operations. `pairs`: each
of these three in a group of two. `node-pairs`: two whole nodes. `replicated`: whole nodes whose
acknowledgements do not wait for disks. `members`: whole nodes of a group whose members change. `retentions`:
the same, while the begin of the log is deleted. `recoveries`: whole nodes of a group whose majority is gone
for good, and an operator goes on with one. `upgrades`: whole nodes of the release before, which are replaced
by this one. `groups`: several groups on the same hosts, with two name servers; one is added and one removed.
"""

import enum
import gc
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.node_simulation import options as node_options
from tests.node_simulation import world as node_world
from tests.node_simulation.groups_world import GroupsWorld
from tests.node_simulation.workloads import group_workload
from tests.node_simulation.workloads_deletions import deletion_options, deletion_workload
from tests.node_simulation.workloads_pop import pop_options, pop_workload
from tests.node_simulation.workloads_reads import read_workload
from tests.node_simulation.workloads_sequenced import sequenced_workload
from tests.node_simulation.workloads_timers import timer_options, timer_workload
from tests.node_simulation.workloads_transactions import transaction_options, transaction_workload
from tests.simulation import options as group_options
from tests.simulation import world as group_world
from tests.simulation.disk_options import disk_options, make_disk_log
from tests.support.seed_limit import seed_limit


class World(enum.StrEnum):
    """What is simulated."""

    NODE = "node"
    STALLS = "stalls"
    STRANGERS = "strangers"
    CLIENTS = "clients"
    TRANSACTIONS = "transactions"
    WRITERS = "writers"
    TIMERS = "timers"
    POPS = "pops"
    DELETIONS = "deletions"
    CHOICES = "choices"
    GROUP = "group"
    DAMAGE = "damage"
    READS = "reads"
    DISK = "disk"
    PAIRS = "pairs"
    NODE_PAIRS = "node-pairs"
    REPLICATED = "replicated"
    MEMBERS = "members"
    RETENTIONS = "retentions"
    RECOVERIES = "recoveries"
    UPGRADES = "upgrades"
    GROUPS = "groups"


WEIGHTS = {
    World.NODE: 3,
    World.CLIENTS: 2,
    World.TRANSACTIONS: 1,
    World.WRITERS: 1,
    World.TIMERS: 1,
    World.POPS: 1,
    World.GROUP: 10,
    World.DAMAGE: 10,
    World.DISK: 3,
}
"""Of how many seeds each is: a seed of whole nodes takes many times as long as one of the core."""
VARIANTS = {
    World.NODE: World.STALLS,
    World.CLIENTS: World.DELETIONS,
    World.TRANSACTIONS: World.STRANGERS,
    World.WRITERS: World.CHOICES,
    World.DAMAGE: World.READS,
}
"""Every second seed of these is of the variant; the others keep their meaning."""
RARER_VARIANTS = {
    World.NODE: ((World.NODE_PAIRS, 0.15), (World.REPLICATED, 0.3), (World.MEMBERS, 0.3)),
    World.TIMERS: ((World.RECOVERIES, 0.4),),
    World.POPS: ((World.UPGRADES, 0.4),),
    World.CLIENTS: ((World.RETENTIONS, 0.4), (World.GROUPS, 0.5)),
    World.GROUP: ((World.PAIRS, 0.15),),
    World.DAMAGE: ((World.PAIRS, 0.15),),
}
"""How often a seed of these is of another world; drawn behind VARIANTS, apart from them."""


@dataclass(frozen=True, slots=True)
class Run:
    """One seed in one world. `failure` is one line with the command that repeats it, None when all held."""

    world: World
    seed: int
    failure: str | None = None
    virtual_ms: int = 0
    elections: int = 0
    acknowledged: int = 0
    faults: Mapping[str, int] | None = None


def world_of(seed: int) -> World:
    """A seed draws everything, its world too."""
    world = random.Random(f"{seed} world").choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    is_variant = world in VARIANTS and random.Random(f"{seed} variant").random() < 0.5
    if is_variant:
        return VARIANTS[world]
    rarer = RARER_VARIANTS.get(world, ())
    draw = random.Random(f"{seed} rarer variant").random()
    for variant, probability in rarer:
        if draw < probability:
            return variant
        draw -= probability
    return world


def run(seed: int, world: World | None = None) -> Run:
    """Run a seed to its end, in the world it draws when none is given."""
    world = world or world_of(seed)
    gc.disable()  # collected between runs: within one it would cost a third of the time
    try:
        with seed_limit():
            return _RUNNERS[world](seed)
    except Exception as error:  # noqa: BLE001 (a run may break in any way; each is a finding)
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return Run(
            world, seed, f"{world} seed {seed}: {text[:500]} (scripts/sim {seed} --world {world} --trace)"
        )
    finally:
        gc.enable()
        gc.collect()


def trace(seed: int, world: World | None = None) -> tuple[list[str], Run]:
    """The steps of a run and how it ended."""
    world = world or world_of(seed)
    made = _make_node(seed, world, True) if world in _NODE_WORLDS else _make_group(seed, world, True)
    try:
        made.run()
        failure = None
    except Exception as error:  # noqa: BLE001 (as in run)
        failure = f"{type(error).__name__}: {error}; {made.describe()}"
    lines = made.lines if isinstance(made, NodeWorld) else made.checker.lines
    return [str(made.options), *lines], Run(world, seed, failure)


_NODE_WORLDS = (
    *(World.NODE, World.STALLS, World.STRANGERS, World.CLIENTS, World.TRANSACTIONS),
    *(World.WRITERS, World.TIMERS, World.POPS, World.DELETIONS, World.NODE_PAIRS, World.REPLICATED),
    *(World.CHOICES, World.MEMBERS, World.RETENTIONS, World.RECOVERIES, World.UPGRADES),
    World.GROUPS,
)


_DRAWN = {
    World.STALLS: node_options.draw_stalling_options,
    World.STRANGERS: node_options.draw_hostile_options,
    World.NODE_PAIRS: node_options.draw_pair_options,
    World.REPLICATED: node_options.draw_replicated_options,
    World.MEMBERS: node_options.draw_changing_options,
    World.RETENTIONS: node_options.draw_retaining_options,
    World.RECOVERIES: node_options.draw_recovering_options,
    World.UPGRADES: node_options.draw_upgrading_options,
}
"""Worlds of the plain clients."""


NodeWorld = node_world.World | GroupsWorld


def _make_node(seed: int, world: World, is_tracing: bool = False) -> NodeWorld:
    if world is World.GROUPS:
        return GroupsWorld(node_options.draw_groups_options(seed), is_tracing=is_tracing)
    if world is World.TRANSACTIONS:
        options = transaction_options(seed)
        return node_world.World(options, workload=transaction_workload, is_tracing=is_tracing)
    if world is World.TIMERS:
        return node_world.World(timer_options(seed), workload=timer_workload, is_tracing=is_tracing)
    if world is World.POPS:
        return node_world.World(pop_options(seed), workload=pop_workload, is_tracing=is_tracing)
    draw = _DRAWN.get(world)
    if draw is not None:
        return node_world.World(draw(seed), is_tracing=is_tracing)
    options = node_options.draw_options(seed)
    if world is World.DELETIONS:
        options = deletion_options(options)
        return node_world.World(options, workload=deletion_workload, is_tracing=is_tracing)
    if world is World.CHOICES:
        return node_world.World(options, workload=read_workload, is_tracing=is_tracing)
    if world is World.WRITERS:
        return node_world.World(options, workload=sequenced_workload, is_tracing=is_tracing)
    if world is World.CLIENTS:
        return node_world.World(options, workload=group_workload, is_tracing=is_tracing)
    return node_world.World(options, is_tracing=is_tracing)


def _make_group(seed: int, world: World, is_tracing: bool = False) -> group_world.World:
    is_pair = world is World.PAIRS
    if is_pair:
        world = random.Random(f"{seed} pair").choice((World.GROUP, World.DAMAGE, World.DISK))
    draw = {
        World.GROUP: group_options.draw_options,
        World.DAMAGE: group_options.draw_damaging_options,
        World.READS: group_options.draw_reading_options,
        World.DISK: disk_options,
    }[world]
    options = group_options.of_two(draw(seed)) if is_pair else draw(seed)
    make_log = make_disk_log if world is World.DISK else group_world.make_memory_log
    return group_world.World(options, make_log=make_log, is_tracing=is_tracing)


def _run_node(world: World) -> Callable[[int], Run]:
    def run_one(seed: int) -> Run:
        summary = _make_node(seed, world).run()
        faults = Counter(summary.faults)
        return Run(world, seed, None, summary.virtual_ms, summary.elections, summary.acknowledged, faults)

    return run_one


def _run_group(world: World) -> Callable[[int], Run]:
    def run_one(seed: int) -> Run:
        summary = _make_group(seed, world).run()
        return Run(
            world, seed, None, summary.virtual_ms, summary.elections, summary.acknowledged, summary.faults
        )

    return run_one


_RUNNERS: dict[World, Callable[[int], Run]] = {
    World.NODE: _run_node(World.NODE),
    World.STALLS: _run_node(World.STALLS),
    World.STRANGERS: _run_node(World.STRANGERS),
    World.CLIENTS: _run_node(World.CLIENTS),
    World.TRANSACTIONS: _run_node(World.TRANSACTIONS),
    World.WRITERS: _run_node(World.WRITERS),
    World.TIMERS: _run_node(World.TIMERS),
    World.POPS: _run_node(World.POPS),
    World.DELETIONS: _run_node(World.DELETIONS),
    World.CHOICES: _run_node(World.CHOICES),
    World.GROUP: _run_group(World.GROUP),
    World.DAMAGE: _run_group(World.DAMAGE),
    World.READS: _run_group(World.READS),
    World.DISK: _run_group(World.DISK),
    World.PAIRS: _run_group(World.PAIRS),
    World.NODE_PAIRS: _run_node(World.NODE_PAIRS),
    World.REPLICATED: _run_node(World.REPLICATED),
    World.MEMBERS: _run_node(World.MEMBERS),
    World.RETENTIONS: _run_node(World.RETENTIONS),
    World.RECOVERIES: _run_node(World.RECOVERIES),
    World.UPGRADES: _run_node(World.UPGRADES),
    World.GROUPS: _run_node(World.GROUPS),
}
