"""The first of the new seeds of a test run."""

import os
import random

SEED_BITS = 40
VARIABLE = "LEDGERMQ_FIRST_SEED"


def first_new_seed() -> int:
    """The number in LEDGERMQ_FIRST_SEED, by which a whole test run can be repeated; without it any.

    Raises: ValueError when that is no number.
    """
    return given_seed() or random.SystemRandom().getrandbits(SEED_BITS)


def given_seed() -> int:
    """The number in LEDGERMQ_FIRST_SEED, the same in all processes of a test run; 0 without it.

    Raises: ValueError when that is no number.
    """
    return int(os.environ.get(VARIABLE) or "0")
