"""How tests are dealt out to the workers of pytest-xdist: by file, and all those with Spark to one."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

SPARK = "tests/spark"
QUICK = ("tests/golden", "tests/unit")
"""Folders with most of the tests, of which none starts processes: a run of those that do passes them by."""


class Lanes(LoadFileScheduling):  # type: ignore[misc]  # xdist says nothing of its types
    """A file stays in one worker, and so do all tests with Spark: a session is expensive to start, and
    two would slow each other: Spark gives a Python worker ten seconds to start.
    """

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(f"{SPARK}/") else str(super()._split_scope(nodeid))
