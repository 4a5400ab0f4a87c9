"""Machines of a cluster of several groups are killed, lose power or are cut off under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.machines import run_alone
from tests.support.measures import MEASURED

pytestmark = pytest.mark.integration
SET_UP_LIMIT_S, ROUND_LIMIT_S = 300.0, 150.0


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.long)])
def test_nothing_acknowledged_is_lost_with_the_machines(
    tmp_path: Path, seed: int, rounds: int, request: pytest.FixtureRequest
) -> None:
    limit_s = SET_UP_LIMIT_S + rounds * ROUND_LIMIT_S
    for line in run_alone("tests.chaos.machine_kills", [str(seed), str(rounds)], tmp_path, limit_s):
        request.node.user_properties.append((MEASURED, line))
