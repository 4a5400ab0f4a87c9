"""Medians, spreads and ratios of made-up rounds."""

from __future__ import annotations

from typing import Any

import pytest

from bench.summary import AIMS, Aim, derived, failed, lost, ratios, spread, summarize, values


def one(number: int, side: str, scenario: str, **figures: Any) -> dict[str, Any]:
    return {"round": number, "side": side, "scenario": scenario, "figures": figures}


ROUNDS = [
    *(one(number, "ledgermq", "sync64", per_second=rate) for number, rate in enumerate((15.0, 30.0, 45.0))),
    *(one(number, "java-dledger", "sync64", per_second=rate) for number, rate in enumerate((1.0, 2.0, 3.0))),
]


def test_spread_of_rounds() -> None:
    assert spread({0: 3.0, 1: 1.0, 2: 7.0}) == {"median": 3.0, "min": 1.0, "max": 7.0, "rounds": 3}


def test_ratio_is_of_medians_and_its_spread_of_rounds() -> None:
    (row,) = ratios([*ROUNDS, one(3, "ledgermq", "sync64", per_second=1000.0)])
    assert (row["ours"], row["theirs"]) == (37.5, 2.0)
    assert row["ratio"] == pytest.approx(18.75)
    assert (row["ratio_min"], row["ratio_max"]) == (15.0, 15.0)
    assert row["met"]


def test_ratio_of_a_side_not_measured_is_left_out() -> None:
    assert ratios(ROUNDS[:3]) == []


def test_figure_that_is_missing_in_a_round_is_left_out() -> None:
    rounds = [one(0, "ledgermq", "sync1", p50_ms=None), one(1, "ledgermq", "sync1", p50_ms=2.0)]
    assert values(rounds, "sync1", "ledgermq", "p50_ms") == {1: 2.0}


@pytest.mark.parametrize(("at_least", "ratio", "met"), [(True, 2.0, True), (True, 1.99, False)])
def test_aim_at_least(at_least: bool, ratio: float, met: bool) -> None:
    assert Aim("drain", "per_second", "nats", 2, at_least).is_met(ratio) is met
    assert Aim("drain", "per_second", "nats", 2, not at_least).is_met(ratio) is (ratio <= 2)


def test_memory_is_the_most_of_any_node_in_any_load() -> None:
    rounds = [
        one(0, "ledgermq", "sync64", resident_mb={"n0": 80.0, "n1": 90.0}),
        one(0, "ledgermq", "flight2000", resident_mb={"n0": 100.0, "n1": 70.0}),
        one(0, "ledgermq", "drain", resident_mb={"n0": 500.0}),
    ]
    assert values(derived(rounds), "memory", "ledgermq", "resident_mb") == {0: 100.0}


def test_summary_holds_numbers_and_the_highest_of_nodes_but_no_errors() -> None:
    figures = {"per_second": 5.0, "errors": {"x": 3}, "recovered": True, "cpu_s": {"n0": 1.0, "n1": 2.0}}
    summary = summarize([one(0, "nats", "own64", **figures)])
    assert set(summary["own64"]["nats"]) == {"per_second", "cpu_s"}
    assert summary["own64"]["nats"]["cpu_s"]["median"] == 2.0


def test_lost_counts_what_was_not_stored_and_what_was_not_delivered() -> None:
    rounds = [one(0, "ledgermq", "drain", lost=1, missed=2), one(0, "nats", "own64", lost=9)]
    assert lost(rounds) == 3


def test_every_aim_is_of_a_scenario_that_measures_both_sides() -> None:
    from bench.scenarios import SCENARIOS
    from bench.summary import MEMORY, OURS, START

    sides = {scenario.name: scenario.sides for scenario in SCENARIOS}
    for aim in AIMS:
        assert aim.scenario in (START, MEMORY) or {OURS, aim.rival} <= set(sides[aim.scenario])


def test_what_failed_is_told_and_has_no_figures() -> None:
    rounds = [*ROUNDS, one(0, "nats", "own64", failed="no stream")]
    assert failed(rounds) == rounds[-1:]
    assert "own64" not in summarize(rounds)
