"""The simulated worlds that can notice a mutant, by name, and the search for a seed that does.

`python -m tests.mutants.worlds group 7 20 21` runs these seeds of a world until one fails, and prints one
line of JSON about it; nothing when none does.
"""

import gc
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.simulation.disk_options import disk_options, make_disk_log
from tests.simulation.options import Family, draw_reading_options
from tests.simulation.world import World, run_seed

NO_VERDICT = (ImportError, NameError, SyntaxError)
"""With one of these errors the mutant itself is wrong, not the product."""


def run_group(seed: int) -> None:
    """Replication: whole groups of the core on a model of the disk."""
    run_seed(seed)


def run_damage(seed: int) -> None:
    """The same, and disks lose logs, votes or everything."""
    run_seed(seed, family=Family.DAMAGE)


def run_members(seed: int) -> None:
    """The same without damage, and the members change."""
    run_seed(seed, family=Family.MEMBERS)


def run_reads(seed: int) -> None:
    """Replication with reads by read index; disks of some seeds are damaged."""
    World(draw_reading_options(seed)).run()


def run_disk(seed: int) -> None:
    """Groups on the real entry store, on a file system that loses power."""
    World(disk_options(seed), make_log=make_disk_log).run()


def run_node(seed: int) -> None:
    """Whole nodes, name server and clients."""
    from tests.node_simulation import world  # only here: it loads the whole product

    gc.disable()
    world.run_seed(seed)
    gc.enable()


def run_retentions(seed: int) -> None:
    """Whole nodes whose members change while the begin of the log is deleted."""
    _run_drawn(seed, "draw_retaining_options")


def run_recoveries(seed: int) -> None:
    """Whole nodes of a group whose majority is gone for good."""
    _run_drawn(seed, "draw_recovering_options")


def run_upgrades(seed: int) -> None:
    """Whole nodes of the release before, which are replaced by this one."""
    _run_drawn(seed, "draw_upgrading_options")


def run_groups(seed: int) -> None:
    """Several groups of whole nodes; one is added and one removed."""
    from tests.node_simulation import groups_world, options  # only here, as in run_node

    gc.disable()
    groups_world.GroupsWorld(options.draw_groups_options(seed)).run()
    gc.enable()


def _run_drawn(seed: int, draw: str) -> None:
    from tests.node_simulation import options, world  # only here, as in run_node

    gc.disable()
    world.World(getattr(options, draw)(seed)).run()
    gc.enable()


def run_stalls(seed: int) -> None:
    """The same, and loops stand still."""
    from tests.node_simulation import world  # only here, as in run_node

    gc.disable()
    world.run_seed(seed, is_stalling=True)
    gc.enable()


WORLDS: dict[str, Callable[[int], None]] = {
    "group": run_group,
    "damage": run_damage,
    "members": run_members,
    "reads": run_reads,
    "disk": run_disk,
    "node": run_node,
    "stalls": run_stalls,
    "retentions": run_retentions,
    "recoveries": run_recoveries,
    "upgrades": run_upgrades,
    "groups": run_groups,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """What a seed noticed."""

    seed: int
    words: str


def first_failure(world: str, seeds: Iterable[int]) -> Failure | None:
    """The first of these seeds whose run fails. Raises what shows that the mutant itself is broken."""
    run = WORLDS[world]
    for seed in seeds:
        try:
            run(seed)
        except NO_VERDICT:
            raise
        except Exception as error:  # noqa: BLE001 (a mutant may break in any way)
            return Failure(seed, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return None


def main() -> None:
    world, *seeds = sys.argv[1:]
    failure = first_failure(world, map(int, seeds))
    if failure is not None:
        print(json.dumps({"seed": failure.seed, "words": failure.words}))


if __name__ == "__main__":
    main()
