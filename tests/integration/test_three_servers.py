"""docs/machines.md is followed line by line: three machines, one of them is killed while producers send."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Measured
from tests.integration.machines import run_alone

pytestmark = pytest.mark.integration
LIMIT_S = 480.0


def test_the_page_leads_from_empty_machines_to_a_tested_failover(tmp_path: Path, measured: Measured) -> None:
    for line in run_alone("tests.integration.three_servers", [], tmp_path, LIMIT_S):
        what, _, how_much = line.rpartition(": ")
        measured(what, how_much)
