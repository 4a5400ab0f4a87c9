"""What the kernel is told of a process that gives way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUP = Path("/proc/self/autogroup")
SCRIPT = """
import os, pathlib
from admin_api.priority import give_way
before = os.nice(0)
give_way({nice})
group = pathlib.Path("/proc/self/autogroup")
print(os.nice(0) - before, group.read_text().split()[-1] if group.exists() else "none")
"""


def told(nice: int, *, own_session: bool) -> tuple[str, str]:
    """By how much it is nicer, and how nice its session is."""
    command = [sys.executable, "-c", SCRIPT.format(nice=nice)]
    text = subprocess.run(
        command, start_new_session=own_session, capture_output=True, text=True, timeout=30, check=True
    ).stdout
    process, session = text.split()
    return process, session


@pytest.mark.skipif(not hasattr(os, "nice"), reason="a system without priorities")
def test_it_is_nicer_by_so_much_or_not_at_all() -> None:
    assert told(3, own_session=False)[0] == "3"
    assert told(0, own_session=True)[0] == "0"


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="a kernel that does not weigh sessions")
def test_a_session_of_its_own_is_lowered_and_that_of_others_is_not() -> None:
    """From what sessions begin with, whatever this process runs at: brokers beside it begin with the same."""
    before = AUTOGROUP.read_text().split()[-1]
    assert told(3, own_session=True)[1] == "3"
    assert told(3, own_session=False)[1] == before
