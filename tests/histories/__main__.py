"""`python -m tests.histories FILE...`: checks histories that runs left behind; ends with 1 on a fault."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.histories.checker import check
from tests.histories.files import read_history
from tests.histories.words import Rules


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.histories")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--may-expire", action="store_true", help="retention removed messages")
    parser.add_argument("--deduplicated", action="store_true", help="the broker drops repeated tries")
    arguments = parser.parse_args()
    rules = Rules(is_deduplicated=arguments.deduplicated, may_expire=arguments.may_expire)
    is_clean = True
    for path in arguments.files:
        report = check(read_history(path), rules)
        print(f"{path}: {report}")
        is_clean = is_clean and report.is_clean
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
