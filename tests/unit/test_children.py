"""What tests start does not outlive them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support.children import ending_with_parent

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 30.0
STARTS_A_CHILD = """
import subprocess, sys
from tests.support.children import ending_with_parent
child = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
subprocess.run(ending_with_parent([sys.executable, "-c", child]), start_new_session=True)
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv, which asks Linux for it")
def test_a_child_ends_with_a_parent_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_A_CHILD], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None, "stdout is a pipe"
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            parent.kill()
            child.wait(LIMIT_S)
        finally:
            if child.is_running():
                child.kill()


def test_a_child_of_a_thread_may_outlive_the_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(ending_with_parent, ["true"]).result() == ["true"]
