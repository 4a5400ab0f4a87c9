"""Figures that tests take on their way: they travel with the tests' reports, from another process, too."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

MEASURED = "measured"
"""The name of such a user property of a test; its value is a line to be shown."""


def lines_of(reports: Iterable[pytest.TestReport]) -> list[str]:
    """The lines of these reports, in their order."""
    return [str(line) for report in reports for name, line in report.user_properties if name == MEASURED]
