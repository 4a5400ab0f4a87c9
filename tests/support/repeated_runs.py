"""Whether a run depends on anything but its seed: the same one in processes that hash differently."""

import os
import subprocess
import sys

HASH_SEEDS = ("1", "2")


def traces_of(simulator: str, seed: int) -> set[str]:
    """The traces that `python -m simulator seed --trace` prints, one for each order of the hash tables."""
    return {_trace(simulator, seed, hash_seed) for hash_seed in HASH_SEEDS}


def _trace(simulator: str, seed: int, hash_seed: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-m", simulator, str(seed), "--trace"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    return finished.stdout
