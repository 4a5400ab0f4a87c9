"""Medians, spreads and ratios of a comparison's rounds, compared with the aims. No I/O."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

OURS = "ledgermq"
START = "start"
MEMORY = "memory"
MEMORY_SCENARIOS = ("sync64", "flight2000", "flight2000-128")


class Bounded:
    """A value with a lower or an upper bound."""

    __slots__ = ()
    bound: float
    at_least: bool

    @property
    def words(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:.3g}"

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.bound if self.at_least else ratio <= self.bound


@dataclass(frozen=True, slots=True)
class Aim(Bounded):
    """Our figure ÷ the rival's."""

    scenario: str
    figure: str
    rival: str
    bound: float
    at_least: bool = True


AIMS = (
    Aim("cold64", "per_second", "java-dledger", 15),
    Aim("sync64", "per_second", "java-dledger", 15),
    Aim("sync64", "p99_ms", "java-dledger", 1 / 12, at_least=False),
    Aim("flight2000", "per_second", "java-dledger", 12),
    Aim("flight2000-128", "per_second", "java-dledger", 12),
    Aim("sync1", "per_second", "java-dledger", 8),
    Aim("sync1", "p50_ms", "java-dledger", 1 / 8, at_least=False),
    Aim("sync64", "per_second", "java-single", 1.5),
    Aim("flight2000", "per_second", "java-single", 1.5),
    Aim("own64", "per_second", "nats", 1.3),
    Aim("own2000", "per_second", "nats", 2.0),
    Aim("drain", "per_second", "java-dledger", 2),
    Aim("latency", "p99_ms", "java-dledger", 1 / 4, at_least=False),
    Aim(START, "seconds", "java-dledger", 1 / 5, at_least=False),
    Aim(MEMORY, "resident_mb", "java-dledger", 1 / 8, at_least=False),
    Aim("failover", "gap_s", "java-dledger", 1 / 5, at_least=False),
)
IDLE_PERCENT_MAX = 1.0
"""Of a core, for each node: an absolute aim."""

Measured = dict[str, Any]
"""One scenario of one side in one round: {"round", "side", "scenario", "figures"}."""


def derived(measured: Sequence[Measured]) -> list[Measured]:
    """What was measured, and of each round the most memory that any node had under the producers' loads."""
    peaks: dict[tuple[int, str], float] = {}
    for one in measured:
        resident_mb = one["figures"].get("resident_mb")
        if one["scenario"] in MEMORY_SCENARIOS and resident_mb:
            key = one["round"], one["side"]
            peaks[key] = max(peaks.get(key, 0.0), *resident_mb.values())
    return [
        *measured,
        *(
            {"round": number, "side": side, "scenario": MEMORY, "figures": {"resident_mb": peak}}
            for (number, side), peak in peaks.items()
        ),
    ]


def values(measured: Sequence[Measured], scenario: str, side: str, figure: str) -> dict[int, float]:
    """The figure by round; of one that every node has, the highest."""
    found: dict[int, float] = {}
    for one in measured:
        value = one["figures"].get(figure)
        if (one["scenario"], one["side"]) == (scenario, side) and value is not None:
            found[one["round"]] = max(value.values()) if isinstance(value, dict) else float(value)
    return found


def spread(found: dict[int, float]) -> dict[str, Any]:
    ordered = sorted(found.values())
    middle = statistics.median(ordered)
    return {"median": middle, "min": ordered[0], "max": ordered[-1], "rounds": len(ordered)}


def summarize(measured: Sequence[Measured]) -> dict[str, dict[str, dict[str, Any]]]:
    """scenario -> side -> figure -> median, least and most, for each figure that is a number."""
    measured = derived(measured)
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    for one in measured:
        for figure, value in one["figures"].items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number or (isinstance(value, dict) and figure != "errors" and value):
                found = values(measured, one["scenario"], one["side"], figure)
                sides = summary.setdefault(one["scenario"], {})
                sides.setdefault(one["side"], {})[figure] = spread(found)
    return summary


def ratios(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Each aim with the ratio of the medians, and the least and most of the rounds' own ratios."""
    measured = derived(measured)
    found = []
    for aim in AIMS:
        ours = values(measured, aim.scenario, OURS, aim.figure)
        rival = values(measured, aim.scenario, aim.rival, aim.figure)
        pairs = [ours[number] / rival[number] for number in ours if rival.get(number)]
        if not pairs:
            continue
        ratio = statistics.median(ours.values()) / statistics.median(rival.values())
        found.append(
            {
                "scenario": aim.scenario,
                "figure": aim.figure,
                "rival": aim.rival,
                "ours": statistics.median(ours.values()),
                "theirs": statistics.median(rival.values()),
                "ratio": ratio,
                "ratio_min": min(pairs),
                "ratio_max": max(pairs),
                "aim": aim.words,
                "met": aim.is_met(ratio),
            }
        )
    return found


def idle_aim(measured: Sequence[Measured]) -> dict[str, Any] | None:
    """The one aim without a rival's figure."""
    ours = values(measured, "idle", OURS, "idle_cpu_percent")
    if not ours:
        return None
    percent = statistics.median(ours.values())
    theirs = values(measured, "idle", "java-dledger", "idle_cpu_percent")
    return {
        "scenario": "idle",
        "figure": "idle_cpu_percent",
        "ours": percent,
        "theirs": statistics.median(theirs.values()) if theirs else None,
        "aim": f"< {IDLE_PERCENT_MAX:g} %",
        "met": percent < IDLE_PERCENT_MAX,
    }


def failed(measured: Sequence[Measured]) -> list[Measured]:
    """Scenarios without figures, on any side."""
    return [one for one in measured if "failed" in one["figures"]]


def lost(measured: Sequence[Measured]) -> int:
    """Acknowledged messages that were not there afterwards, or were not delivered, over all of LedgerMQ's."""
    return sum(
        int(one["figures"].get("lost", 0)) + int(one["figures"].get("missed", 0))
        for one in measured
        if one["side"] == OURS
    )
