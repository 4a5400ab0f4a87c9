"""Machines of a cluster of several groups are killed, lose power or are cut off under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.machines import run_alone
from tests.support.measures import MEASURED

pytestmark = [pytest.mark.integration, pytest.mark.long]
ROUNDS = 8
SET_UP_LIMIT_S, ROUND_LIMIT_S = 300.0, 150.0


def test_nothing_acknowledged_is_lost_with_the_machines(
    tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    limit_s = SET_UP_LIMIT_S + ROUNDS * ROUND_LIMIT_S
    for line in run_alone("tests.chaos.machine_kills", [str(seed), str(ROUNDS)], tmp_path, limit_s):
        request.node.user_properties.append((MEASURED, line))
