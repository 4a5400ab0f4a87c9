"""What differs between the run that guards a merge and `scripts/test --long`."""

import os

LONG_FACTOR = 10


def is_long_run() -> bool:
    """Whether `scripts/test --long` asked for everything."""
    return os.environ.get("LEDGERMQ_LONG") == "1"


def examples(count: int) -> int:
    """How many examples a property is tried on, for `max_examples`: `count`, ten times that in long runs."""
    return count * LONG_FACTOR if is_long_run() else count
