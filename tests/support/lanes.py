"""How tests are dealt out to the workers of pytest-xdist: by file, and those with Spark in two lots."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

SPARK = "tests/spark"
_STOCK = "stock"
WITH_JAVA_BROKERS = (
    f"{SPARK}/test_log.py",
    f"{SPARK}/test_source_{_STOCK}.py",
    f"{SPARK}/test_sink_{_STOCK}.py",
)
QUICK = ("tests/golden", "tests/unit")
"""Folders with most of the tests, of which none starts processes: a run of those that do passes them by."""


class Lanes(LoadFileScheduling):  # type: ignore[misc]  # xdist says nothing of its types
    """A file stays in one worker. The tests with Spark are two lots, one of them that with brokers in Java: a
    session of Spark is expensive to start, as are these brokers.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(WITH_JAVA_BROKERS):
            return f"{SPARK} {_STOCK}"
        return SPARK if nodeid.startswith(f"{SPARK}/") else str(super()._split_scope(nodeid))
