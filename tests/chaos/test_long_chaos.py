"""Minutes of mixed faults from a seed, with the stock clients at work beside our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.schedule import Schedule, run_schedule

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(seed=11, minutes=3, clients=("java", "python")),
        Schedule(seed=12, minutes=3, nodes=5),
        Schedule(seed=13, minutes=3, clients=("python",)),
    ],
    ids=str,
)
async def test_mixed_faults(tmp_path: Path, schedule: Schedule) -> None:
    await run_schedule(tmp_path, schedule)
