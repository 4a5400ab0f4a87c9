"""The campaign repeats what a seed means, and never hides a failure."""

import pytest

from tests.campaign import worlds
from tests.campaign.__main__ import run_seeds, show, watch
from tests.campaign.scoreboard import Scoreboard
from tests.campaign.worlds import Run, World, run, trace, world_of


def test_a_seed_draws_its_world_and_every_world_is_drawn() -> None:
    assert [world_of(seed) for seed in range(50)] == [world_of(seed) for seed in range(50)]
    assert {world_of(seed) for seed in range(200)} == set(World)


@pytest.mark.parametrize("world", list(World))
def test_a_seed_holds_in_each_world(world: World) -> None:
    outcome = run(3, world)
    assert outcome.failure is None
    assert outcome.world is world
    assert outcome.virtual_ms > 1_000


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


def test_the_time_ends_a_campaign_after_the_seed_under_way() -> None:
    scoreboard = watch(run_seeds(range(100), World.GROUP, 1), 0.0)
    assert scoreboard.seeds == 1
    assert scoreboard == Scoreboard(scoreboard.scores, [])
