"""What of a node's disk a run damages: drawn apart from the other options, which so stay as they are."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DamageOptions:
    """Mean virtual milliseconds between damages; 0 = never.

    The weights: how often a damage shortens the durable log, loses term and vote, or both, or the whole disk.
    `is_fresh`: the group has never run before. `down_max_ms`: how long the struck node is away.
    """

    interval_ms: int = 0
    shorten_weight: int = 1
    vote_weight: int = 1
    both_weight: int = 1
    wipe_weight: int = 1
    is_fresh: bool = False
    down_max_ms: int = 500


def draw_damage(seed: int) -> DamageOptions:
    """The options of a seed; always the same ones."""
    rng = random.Random(f"{seed} repair")
    return DamageOptions(
        interval_ms=rng.choice((200, 500, 1_500)),
        shorten_weight=rng.choice((1, 1, 3)),
        vote_weight=rng.choice((0, 1, 3)),
        both_weight=rng.choice((0, 1, 3)),
        wipe_weight=rng.choice((0, 1, 3)),
        is_fresh=rng.random() < 0.7,
        down_max_ms=rng.choice((10, 200, 2_000)),
    )
