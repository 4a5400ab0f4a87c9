"""What the bench of the gRPC endpoint makes of its sides' figures."""

from typing import Any

import pytest

from bench.grpc_proxy import FRONT, ratios, table, used
from bench.processes import Usage


def one(number: int, side: str, load: str, **figures: Any) -> dict[str, Any]:
    return {"round": number, "side": side, "scenario": load, "figures": figures}


ROUNDS = [
    *(one(number, "own", "64 threads", per_second=rate) for number, rate in enumerate((30.0, 50.0, 40.0))),
    *(one(number, "proxy", "64 threads", per_second=rate) for number, rate in enumerate((9.0, 10.0, 90.0))),
    one(0, "java", "drain", failed="no figures"),
]


def test_ratios_are_of_medians_and_of_sides_that_have_the_figure() -> None:
    assert ratios(ROUNDS) == {"64 threads": {"per_second": {"proxy": 4.0}}}


def test_without_our_own_side_there_is_no_ratio() -> None:
    assert ratios(ROUNDS[3:]) == {}


def test_table_has_each_side_both_ratios_and_the_aim() -> None:
    row = next(line for line in table(ROUNDS).splitlines() if "| 64 threads | per_second" in line)
    assert [cell.strip() for cell in row.split("|")[3:-1]] == ["40", "10", "", "4", "", "≥ 4,000"]


@pytest.mark.parametrize(("messages", "us"), [(1_000, 1.0), (0, 1_000.0)])
def test_the_front_is_not_counted_among_the_nodes(messages: int, us: float) -> None:
    usage = {FRONT: Usage(50.0, 0.0, 0.001), "n0": Usage(20.0, 0.0, 0.001), "n1": Usage(30.0, 0.0, 0.002)}
    expected = {"front_us": us, "nodes_us": 3 * us, "front_mb": 50.0, "node_mb": 30.0}
    assert used(usage, messages) == expected
