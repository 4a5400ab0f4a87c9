"""The garbage collector of a node: kept away from what lives as long as the process."""

import gc
from typing import Final

YOUNG_MAX: Final = 20_000
"""Objects made and not yet freed before the young ones are looked through. Requests come and go by their
reference counts; two thousand of them in flight stay below this."""
MIDDLE_MAX: Final = 20
OLD_MAX: Final = 50


def settle() -> None:
    """To be called when the node has started: what there is by now is never looked through again, and what
    comes is looked through seldom, so that no request waits while a whole heap is walked.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, MIDDLE_MAX, OLD_MAX)
