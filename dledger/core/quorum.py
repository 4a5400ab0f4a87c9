"""QuorumAckChecker as pure functions over watermarks: up to where does a majority hold the leader's log?

A watermark is the last index up to which one member's *disk* is known to hold the leader's log of this term.
"""

from collections.abc import Iterable


def quorum_index(watermarks: Iterable[int], quorum: int) -> int:
    """The highest index that at least `quorum` members hold: the quorum-th of the falling watermarks.

    >>> quorum_index([101, 100, 90], 2)
    100
    """
    falling = sorted(watermarks, reverse=True)
    assert 1 <= quorum <= len(falling), f"quorum {quorum} of {len(falling)}"
    return falling[quorum - 1]


def committable_index(
    watermarks: Iterable[int], quorum: int, term_start_index: int, commit_index: int
) -> int:
    """The commit index after these watermarks: never lower than it was.

    Only entries of the leader's own term are committed by counting (Raft 5.4.2); those of earlier terms are
    with them. term_start_index is the leader's first entry: nothing before it counts by itself.
    """
    index = quorum_index(watermarks, quorum)
    return index if index > commit_index and index >= term_start_index else commit_index
