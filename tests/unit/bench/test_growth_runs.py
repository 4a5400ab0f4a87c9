"""Figures made of series and samples."""

from __future__ import annotations

import sys
import time

import psutil
import pytest

from bench.growth_runs import _catch_up_figures, _growth, rate_between
from bench.processes import UsageMeter, cpu_time_s, figures_of

PROGRAM = "import time; print('up', flush=True); time.sleep(60)"


def test_rate_counts_whole_steps_only() -> None:
    series = [100, 10, 20, 30, 100]
    assert rate_between(series, 0.2, 2.1) == (10 + 20 + 30) / 1.5
    assert rate_between(series, 0.5, 1.0) == 20.0
    assert rate_between(series, 0.6, 0.9) == 0.0


def test_catch_up_figures() -> None:
    series = [50] * 20 + [40] * 20 + [50] * 10
    marks = {"warm": 0.0, "killed": 5.0, "started": 10.0, "caught_up": 20.0, "end": 25.0}
    samples = [(11.0, 100_000_000, 900_000_000), (19.0, 900_000_000, 950_000_000)]
    found = _catch_up_figures(series, marks, samples)
    assert found["mb_per_second"] == 100.0
    assert found["caught_up_after_s"] == 10.0
    assert found["per_second"] == {"before": 100.0, "away": 100.0, "catching_up": 80.0, "after": 100.0}
    assert found["leader_fall_percent"] == 20.0


def test_growth_is_measured_from_a_fifth_on() -> None:
    found = _growth([1.0, 9.0, *(10.0 + number for number in range(8))])
    assert (found["warm_mb"], found["end_mb"], found["peak_mb"]) == (10.0, 17.0, 17.0)
    assert found["mb_per_minute"] == pytest.approx(60.0)


def test_cpu_time_before_the_begin_and_after_the_end_does_not_count() -> None:
    with UsageMeter({"own": psutil.Process()}, interval_s=0.01) as meter:
        spend_cpu(0.2)
        meter.begin()
        begun_s = cpu_time_s(psutil.Process())
        spend_cpu(0.05)
        meter.end()
        ended_s = cpu_time_s(psutil.Process())
        spend_cpu(0.2)
    assert 0 < meter.usage["own"].cpu_s <= ended_s - begun_s + 0.02, "ticks of 10 ms at both ends"


def spend_cpu(seconds: float) -> None:
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        pass


def test_load_program_without_figures_is_an_error_with_its_last_words() -> None:
    program = [sys.executable, "-c", "import sys; sys.exit('no broker')"]
    with pytest.raises(SystemExit, match="no broker"):
        figures_of(program, 60.0)
