"""dledger.core.leadership: the fast arithmetic against counting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.core.leadership import committable_index, quorum_index


@pytest.mark.parametrize(
    ("watermarks", "quorum", "expected"),
    [
        ([7], 1, 7),
        ([7, 5], 2, 5),
        ([101, 100, 90], 2, 100),
        ([9, -1, -1], 2, -1),
        ([9, 9, 3, 1], 3, 3),
        ([1, 2, 3, 4, 5], 3, 3),
        ([5, 5, 5, -1, -1], 3, 5),
    ],
)
def test_quorum_index_of_groups_even_and_odd(watermarks: list[int], quorum: int, expected: int) -> None:
    assert quorum_index(watermarks, quorum) == expected


@given(st.lists(st.integers(-1, 9), min_size=1, max_size=7))
def test_quorum_index_equals_the_count_of_the_article(watermarks: list[int]) -> None:
    """QuorumAckChecker 0.2.x: for each value, how many others are at least as high."""
    quorum = len(watermarks) // 2 + 1
    counted = max(index for index in watermarks if sum(other >= index for other in watermarks) >= quorum)
    assert quorum_index(watermarks, quorum) == counted


@pytest.mark.parametrize("quorum", [0, 4])
def test_impossible_quorum_is_a_broken_invariant(quorum: int) -> None:
    with pytest.raises(AssertionError, match=f"quorum {quorum} of 3"):
        quorum_index([1, 2, 3], quorum)


@pytest.mark.parametrize(
    ("watermarks", "term_start_index", "commit_index", "expected"),
    [
        ([9, 9, 0], 5, 4, 9),
        ([9, 4, 0], 5, 3, 3),  # on a majority, but of an earlier term: Raft 5.4.2
        ([9, 5, 0], 5, 3, 5),
        ([9, 7, 0], 5, 8, 8),  # never back
    ],
)
def test_committable_index(
    watermarks: list[int], term_start_index: int, commit_index: int, expected: int
) -> None:
    assert committable_index(watermarks, 2, term_start_index, commit_index) == expected
