"""The broker under the sampler: `python -m bench.profile_node OUT --config FILE` (see bench/sampler.py)."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.sampler import Sampler
from broker.__main__ import main

if __name__ == "__main__":
    Sampler(Path(sys.argv[1])).install()
    sys.exit(main(sys.argv[2:]))
