"""Where the seeds that nobody ran yet begin."""

import os
import random

SEED_BITS = 40
VARIABLE = "LEDGERMQ_FIRST_SEED"


def first_new_seed() -> int:
    """The number in LEDGERMQ_FIRST_SEED, by which a whole test run can be repeated; without it any.

    Raises: ValueError when that is no number.
    """
    given = os.environ.get(VARIABLE)
    return int(given) if given else random.SystemRandom().getrandbits(SEED_BITS)
