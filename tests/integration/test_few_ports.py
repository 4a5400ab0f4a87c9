"""Ports of a cluster that the system also gives to outgoing connections."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.client_runs import ROOT

pytestmark = pytest.mark.integration
ALONE = ("unshare", "--map-root-user", "--net")
"""In a network of its own; as root of it, which a system may allow to everyone or to none."""


def can_be_alone() -> bool:
    return shutil.which(ALONE[0]) is not None and not subprocess.run([*ALONE, "true"], check=False).returncode


@pytest.mark.skipif(not can_be_alone(), reason="a network namespace cannot be made here")
def test_killed_node_comes_back_though_its_peers_dial_from_its_ports(tmp_path: Path) -> None:
    command = [*ALONE, sys.executable, "-m", "tests.integration.few_ports", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
