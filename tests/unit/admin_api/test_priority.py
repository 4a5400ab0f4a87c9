"""What the kernel is told of a process that gives way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUP = Path("/proc/self/autogroup")
NICEST = 19
"""Where this process runs at that already, nothing can be nicer."""
SCRIPT = """
import os
from admin_api.__main__ import lower_priority
from tests.unit.admin_api.test_priority import session_nice
before = os.nice(0)
lower_priority({nice})
print(os.nice(0) - before, session_nice())
"""


def session_nice() -> str:
    """How nice this session is; "none" where the kernel weighs none, or where nobody ever began this one.

    The file is missing in the first case and empty in the second.
    """
    words = AUTOGROUP.read_text().split() if AUTOGROUP.exists() else []
    return words[-1] if words else "none"


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
    room = NICEST - os.nice(0)
    assert told(3, own_session=False)[0] == str(min(3, room))
    assert told(0, own_session=True)[0] == "0"


def test_a_session_of_its_own_is_lowered_and_that_of_others_is_not() -> None:
    """From what sessions begin with, whatever this process runs at: brokers beside it begin with the same."""
    if told(0, own_session=True)[1] == "none":
        pytest.skip("a kernel that does not weigh sessions")
    before = session_nice()
    assert told(3, own_session=True)[1] == "3"
    assert told(3, own_session=False)[1] == before
