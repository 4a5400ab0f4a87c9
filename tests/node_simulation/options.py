"""The options of one run, drawn by its seed: each run has some faults and not others (swarm testing)."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from tests.node_simulation.machine import DiskOptions
from tests.node_simulation.net import NetworkOptions
from tests.node_simulation.retentions import RetentionOptions, draw_retention
from tests.node_simulation.stalls import StallOptions, draw_stalls
from tests.node_simulation.strangers import StrangerOptions, draw_strangers

FAST_TIMES = {
    "heartbeat_interval_ms": 50,
    "election_timeout_min_ms": 150,
    "election_timeout_max_ms": 300,
    "wait_ack_timeout_ms": 600,
}

IN_BOUNDS = {"data_file_bytes": 8 << 20, "index_file_bytes": 16 << 10}
"""Of what a file may say: a node checks all its settings when one of them is changed."""


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """Mean virtual milliseconds between faults of a kind; 0 = never.

    `leader_bias`: how often a fault is meant for the leader. `mid_write_probability`: how often a crash waits
    for the process to be between two file operations.
    """

    crash_ms: int = 0
    crash_majority_probability: float = 0.0
    crash_all_probability: float = 0.0
    power_probability: float = 0.0
    mid_write_probability: float = 0.0
    down_max_ms: int = 3_000
    terminate_ms: int = 0
    pause_ms: int = 0
    pause_max_ms: int = 3_000
    clock_jump_ms: int = 0
    partition_ms: int = 0
    partition_max_ms: int = 5_000
    transfer_ms: int = 0
    disk_full_ms: int = 0
    disk_error_ms: int = 0
    damage_ms: int = 0
    name_server_ms: int = 0
    client_ms: int = 0
    leader_bias: float = 0.5


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """Each producer sends a message every `interval_ms` on average."""

    producers: int = 2
    consumers: int = 1
    interval_ms: int = 100
    body_bytes_max: int = 64
    topics: int = 1
    queues: int = 2


@dataclass(frozen=True, slots=True)
class MembershipOptions:
    """`change_ms`: mean virtual time between two changes. `voters_max`: more are not added. Probabilities of
    what becomes of a machine that was removed.
    """

    change_ms: int = 3_000
    voters_max: int = 5
    machines_max: int = 7
    left_running_probability: float = 0.5
    stranger_probability: float = 0.3


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
    """Longest virtual times. `first_ms`: until a majority is gone. `cut_max_ms`: for which it is cut off from
    the others before. `notice_ms`: until the operator stops what is left.

    Probabilities: that he takes another node than the one with the most complete log; that a disk is gone
    with its machine; that one with its old files is started, each second; that the operator adds one and has
    not emptied it; that one of those that are left has lost its vote file; that a node with an empty disk is
    killed once it has a vote, before its first entry.
    """

    first_ms: int = 10_000
    cut_max_ms: int = 3_000
    notice_ms: int = 3_000
    disasters_max: int = 1
    other_probability: float = 0.25
    disk_gone_probability: float = 0.5
    return_probability: float = 0.2
    forget_probability: float = 0.3
    vote_lost_probability: float = 0.0
    early_kill_probability: float = 0.0


@dataclass(frozen=True, slots=True)
class UpgradeOptions:
    """`step_ms`: mean virtual time between two steps of an upgrade. `is_finished`: whether it ends with a
    higher format level. Probabilities: that a node goes back to the release before; that the operator ends
    the upgrade too early; that a node is stopped by SIGTERM.
    """

    step_ms: int = 1_500
    down_max_ms: int = 1_000
    is_finished: bool = True
    back_probability: float = 0.2
    early_probability: float = 0.2
    clean_probability: float = 0.7


@dataclass(frozen=True, slots=True)
class GroupsOptions:
    """Several groups on the same hosts. `add_ms` and `drain_ms`: when the operator adds a group and drains
    one, in virtual time from the begin of the faults; 0 = never. `route_ms`: how often producers ask for
    routes; `quiet_ms`: for how long a group must get no message before it counts as left.

    `host_*_ms`: mean virtual times between faults of whole hosts; 0 = never. `delay_probability`: that a
    message is sent for later; `retry_probability`: that a consumer sends one back.
    """

    groups: int = 2
    name_servers: int = 2
    add_ms: int = 4_000
    drain_ms: int = 8_000
    route_ms: int = 3_000
    quiet_ms: int = 6_000
    slow_interval_ms: int = 5_000
    delay_probability: float = 0.1
    retry_probability: float = 0.1
    host_crash_ms: int = 0
    host_pause_ms: int = 0
    host_cut_ms: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that decides a run, the seed of its chance included."""

    seed: int
    nodes: int = 3
    safety_ms: int = 30_000
    skew_ppm: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    disk: DiskOptions = field(default_factory=DiskOptions)
    faults: FaultOptions = field(default_factory=FaultOptions)
    workload: WorkloadOptions = field(default_factory=WorkloadOptions)
    stalls: StallOptions = field(default_factory=StallOptions)
    membership: MembershipOptions | None = None
    """With them members are added, removed and replaced."""
    recovery: RecoveryOptions | None = None
    """With them a majority is gone for good."""
    retention: RetentionOptions | None = None
    """With them the begin of the log is deleted all the time."""
    upgrade: UpgradeOptions | None = None
    """With them the nodes are of the release before at first. Members change only after the upgrade."""
    strangers: StrangerOptions | None = None
    """With them the members of the group have certificates."""
    groups: GroupsOptions | None = None
    """With them there are several groups: only `groups_world` has them."""


def draw_options(seed: int) -> Options:
    """The options of a seed; always the same ones."""
    rng = random.Random(seed)
    return Options(
        seed=seed,
        nodes=rng.choice((1, 3, 3, 3, 3, 3, 5)),
        safety_ms=rng.choice((15_000, 30_000, 45_000)),
        skew_ppm=rng.choice((0, 0, 1_000, 50_000)),
        config=_draw_config(rng),
        network=_draw_network(rng),
        disk=_draw_disk(rng),
        faults=_draw_faults(rng),
        workload=_draw_workload(rng),
    )


def draw_stalling_options(seed: int) -> Options:
    """As `draw_options`, and loops stand still: another family, so that each seed keeps its meaning."""
    return replace(draw_options(seed), stalls=draw_stalls(seed))


def draw_hostile_options(seed: int) -> Options:
    """As `draw_options`, with certificates and those who do not belong to the group: another family too."""
    return replace(draw_options(seed), strangers=draw_strangers(seed))


def draw_membership(seed: int) -> MembershipOptions:
    """The options of a seed; always the same ones."""
    rng = random.Random(f"{seed} membership")
    return MembershipOptions(
        change_ms=rng.choice((500, 2_000, 5_000)),
        voters_max=rng.choice((3, 5)),
        left_running_probability=rng.choice((0.0, 0.5, 1.0)),
        stranger_probability=rng.choice((0.0, 0.5)),
    )


def draw_changing_options(seed: int) -> Options:
    """As `draw_options`, and members change: another family too. Disks are damaged only where a machine is
    replaced that is gone.
    """
    options = draw_options(seed)
    nodes = random.Random(f"{seed} first members").choice((1, 2, 3, 3, 3, 5))
    faults = replace(options.faults, damage_ms=0, disk_error_ms=0)
    return replace(options, nodes=nodes, faults=faults, membership=draw_membership(seed))


def draw_retaining_options(seed: int) -> Options:
    """As `draw_changing_options`, and the begin of the log is deleted all the time: a node that was away, or
    is new, lacks entries that its leader has not got any more. Another family too.
    """
    rng = random.Random(f"{seed} retaining")
    options = draw_changing_options(seed)
    retention = draw_retention(seed, do_clocks_jump=options.faults.clock_jump_ms > 0)
    assert options.membership is not None
    return replace(
        options,
        config=options.config | retention.config(),
        safety_ms=30_000,
        faults=replace(
            options.faults,
            down_max_ms=rng.choice((3_000, 15_000)),
            disk_full_ms=0 if retention.waits else options.faults.disk_full_ms,  # no one is waited for then
        ),
        workload=replace(options.workload, interval_ms=50, body_bytes_max=3_000),
        membership=replace(options.membership, change_ms=rng.choice((1_000, 3_000))),
        retention=retention,
    )


def draw_recovery(seed: int) -> RecoveryOptions:
    """The options of a seed; always the same ones."""
    rng = random.Random(f"{seed} recovery")
    return RecoveryOptions(
        first_ms=rng.choice((3_000, 10_000)),
        cut_max_ms=rng.choice((0, 1_000, 5_000)),
        notice_ms=rng.choice((100, 3_000)),
        disasters_max=rng.choice((1, 1, 2)),
        other_probability=rng.choice((0.0, 0.3, 1.0)),
        disk_gone_probability=rng.choice((0.0, 0.5, 1.0)),
        return_probability=rng.choice((0.1, 0.5)),
        forget_probability=rng.choice((0.0, 0.5)),
        vote_lost_probability=rng.choice((0.0, 0.0, 0.3)),
        early_kill_probability=rng.choice((0.0, 0.5)),
    )


def draw_recovering_options(seed: int) -> Options:
    """As `draw_options`, and a majority is gone for good: another family too. Without other damage of disks,
    which would explain a loss. In half of the seeds members change before and after, too.
    """
    options = draw_options(seed)
    nodes = random.Random(f"{seed} first members").choice((2, 3, 3, 3, 4, 5))
    faults = replace(options.faults, damage_ms=0, disk_error_ms=0)
    membership = random.Random(f"{seed} changes and recovery").choice((None, draw_membership(seed)))
    recovery = draw_recovery(seed)
    return replace(options, nodes=nodes, faults=faults, membership=membership, recovery=recovery)


def draw_upgrade(seed: int) -> UpgradeOptions:
    """The options of a seed; always the same ones."""
    rng = random.Random(f"{seed} upgrade")
    return UpgradeOptions(
        step_ms=rng.choice((300, 1_000, 3_000)),
        down_max_ms=rng.choice((100, 2_000)),
        is_finished=rng.random() < 0.7,
        back_probability=rng.choice((0.0, 0.2, 0.5)),
        early_probability=rng.choice((0.0, 0.3)),
        clean_probability=rng.choice((0.0, 0.5, 1.0)),
    )


def draw_upgrading_options(seed: int) -> Options:
    """As `draw_options`, and the nodes are of the release before at first: another family too. In half of the
    seeds members change when the upgrade is over.
    """
    options = draw_options(seed)
    rng = random.Random(f"{seed} first release")
    faults = replace(options.faults, damage_ms=0, disk_error_ms=0)
    membership = rng.choice((None, draw_membership(seed)))
    nodes = rng.choice((1, 2, 3, 3, 3, 3, 5))
    upgrade = draw_upgrade(seed)
    return replace(options, nodes=nodes, faults=faults, membership=membership, upgrade=upgrade)


def draw_groups_options(seed: int) -> Options:
    """As `draw_options`, for several groups: another family too. Faults come less often to each of them, and
    disks are not damaged.
    """
    rng = random.Random(f"{seed} groups")
    options = draw_options(seed)
    route_ms = rng.choice((1_000, 3_000))
    groups = GroupsOptions(
        groups=rng.choice((2, 2, 3)),
        name_servers=rng.choice((1, 2, 2)),
        add_ms=_maybe(rng, 0.6, 1, 5_000),
        drain_ms=_maybe(rng, 0.8, 1, 8_000),
        route_ms=route_ms,
        quiet_ms=2 * route_ms,
        slow_interval_ms=rng.choice((1_000, 4_000, 10_000)),
        delay_probability=rng.choice((0.0, 0.1, 0.5)),
        retry_probability=random.Random(f"{seed} retries").choice((0.0, 0.1, 0.3)),
        host_crash_ms=_maybe(rng, 0.5, 3_000, 15_000),
        host_pause_ms=_maybe(rng, 0.3, 3_000, 15_000),
        host_cut_ms=_maybe(rng, 0.4, 3_000, 15_000),
    )
    return replace(
        options,
        nodes=rng.choice((1, 3, 3, 3)),
        safety_ms=rng.choice((15_000, 30_000)),
        config=options.config | IN_BOUNDS | {"register_period_ms": rng.choice((1_000, 5_000))},
        faults=replace(
            options.faults, damage_ms=0, disk_error_ms=0, name_server_ms=_maybe(rng, 0.5, 2_000, 10_000)
        ),
        workload=replace(options.workload, topics=1, interval_ms=rng.choice((100, 300, 4_000))),
        groups=groups,
    )


def draw_replicated_options(seed: int) -> Options:
    """As `draw_options`, and acknowledged means in the page caches of a majority: another family too. Without
    damaged disks, which would explain every loss.
    """
    rng = random.Random(f"{seed} replicated")
    options = draw_options(seed)
    faults = replace(
        options.faults,
        crash_ms=options.faults.crash_ms or rng.randint(1_000, 10_000),
        power_probability=rng.choice((0.0, 0.3, 1.0)),
        crash_majority_probability=rng.choice((0.0, 0.3)),
        crash_all_probability=rng.choice((0.0, 0.3)),
        damage_ms=0,
    )
    nodes = rng.choice((2, options.nodes, options.nodes, options.nodes))
    config = options.config | {"durability": "replicated"}
    return replace(options, nodes=nodes, config=config, faults=faults)


def draw_pair_options(seed: int) -> Options:
    """As `draw_options`, for a group of two, and more often with damage: another family too."""
    rng = random.Random(f"{seed} pair")
    options = draw_options(seed)
    damage_ms = options.faults.damage_ms or _maybe(rng, 0.4, 2_000, 10_000)
    return replace(options, nodes=2, faults=replace(options.faults, damage_ms=damage_ms))


def _maybe(rng: random.Random, probability: float, low: int, high: int) -> int:
    """A number between low and high with this probability, else 0."""
    return rng.randint(low, high) if rng.random() < probability else 0


def _draw_config(rng: random.Random) -> dict[str, int]:
    config = {
        "data_file_bytes": rng.choice((16 << 10, 64 << 10, 256 << 10)),
        "index_file_bytes": rng.choice((1 << 10, 16 << 10)),
        "queue_file_bytes": rng.choice((200, 2_000, 20_000)),
        "entry_cache_bytes": rng.choice((0, 10_000, 16 << 20)),
        "state_snapshot_interval_ms": rng.choice((200, 2_000, 10_000)),
        "register_period_ms": rng.choice((1_000, 5_000, 30_000)),
    }
    if rng.random() < 0.3:
        config |= FAST_TIMES
    if rng.random() < 0.2:
        config["pending_appends_max"] = rng.choice((1, 5, 20))
    return config


def _draw_network(rng: random.Random) -> NetworkOptions:
    return NetworkOptions(
        delay_min_us=rng.choice((50, 100, 1_000)),
        delay_max_us=rng.choice((1_000, 2_000, 20_000)),
        slow_probability=rng.choice((0.0, 0.0, 0.01, 0.05)),
        slow_max_us=rng.choice((20_000, 300_000, 2_000_000)),
        loss_probability=rng.choice((0.0, 0.0, 0.001, 0.02)),
        split_probability=rng.choice((0.0, 0.1, 0.5)),
        window_bytes=rng.choice((2_048, 16_384, 262_144)),
        us_per_kib=rng.choice((0, 0, 10, 1_000)),
    )


def _draw_disk(rng: random.Random) -> DiskOptions:
    return DiskOptions(
        job_min_us=50,
        job_max_us=rng.choice((300, 3_000, 20_000)),
        stall_probability=rng.choice((0.0, 0.0, 0.01, 0.1)),
        stall_max_us=rng.choice((50_000, 500_000, 2_000_000)),
        turn_max_us=rng.choice((5, 50, 2_000)),
    )


def _draw_faults(rng: random.Random) -> FaultOptions:
    return FaultOptions(
        crash_ms=_maybe(rng, 0.7, 1_000, 10_000),
        crash_majority_probability=rng.choice((0.0, 0.2)),
        crash_all_probability=rng.choice((0.0, 0.2)),
        power_probability=rng.choice((0.0, 0.5, 1.0)),
        mid_write_probability=rng.choice((0.0, 0.5, 1.0)),
        down_max_ms=rng.choice((100, 1_000, 6_000)),
        terminate_ms=_maybe(rng, 0.25, 2_000, 15_000),
        pause_ms=_maybe(rng, 0.3, 1_000, 8_000),
        pause_max_ms=rng.choice((200, 2_000, 6_000)),
        clock_jump_ms=_maybe(rng, 0.25, 1_000, 8_000),
        partition_ms=_maybe(rng, 0.5, 1_000, 8_000),
        partition_max_ms=rng.choice((300, 3_000, 8_000)),
        transfer_ms=_maybe(rng, 0.3, 500, 5_000),
        disk_full_ms=_maybe(rng, 0.15, 2_000, 10_000),
        disk_error_ms=_maybe(rng, 0.2, 2_000, 15_000),
        name_server_ms=_maybe(rng, 0.15, 3_000, 15_000),
        client_ms=_maybe(rng, 0.3, 2_000, 15_000),
        damage_ms=_maybe(rng, 0.2, 1_000, 10_000),
        leader_bias=rng.choice((0.0, 0.5, 0.9)),
    )


def _draw_workload(rng: random.Random) -> WorkloadOptions:
    return WorkloadOptions(
        producers=rng.choice((1, 2, 4)),
        consumers=rng.choice((1, 2)),
        interval_ms=rng.choice((50, 150, 500)),
        body_bytes_max=rng.choice((16, 200, 3_000)),
        topics=rng.choice((1, 1, 2)),
        queues=rng.choice((1, 2, 4)),
    )
