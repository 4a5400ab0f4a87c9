"""The options of one run, drawn by its seed (swarm testing: each run has some faults and not others)."""

import enum
import random
from dataclasses import dataclass, field, replace
from typing import Any

from dledger.core.config import Config
from tests.simulation.damage_options import DamageOptions, draw_damage
from tests.simulation.members import MembersOptions, draw_members
from tests.simulation.network import NetworkOptions
from tests.simulation.surroundings import DiskOptions

FAST_TIMES = {
    "heartbeat_interval_ms": 50,
    "election_timeout_min_ms": 150,
    "election_timeout_max_ms": 300,
    "push_timeout_ms": 200,
    "compare_timeout_ms": 400,
    "commit_interval_ms": 200,
    "abnormal_check_interval_ms": 200,
    "wait_ack_timeout_ms": 600,
    "preferred_check_interval_ms": 200,
    "preferred_steady_ms": 300,
    "transfer_timeout_ms": 200,
}


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """Mean virtual milliseconds between faults of a kind; 0 = never.

    `leader_bias`: how often a fault is meant for the leader.
    """

    crash_ms: int = 0
    crash_majority_probability: float = 0.0
    crash_all_probability: float = 0.0
    down_max_ms: int = 3_000
    partition_ms: int = 0
    partition_max_ms: int = 4_000
    pause_ms: int = 0
    pause_max_ms: int = 2_500
    transfer_ms: int = 0
    disk_full_ms: int = 0
    retention_ms: int = 0
    checkpoint_ms: int = 1_000
    spurious_hint_ms: int = 0
    leader_bias: float = 0.5
    crash_voting_probability: float = 0.0
    crash_leading_probability: float = 0.0
    crash_cutting_probability: float = 0.0
    crash_delay_max_us: int = 20_000
    is_ring: bool = False
    """A majorities ring instead of a bridge."""


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """Clients: each proposes a batch every `interval_ms` on average.

    They hold back while a leader has more than `backlog_max` entries uncommitted.
    """

    clients: int = 2
    interval_ms: int = 50
    batch_max: int = 4
    body_bytes_max: int = 64
    backlog_max: int = 10_000


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that decides a run, the seed of its chance included."""

    seed: int
    nodes: int = 3
    safety_ms: int = 8_000
    skew_ppm: int = 0
    file_bytes: int = 1 << 20
    config: dict[str, int] = field(default_factory=dict)
    preferred_leader: int | None = None
    is_encoded: bool = False
    network: NetworkOptions = field(default_factory=NetworkOptions)
    disk: DiskOptions = field(default_factory=DiskOptions)
    faults: FaultOptions = field(default_factory=FaultOptions)
    workload: WorkloadOptions = field(default_factory=WorkloadOptions)
    damage: DamageOptions = field(default_factory=DamageOptions)
    members: MembersOptions = field(default_factory=MembersOptions)
    read_interval_ms: int = 0
    """Mean virtual milliseconds between reads; 0 = none."""

    def config_of(self, number: int) -> Config:
        """Of a first member, or of a spare node, which has a number beyond them."""
        names = tuple(f"n{n}" for n in range(self.nodes))
        preferred = None if self.preferred_leader is None else names[self.preferred_leader]
        settings: dict[str, Any] = {"preferred_leader_id": preferred, **self.config}
        return Config(group="sim", self_id=f"n{number}", peers=names, **settings)


def draw_options(seed: int) -> Options:
    """The options of a seed; always the same ones."""
    rng = random.Random(seed)
    nodes = rng.choice((1, 3, 3, 3, 3, 5, 5))
    return Options(
        seed=seed,
        nodes=nodes,
        safety_ms=rng.choice((4_000, 8_000, 12_000)),
        skew_ppm=rng.choice((0, 0, 1_000, 100_000)),
        file_bytes=rng.choice((1 << 10, 1 << 13, 1 << 20)),
        config=_draw_config(rng) | _draw_catch_up(seed),
        preferred_leader=rng.randrange(nodes) if rng.random() < 0.2 else None,
        is_encoded=rng.random() < 0.25,
        network=_draw_network(rng),
        disk=_draw_disk(rng),
        faults=replace(_draw_faults(rng), is_ring=random.Random(f"{seed} ring").random() < 0.5),
        workload=_draw_workload(rng),
    )


def draw_damaging_options(seed: int) -> Options:
    """As `draw_options`, and disks are damaged too: another family, so that each seed keeps its meaning."""
    return replace(draw_options(seed), damage=draw_damage(seed))


def of_two(options: Options) -> Options:
    """The same for a group of two, in which nothing is committed and no leader elected without both."""
    preferred = options.preferred_leader
    return replace(options, nodes=2, preferred_leader=None if preferred is None else preferred % 2)


def draw_reading_options(seed: int) -> Options:
    """As one of the others, and there are reads by read index: another family again."""
    rng = random.Random(f"{seed} reads")
    draw = rng.choice((draw_options, draw_options, draw_damaging_options))
    options = draw(seed)
    if rng.random() < 0.5:  # a leader that was cut off goes on for long after another one was elected
        options = replace(options, config=options.config | {"election_timeout_max_ms": 5_000})
    return replace(options, read_interval_ms=rng.choice((5, 20, 100)))


def draw_changing_options(seed: int) -> Options:
    """As `draw_options`, and the members change: another family again."""
    options = draw_options(seed)
    rng = random.Random(f"{seed} members config")
    config = {
        **options.config,
        "promotion_lag_bytes": rng.choice((1, 200, 10_000)),
        "departure_ms": rng.choice((1, 300, 10_000)),
    }
    return replace(options, config=config, preferred_leader=None, members=draw_members(seed))


class Family(enum.StrEnum):
    """What a seed draws besides the faults of all: nothing, disks that lose their content, members that
    change, or reads by read index with one of the others.
    """

    SOUND = "sound"
    DAMAGE = "damage"
    MEMBERS = "members"
    READS = "reads"


def draw_of(family: Family, seed: int) -> Options:
    """The options of a seed in this family."""
    draw = {
        Family.SOUND: draw_options,
        Family.DAMAGE: draw_damaging_options,
        Family.MEMBERS: draw_changing_options,
        Family.READS: draw_reading_options,
    }[family]
    return draw(seed)


def _maybe(rng: random.Random, probability: float, low: int, high: int) -> int:
    """A number between low and high with this probability, else 0."""
    return rng.randint(low, high) if rng.random() < probability else 0


def _draw_config(rng: random.Random) -> dict[str, int]:
    config: dict[str, int] = {}
    if rng.random() < 0.5:
        config |= FAST_TIMES
    if rng.random() < 0.3:
        config["election_timeout_max_ms"] = config.get("election_timeout_min_ms", 900)
    choices = {
        "push_bytes_max": (1, 200, 1_000),
        "pending_pushes_max": (1, 2, 10),
        "pending_push_bytes_max": (1, 500, 4_000),
        "pending_appends_max": (4, 20),
        "out_of_order_pushes_max": (1, 3),
        "out_of_order_bytes_max": (1, 500),
        "throttle_lag_bytes": (1, 1_000),
        "throttle_bytes_per_s": (20_000, 100_000),
        "transfer_lag_max": (1, 5),
        "disconnect_election_delay_max_ms": (1, 500),
    }
    for name, values in choices.items():
        if rng.random() < 0.25:
            config[name] = rng.choice(values)
    return config


def _draw_catch_up(seed: int) -> dict[str, int]:
    rng = random.Random(f"{seed} catch up")
    if rng.random() < 0.5:
        return {}
    return {
        "catch_up_lag_bytes": rng.choice((1, 300, 1_000)),
        "catch_up_bytes_per_s_min": rng.choice((20_000, 100_000)),
    }


def _draw_network(rng: random.Random) -> NetworkOptions:
    return NetworkOptions(
        delay_min_us=rng.choice((50, 100, 1_000)),
        delay_max_us=rng.choice((1_000, 2_000, 30_000)),
        slow_probability=rng.choice((0.0, 0.0, 0.01, 0.1)),
        slow_max_us=rng.choice((50_000, 500_000, 3_000_000)),
        loss_probability=rng.choice((0.0, 0.0, 0.01, 0.1, 0.3)),
        repeat_probability=rng.choice((0.0, 0.0, 0.02, 0.2)),
        hint_probability=rng.choice((0.0, 0.5, 1.0, 1.0)),
        is_ordered=rng.random() < 0.6,
    )


def _draw_disk(rng: random.Random) -> DiskOptions:
    return DiskOptions(
        write_min_us=100,
        write_max_us=rng.choice((500, 3_000, 3_000, 30_000)),
        stall_probability=rng.choice((0.0, 0.0, 0.02, 0.2)),
        stall_max_us=rng.choice((20_000, 300_000, 1_500_000)),
        turn_max_us=rng.choice((0, 50, 50, 2_000)),
    )


def _draw_faults(rng: random.Random) -> FaultOptions:
    return FaultOptions(
        crash_ms=_maybe(rng, 0.6, 200, 3_000),
        crash_majority_probability=rng.choice((0.0, 0.2)),
        crash_all_probability=rng.choice((0.0, 0.2)),
        down_max_ms=rng.choice((50, 500, 4_000)),
        partition_ms=_maybe(rng, 0.6, 200, 3_000),
        partition_max_ms=rng.choice((200, 1_000, 5_000)),
        pause_ms=_maybe(rng, 0.25, 300, 3_000),
        transfer_ms=_maybe(rng, 0.3, 100, 2_000),
        disk_full_ms=_maybe(rng, 0.15, 500, 3_000),
        retention_ms=_maybe(rng, 0.35, 50, 2_000),
        checkpoint_ms=rng.choice((0, 100, 1_000)),
        spurious_hint_ms=_maybe(rng, 0.25, 50, 1_000),
        leader_bias=rng.choice((0.0, 0.5, 0.9)),
        crash_voting_probability=rng.choice((0.0, 0.0, 0.1, 0.4)),
        crash_leading_probability=rng.choice((0.0, 0.0, 0.3, 0.7)),
        crash_delay_max_us=rng.choice((1_000, 20_000, 200_000)),
    )


def _draw_workload(rng: random.Random) -> WorkloadOptions:
    return WorkloadOptions(
        clients=rng.choice((1, 2, 4)),
        interval_ms=rng.choice((20, 50, 200)),
        batch_max=rng.choice((1, 1, 3, 10)),
        body_bytes_max=rng.choice((16, 64, 600)),
        backlog_max=rng.choice((10, 100, 500)),
    )
