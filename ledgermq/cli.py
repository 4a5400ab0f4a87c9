"""The entry point of `ledgermq`: how its process starts, and how errors end.

Its settings must be made before typer is imported, so it imports nothing heavy itself.
"""

import atexit
import gc
import os
import sys
from collections.abc import Mapping
from typing import Final

from ledgermq.deferred import defer
from ledgermq.errors import INTERRUPTED, UserError

GARBAGE_THRESHOLD: Final = 100_000
"""New objects between two runs of the garbage collector; Python's default is 700."""
UNUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "importlib.metadata": ("entry_points",),
    "secrets": (),
    "difflib": ("get_close_matches",),
}
"""What typer and pydantic import and a command seldom uses, and the functions they import from it."""


def main() -> None:
    """The entry point: the one place where errors become words and exit codes."""
    # Importing makes ten thousands of objects and no garbage: collecting again and again meanwhile costs a
    # tenth of a short command's time. A long command is still collected, less often.
    gc.set_threshold(GARBAGE_THRESHOLD)
    # While Python ends it collects several times again: a sixth of the time.
    atexit.register(gc.freeze)
    # Pydantic searches plugins in every installed package, which is slow; we use none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    for name, functions in UNUSED.items():
        defer(name, *functions)
    try:
        from ledgermq.app import app

        app()
    except UserError as error:
        from ledgermq.output import remark

        remark(f"error: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        # Only a command of `spark` raises these; for the others their module is not there.
        errors = sys.modules.get("rocketmq_spark.errors")
        if errors is None or not isinstance(error, errors.RocketmqSparkError):
            raise
        from rocketmq_spark.jobs.cli import print_error

        sys.exit(print_error(error))
