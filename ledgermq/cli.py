"""The entry point of `ledgermq`: how its process starts, and how errors end.

What it sets has to stand before typer is imported, so that it imports nothing heavy itself.
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
"""New objects between two looks for garbage; Python's own is 700."""
UNUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "importlib.metadata": ("entry_points",),
    "secrets": (),
    "difflib": ("get_close_matches",),
}
"""What typer and pydantic import and a command seldom uses, and the functions they take out of it."""


def main() -> None:
    """The entry point: the one place where errors become words and exit codes."""
    # Importing makes objects by the ten thousand and no garbage: looking through them all, again and again,
    # is a tenth of a short command's time. What runs for long is still looked through, less often.
    gc.set_threshold(GARBAGE_THRESHOLD)
    # While Python ends it looks through all of them again, several times: a sixth of the time.
    atexit.register(gc.freeze)
    # Pydantic looks for plugins in every installed package; none of them is ours, and it takes its time.
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
        from rocketmq_spark.jobs.command_base import tell

        sys.exit(tell(error))
