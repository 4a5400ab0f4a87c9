"""What many runs add up to, as a table for people, as Markdown for the docs, as JSON for programs."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from tests.campaign.worlds import Run, World

IDLE_SEEDS_MIN = 10
"""From so many seeds of a world on each of its sums must be more than nothing."""
COLUMNS = ("world", "seeds", "simulated h", "elections", "faults", "acknowledged", "seeds failed")


@dataclass(slots=True)
class Score:
    """The sums of one world."""

    seeds: int = 0
    failed: int = 0
    virtual_ms: int = 0
    elections: int = 0
    acknowledged: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, run: Run) -> None:
        self.seeds += 1
        self.failed += run.failure is not None
        self.virtual_ms += run.virtual_ms
        self.elections += run.elections
        self.acknowledged += run.acknowledged
        self.faults.update(run.faults or {})


@dataclass(slots=True)
class Scoreboard:
    """All runs so far, by world."""

    scores: dict[World, Score] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, run: Run) -> None:
        self.scores.setdefault(run.world, Score()).add(run)
        if run.failure is not None:
            self.failures.append(run.failure)

    @property
    def seeds(self) -> int:
        return sum(score.seeds for score in self.scores.values())

    @property
    def virtual_s(self) -> float:
        return sum(score.virtual_ms for score in self.scores.values()) / 1000

    def faults(self) -> Counter[str]:
        return sum((score.faults for score in self.scores.values()), Counter())

    def idle(self) -> list[str]:
        """Of which world many seeds show nothing, since something that each draws now and then never came."""
        found = []
        for world, score in self.scores.items():
            parts = {
                "elections": score.elections,
                "faults": score.faults.total(),
                "acknowledged": score.acknowledged,
            }
            missing = [name for name, count in parts.items() if not count]
            if score.seeds - score.failed >= IDLE_SEEDS_MIN and missing:
                found.append(f"{world}: {score.seeds} seeds without {', '.join(missing)} show nothing")
        return found

    def rows(self) -> list[tuple[str, ...]]:
        """One row a world, in the order of COLUMNS, and their sum."""
        total = Score()
        for score in self.scores.values():
            for name in ("seeds", "failed", "virtual_ms", "elections", "acknowledged"):
                setattr(total, name, getattr(total, name) + getattr(score, name))
            total.faults.update(score.faults)
        named = [(world.value, self.scores[world]) for world in World if world in self.scores]
        return [_row(name, score) for name, score in [*named, ("all", total)]]

    def table(self) -> Table:
        table = Table(*COLUMNS)
        for row in self.rows():
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        lines = [COLUMNS, ["---"] * len(COLUMNS), *self.rows()]
        faults = [("fault", "times"), ("---", "---")]
        faults += [(name, f"{count:,}") for name, count in sorted(self.faults().items()) if count]
        return (
            "\n".join("| " + " | ".join(line) + " |" for line in lines)
            + "\n\n"
            + "\n".join("| " + " | ".join(line) + " |" for line in faults)
        )

    def as_json(self) -> dict[str, Any]:
        return {
            world.value: {
                "seeds": score.seeds,
                "seedsFailed": score.failed,
                "simulatedSeconds": round(score.virtual_ms / 1000),
                "elections": score.elections,
                "acknowledged": score.acknowledged,
                "faults": dict(sorted(score.faults.items())),
            }
            for world, score in self.scores.items()
        }


def _row(name: str, score: Score) -> tuple[str, ...]:
    return (
        name,
        f"{score.seeds:,}",
        f"{score.virtual_ms / 3_600_000:.1f}",
        f"{score.elections:,}",
        f"{score.faults.total():,}",
        f"{score.acknowledged:,}",
        f"{score.failed:,}",
    )
