"""What a peer's answer to COMPARE says about where its log leaves the leader's. Pure."""

from dataclasses import dataclass

from dledger.core.epochs import EpochCache
from dledger.core.messages import CompareResponse
from dledger.core.types import UNKNOWN_TERM, ResponseCode


@dataclass(frozen=True, slots=True)
class CompareAt:
    """Ask for this entry next."""

    index: int


@dataclass(frozen=True, slots=True)
class TruncateAt:
    """Drop what the peer holds from there on, or everything."""

    index: int
    is_reset: bool
    reason: str


def is_prefix(log: EpochCache, response: CompareResponse) -> bool:
    """Whether all the peer holds stands in the leader's log."""
    if response.code is ResponseCode.SUCCESS and response.end_index == response.compare_index:
        return True
    if response.end_index < response.begin_index:
        return log.begin_index <= response.begin_index <= log.end_index + 1
    term = log.term_at(response.end_index)
    return term != UNKNOWN_TERM and term == response.end_term


def next_step(log: EpochCache, response: CompareResponse) -> CompareAt | TruncateAt:
    """When the peer's log is no prefix."""
    if response.code is ResponseCode.SUCCESS:
        return TruncateAt(response.compare_index + 1, False, "it holds what we don't")
    if response.end_index < log.begin_index or response.begin_index > log.end_index:
        return TruncateAt(log.begin_index, True, "the logs do not meet")
    return _step_down(log, response)


def _step_down(log: EpochCache, response: CompareResponse) -> CompareAt | TruncateAt:
    """One step down per term: the last entry that can still match, by both sides' epochs."""
    index = response.conflict_index
    if response.conflict_term != UNKNOWN_TERM:
        if log.term_at(index) == response.conflict_term:
            return TruncateAt(index + 1, False, "its last common entry is known")
        index, _ = log.last_not_above(index, response.conflict_term)
    index = min(index, response.compare_index - 1)
    is_known = index >= log.begin_index or (index == log.begin_index - 1 and log.prev_term != UNKNOWN_TERM)
    if not is_known or index < response.begin_index - 1:
        return TruncateAt(log.begin_index, True, "what it would need was removed")
    return CompareAt(index)
