"""`ledgermq config`: brokers' settings while they run."""

from typing import TYPE_CHECKING, Annotated

import typer

from ledgermq.app import Subcommands
from ledgermq.calls import Call, path_of, remote
from ledgermq.change_commands import ChangeCall, change
from ledgermq.commands.cluster import read_cluster
from ledgermq.commands.nodes import find_node
from ledgermq.commands.topics import pairs
from ledgermq.errors import WRONG_USAGE, UserError
from ledgermq.options import DryRun, Yes
from ledgermq.output import Column, Json, show_table

if TYPE_CHECKING:
    from admin_api.changes import Change
    from admin_api.services import Services

app = typer.Typer(
    name="config",
    help="Settings of a broker while it runs.",
    cls=Subcommands,
    no_args_is_help=True,
    add_completion=False,
)
Node = Annotated[str, typer.Argument(metavar="NODE", help="A node's id, or the address of any broker.")]
_SETTINGS = (
    Column("key", "key"),
    Column("value", "value"),
    Column("while it runs", lambda row: {True: "can change", False: "-", None: None}[row["canChange"]]),
)


@app.command(name="get")
@remote
def get_config(
    call: Call,
    node: Node,
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", show_default="all")] = None,
) -> None:
    """Show the settings in force. Secrets are masked."""
    address = address_of(call, node)
    path = path_of("brokers", address, "config")
    answer = call.get(path, lambda services: services.brokers.config(address))
    if keys:
        missing = set(keys) - {setting["key"] for setting in answer["settings"]}
        if missing:
            raise UserError(f"{address} has no key {', '.join(sorted(missing))}.")
        answer["settings"] = [setting for setting in answer["settings"] if setting["key"] in keys]
    call.show(answer, lambda view: show_table(view["settings"], _SETTINGS, view["address"]))


@app.command(name="set")
@remote
def set_config(
    call: Call,
    node: Node,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Change settings of one broker: all of them or none."""
    address = address_of(call, node)
    body = {"settings": pairs("set", settings)}

    def local(services: "Services") -> "Change":
        from admin_api.brokers.service import ConfigPatch

        patch = ConfigPatch.model_validate(body)
        return services.broker_changes.configure(address, patch.settings)

    wanted = ChangeCall("PATCH", path_of("brokers", address, "config"), local, body)
    change(call, wanted, yes=yes, dry_run=dry_run)


def address_of(call: Call, node: str) -> str:
    """The client address of a node, given by its id or by this address. Raises: UserError."""
    if ":" in node:
        return node
    found: Json = find_node(read_cluster(call), node)["node"]
    address = found["remotingAddress"]
    if address is None:
        raise UserError(f"the address of {node} is not known; name it.", WRONG_USAGE)
    return str(address)
