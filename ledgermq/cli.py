"""The `ledgermq` command: the names of all commands, where they are, and how errors end.

This is imported by every call, so it imports nothing but typer: the module of a command comes with its call,
and what the command works with when it runs.
"""

import atexit
import gc
import os
import sys
from collections.abc import Mapping
from typing import ClassVar, Final

import typer

from ledgermq.deferred import defer
from ledgermq.errors import INTERRUPTED, UserError
from ledgermq.lazy_group import LazyGroup

PLACES: Final = {
    "up": "ledgermq.commands.local",
    "admin": "ledgermq.commands.local",
    "node": "ledgermq.commands.nodes",
    "status": "ledgermq.commands.status",
    "doctor": "ledgermq.commands.doctor",
    "topic": "ledgermq.commands.topics",
    "group": "ledgermq.commands.groups",
    "offset": "ledgermq.commands.offsets",
    "message": "ledgermq.commands.messages",
    "dlq": "ledgermq.commands.dlq",
    "config": "ledgermq.commands.config",
    "transfer-leader": "ledgermq.commands.replication",
    "preferred-leader": "ledgermq.commands.replication",
    "audit": "ledgermq.commands.audit",
    "watch": "ledgermq.commands.watch",
    "produce": "ledgermq.commands.traffic",
    "consume": "ledgermq.commands.traffic",
    "bench": "ledgermq.commands.traffic",
    "spark": "ledgermq.commands.spark",
    "completion": "ledgermq.commands.local",
    "version": "ledgermq.commands.local",
}
"""Every command in the order of `--help`, and the module whose `app` has it."""


GARBAGE_THRESHOLD: Final = 100_000
"""New objects between two looks for garbage; Python's own is 700."""


class Commands(LazyGroup):
    places: ClassVar[Mapping[str, str]] = PLACES


app = typer.Typer(
    cls=Commands,
    help="LedgerMQ: a replicated message broker for stock RocketMQ clients.",
    epilog="Exit codes: 0 done, 1 not done or not well (stderr says why), 2 wrong usage, 3 done in part, "
    "130 ended by Ctrl-C.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Makes a group of an app that holds no command itself."""


def main() -> None:
    """The entry point: the one place where errors become words and exit codes."""
    # Importing makes objects by the ten thousand and no garbage: looking through them all, again and again,
    # is a tenth of a short command's time. What runs for long is still looked through, less often.
    gc.set_threshold(GARBAGE_THRESHOLD)
    # While Python ends it looks through all of them again, several times: a sixth of the time.
    atexit.register(gc.freeze)
    # Pydantic looks for plugins in every installed package; none of them is ours, and it takes its time.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    defer("importlib.metadata", "entry_points")
    defer("secrets")
    try:
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
        from rocketmq_spark.jobs.cli_app import tell

        sys.exit(tell(error))
