"""All commands by name, and the groups that import and build a command only when it is called.

Every start of the program imports this module, so it imports nothing but typer. The module of a command is
imported when the command is called; what the command needs is imported when it runs. Building a command means
inspecting its signature and making a validator for each parameter, so only the called command is built. The
contexts are typer's or click's, depending on the version of typer.
"""

import copy
import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_command_from_info, get_command_name, get_group
from typer.models import CommandInfo


class LazyGroup(TyperGroup):
    """`places`: name of a command -> its module, whose `app` (a Typer) is the command or contains it."""

    places: ClassVar[Mapping[str, str]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.places)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.places:
            self.commands.update(dict.fromkeys(self.places))  # type: ignore[arg-type]  # names to suggest
            return None
        found = self.commands.get(cmd_name)
        if found is None:
            found = self.commands[cmd_name] = _load(self.places[cmd_name], cmd_name)
        return found


class Subcommands(TyperGroup):
    """The commands of one app; a Typer gets this class as its `cls`."""

    infos: Mapping[str, CommandInfo]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.infos)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.infos:
            self.commands.update(dict.fromkeys(self.infos))  # type: ignore[arg-type]  # names to suggest
            return None
        found = self.commands.get(cmd_name)
        if found is None:
            found = self.commands[cmd_name] = _build(self.infos[cmd_name])
        return found


def _load(place: str, name: str) -> Any:
    app = importlib.import_module(place).app
    infos = {_name_of(info): info for info in app.registered_commands}
    if app.info.name != name:
        return _build(infos[name])
    if not (isinstance(app.info.cls, type) and issubclass(app.info.cls, Subcommands)):
        return get_command(app)
    return _shell(app, infos)


def _shell(app: typer.Typer, infos: Mapping[str, CommandInfo]) -> Subcommands:
    """The group of an app; none of its commands is built yet."""
    bare = copy.copy(app)
    bare.registered_commands = []
    group = get_group(bare)
    assert isinstance(group, Subcommands)
    group.infos = infos
    return group


def _name_of(info: CommandInfo) -> str:
    assert info.callback is not None
    return info.name or get_command_name(info.callback.__name__)


def _build(info: CommandInfo) -> Any:
    return get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode="rich")


PLACES: Final = {
    "up": "ledgermq.commands.local",
    "admin": "ledgermq.commands.local",
    "grpc": "ledgermq.commands.local",
    "node": "ledgermq.commands.nodes",
    "member": "ledgermq.commands.membership",
    "replication": "ledgermq.commands.replication",
    "cluster": "ledgermq.commands.members",
    "machine": "ledgermq.commands.machine",
    "recover": "ledgermq.commands.recovery",
    "status": "ledgermq.commands.cluster",
    "doctor": "ledgermq.commands.cluster",
    "topic": "ledgermq.commands.topics",
    "group": "ledgermq.commands.groups",
    "offset": "ledgermq.commands.offsets",
    "message": "ledgermq.commands.messages",
    "dlq": "ledgermq.commands.dlq",
    "user": "ledgermq.commands.users",
    "policy": "ledgermq.commands.policies",
    "access": "ledgermq.commands.access",
    "config": "ledgermq.commands.config",
    "transfer-leader": "ledgermq.commands.cluster",
    "preferred-leader": "ledgermq.commands.cluster",
    "upgrade-check": "ledgermq.commands.upgrade",
    "upgrade-finish": "ledgermq.commands.upgrade",
    "audit": "ledgermq.commands.cluster",
    "watch": "ledgermq.commands.cluster",
    "produce": "ledgermq.commands.traffic",
    "consume": "ledgermq.commands.traffic",
    "bench": "ledgermq.commands.traffic",
    "spark": "rocketmq_spark.jobs.cli",
    "completion": "ledgermq.commands.local",
    "version": "ledgermq.commands.local",
}
"""Every command in the order of `--help`, and the module whose `app` contains it."""


class Commands(LazyGroup):
    places: ClassVar[Mapping[str, str]] = PLACES


app = typer.Typer(
    cls=Commands,
    help="LedgerMQ: a replicated message broker for stock RocketMQ clients.",
    epilog="Exit codes: 0 done, 1 not done or not well (reason on stderr), 2 wrong usage, 3 done in part, "
    "130 ended by Ctrl-C, 143 by SIGTERM.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Typer makes a group of an app without commands of its own only if the app has a callback."""
