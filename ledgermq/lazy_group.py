"""A group that knows where its commands are and imports them when they are asked for."""

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

from typer.core import TyperGroup
from typer.main import get_command


class LazyGroup(TyperGroup):
    """`places`: name of a command -> its module, whose `app` (a Typer) is it, or holds it by that name.

    Building a command costs a look at its signature, so only those of one module are built for one call. The
    context is typer's or click's: which of them, depends on the version of typer.
    """

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


def _load(place: str, name: str) -> Any:
    app = importlib.import_module(place).app
    command = get_command(app)
    held = getattr(command, "commands", None)
    return command if held is None or app.info.name == name else held[name]
