"""docs/machines.md is followed line by line: three machines, one of them is killed while producers send."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.client_runs import ROOT, java_driver
from tests.integration.conftest import Measured

pytestmark = pytest.mark.integration
ALONE = ("unshare", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Nothing of it is left when the first process of its process namespace ends."""
NEEDED = ("unshare", "nsenter", "ip", "mount")
TRIAL = "ip link add bridge type bridge && ip link add one type veth peer two && mount -t tmpfs none /var/lib"
LIMIT_S = 480


def obstacle() -> str | None:
    """Why there can be no such machines here."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    if not Path("/etc/systemd/system").is_dir():
        return "there is no folder /etc/systemd/system"
    tried = subprocess.run([*ALONE, "sh", "-c", TRIAL], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"namespaces cannot be made here: {tried.stderr.strip()}"


def test_the_page_leads_from_empty_machines_to_a_tested_failover(tmp_path: Path, measured: Measured) -> None:
    if reason := obstacle():
        pytest.skip(reason)
    java_driver("5.5.0", tmp_path)  # skips where it is not installed
    command = [*ALONE, sys.executable, "-m", "tests.integration.three_servers", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stderr[-12_000:]
    for line in ended.stdout.splitlines():
        what, _, how_much = line.rpartition(": ")
        measured(what, how_much)
