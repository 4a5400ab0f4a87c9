"""`python -m tests.chaos.node --config FILE [--control FILE] [--volatile] …`: the real node on a bad disk.

Everything is the broker's own but the file system it is given.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from broker.__main__ import serve
from broker.config import load_config
from dledger.environment import Environment
from dledger.fs import Fs, OsFs
from remoting.loop import run
from tests.chaos.faulty_fs import FaultyFs
from tests.chaos.volatile_fs import VolatileFs


def make_fs(arguments: argparse.Namespace) -> Fs:
    rng = random.Random(arguments.seed)
    fs: Fs = OsFs()
    if arguments.volatile:
        fs = VolatileFs(rng, arguments.leak)
    return fs if arguments.control is None else FaultyFs(fs, arguments.control)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--control", type=Path, help="file of the disk's faults (tests.chaos.faulty_fs)")
    parser.add_argument("--volatile", action="store_true", help="what is not synced goes with the process")
    parser.add_argument("--leak", type=float, default=0.0, help="chance of an unsynced sector to be written")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    return run(serve(load_config(arguments.config), Environment(fs=make_fs(arguments))))


if __name__ == "__main__":
    sys.exit(main())
