"""The campaign repeats what a seed means, and never hides a failure."""

import sys

import pytest

from dledger.core import leadership
from dledger.core.leadership import committable_index
from tests.campaign import worlds
from tests.campaign.__main__ import main, run_seeds, show, watch
from tests.campaign.scoreboard import IDLE_SEEDS_MIN, Scoreboard
from tests.campaign.worlds import Run, World, run, trace, world_of
from tests.support.seed_limit import seed_limit

SEARCHED_SEEDS = 12


def test_a_seed_draws_its_world_and_every_world_is_drawn() -> None:
    assert [world_of(seed) for seed in range(50)] == [world_of(seed) for seed in range(50)]
    assert {world_of(seed) for seed in range(200)} == set(World)


@pytest.mark.parametrize("world", list(World))
def test_a_seed_holds_in_each_world(world: World) -> None:
    outcome = run(7, world)
    assert outcome.failure is None
    assert outcome.world is world
    assert outcome.virtual_ms > 1_000
    assert outcome.acknowledged > 0


@pytest.mark.parametrize("world", list(World))
def test_each_world_notices_commits_without_a_majority(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A world in which this holds would show nothing, however many of its seeds are run."""

    def by_one(marks: list[int], _quorum: int, term_start: int, commit_index: int) -> int:
        return committable_index(marks, 1, term_start, commit_index)

    monkeypatch.setattr(leadership, "committable_index", by_one)
    failures = (run(seed, world).failure for seed in range(SEARCHED_SEEDS))
    assert any(failure is not None and "InvariantError" in failure for failure in failures)


def test_a_run_without_an_end_is_ended_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def spins(seed: int) -> Run:
        while True:
            seed += 1

    monkeypatch.setitem(worlds._RUNNERS, World.GROUP, spins)
    monkeypatch.setattr(worlds, "seed_limit", lambda: seed_limit(0.05))
    failure = run(7, World.GROUP).failure
    assert failure is not None
    assert "SeedLimitError: not over after 0.05 s, at " in failure
    assert "test_campaign.py" in failure
    assert "scripts/sim 7 --world group --trace" in failure


def test_a_run_that_breaks_is_one_line_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(seed: int) -> Run:
        raise AssertionError(f"two leaders\nin seed {seed}")

    monkeypatch.setitem(worlds._RUNNERS, World.GROUP, breaks)
    failure = run(7, World.GROUP).failure
    assert failure is not None
    assert "\n" not in failure
    assert "two leaders in seed 7" in failure
    assert "scripts/sim 7 --world group --trace" in failure


def test_a_trace_tells_options_and_steps() -> None:
    lines, outcome = trace(3, World.GROUP)
    assert outcome.failure is None
    assert lines[0].startswith("Options(seed=3")
    assert len(lines) > 100


def test_sums_are_of_all_runs_and_failures_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        Run(World.NODE, 1, None, 3_600_000, 2, 10, {"crash": 1}),
        Run(World.NODE, 2, "node seed 2: lost", 0),
        Run(World.GROUP, 3, None, 1_800_000, 5, 7, {"crash": 2, "pause": 4}),
    ]
    scoreboard = watch(iter(runs), None)
    assert scoreboard.failures == ["node seed 2: lost"]
    assert scoreboard.rows()[-1] == ("all", "3", "1.5", "7", "7", "17", "1")
    assert scoreboard.as_json()["group"]["faults"] == {"crash": 2, "pause": 4}
    assert "| crash | 3 |" in scoreboard.markdown()
    show(scoreboard, 60.0, 1, is_markdown=False)
    assert "1 seeds failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Run(World.GROUP, 1, None, 1_000, 1, 1, {"crash": 1}), 0),
        (Run(World.GROUP, 1, "group seed 1: lost", 1_000, 1, 1, {"crash": 1}), 1),
        (Run(World.GROUP, 1, None, 1_000, 1, 0, {"crash": 1}), 1),
        (Run(World.GROUP, 1, None, 1_000, 0, 1, {"crash": 1}), 1),
        (Run(World.GROUP, 1, None, 1_000, 1, 1, {}), 1),
    ],
    ids=["all held", "one failed", "nothing acknowledged", "no election", "no fault"],
)
def test_exit_code_tells_of_failures_and_of_worlds_that_did_nothing(
    outcome: Run, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(worlds._RUNNERS, World.GROUP, lambda _seed: outcome)
    monkeypatch.setattr(sys, "argv", ["sim", "1", "--world", "group", "--count", str(IDLE_SEEDS_MIN)])
    assert main() == code
    printed = capsys.readouterr()
    assert ("show nothing" in printed.out) == (code == 1 and outcome.failure is None)
    assert (outcome.failure or "") in printed.err


@pytest.mark.parametrize("world", list(World))
def test_ten_seeds_of_a_world_without_an_acknowledged_message_show_nothing(world: World) -> None:
    runs = [Run(world, seed, None, 1_000, 1, 0, {"crash": 1}) for seed in range(IDLE_SEEDS_MIN)]
    assert watch(iter(runs), None).idle() == [f"{world}: 10 seeds without acknowledged show nothing"]


def test_trace_of_a_run_that_breaks_ends_with_its_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leadership, "committable_index", lambda marks, *_: max(marks))
    monkeypatch.setattr(sys, "argv", ["sim", "3", "--world", "group", "--trace"])
    assert main() == 1
    assert "group seed 3: InvariantError" in capsys.readouterr().out.splitlines()[-1]


def test_the_time_ends_a_campaign_after_the_seed_under_way() -> None:
    scoreboard = watch(run_seeds(range(100), World.GROUP, 1), 0.0)
    assert scoreboard.seeds == 1
    assert scoreboard == Scoreboard(scoreboard.scores, [])
