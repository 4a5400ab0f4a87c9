"""The plots of an audit's page."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rocketmq_spark.jobs.audit import page as audit_page

MIB = 2**20


def test_the_last_range_is_drawn_to_its_end_also_where_it_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[Axes] = []

    def keep(figure: Figure, label: str) -> str:
        drawn.extend(figure.axes)
        return ""

    monkeypatch.setattr(audit_page, "figure_html", keep)
    one = {"firstPosition": 0, "bytes": 2 * MIB, "entries": 1024, "lastIndex": 1023}
    two = {"firstPosition": 2 * MIB, "bytes": MIB, "entries": 1024, "lastIndex": 2047}
    for ranges, places, means in (([one], [0, 2], [2048, 2048]), ([one, two], [0, 2, 3], [2048, 1024, 1024])):
        audit_page._sizes({"ranges": ranges, "epochs": []})
        (line,) = drawn[-2].lines
        shown: list[Any] = [line.get_xdata(), line.get_ydata()]
        assert [list(values) for values in shown] == [places, means]
