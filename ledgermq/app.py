"""The names of all commands, and where they are.

This is imported by every call, so it imports nothing but typer: the module of a command comes with its call,
and what the command works with when it runs.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

import typer

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


class Commands(LazyGroup):
    places: ClassVar[Mapping[str, str]] = PLACES


app = typer.Typer(
    cls=Commands,
    help="LedgerMQ: a replicated message broker for stock RocketMQ clients.",
    epilog="Exit codes: 0 done, 1 not done or not well (stderr says why), 2 wrong usage, 3 done in part, "
    "130 ended by Ctrl-C, 143 by SIGTERM.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Makes a group of an app that holds no command itself."""
