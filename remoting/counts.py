"""How many requests came, and how many were refused, by code. Pure.

The tables are as long as what this process knows: a code that nobody serves counts as UNKNOWN.
"""

from typing import Final

from remoting.codes import ResponseCode

UNKNOWN: Final = -1
NOTHING_THERE: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.POLLING_TIMEOUT,
    }
)
"""Codes of answers that refuse nothing: what was asked for was told, or is not there."""


class RequestCounts:
    """Counts of one server, since its start."""

    def __init__(self) -> None:
        self.requests: dict[int, int] = {}
        """By request code."""
        self.refused: dict[tuple[int, int], int] = {}
        """By the codes of request and answer."""

    def add(self, code: int, count: int) -> None:
        """So many requests of a known code came."""
        self.requests[code] = self.requests.get(code, 0) + count

    def refuse(self, code: int, answer_code: int, count: int = 1) -> None:
        """So many of them are answered with this code."""
        if answer_code not in NOTHING_THERE:
            key = (code, int(answer_code))
            self.refused[key] = self.refused.get(key, 0) + count
