"""Members with certificates, beside machines that do not belong to their group."""

from tests.node_simulation.options import draw_hostile_options
from tests.node_simulation.world import World

SEEDS = 2
KINDS = {
    *("plain text", "garbage", "garbage as TLS", "half a greeting"),
    *("another authority", "another group", "no member", "silence"),
}


def test_strangers_change_nothing() -> None:
    kinds: set[str] = set()
    acknowledged = 0
    for seed in range(SEEDS):
        summary = World(draw_hostile_options(seed)).run()
        kinds |= {kind.removeprefix("stranger: ") for kind in summary.faults}
        acknowledged += summary.acknowledged
    assert kinds >= KINDS
    assert acknowledged > 0


def test_certificates_leave_a_run_to_its_seed() -> None:
    worlds = [World(draw_hostile_options(2), is_tracing=True) for _ in range(2)]
    first, second = (world.run() for world in worlds)
    assert steps(worlds[0]) == steps(worlds[1])
    assert first == second


def steps(world: World) -> list[str]:
    """Without how long puts took, which is measured in real time."""
    return [line for line in world.lines if " ms till " not in line]
