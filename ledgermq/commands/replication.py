"""`ledgermq transfer-leader` and `ledgermq preferred-leader`."""

from typing import Annotated

import typer

from ledgermq.calls import Call, path_of, remote
from ledgermq.change_commands import ChangeCall, change
from ledgermq.commands.status import read_cluster
from ledgermq.errors import UserError
from ledgermq.options import DryRun, Yes
from ledgermq.output import Json

app = typer.Typer(add_completion=False)
GroupOption = Annotated[
    str | None,
    typer.Option("--group", metavar="GROUP", help="Replication group; not needed where there is one."),
]


@app.command(name="transfer-leader")
@remote
def transfer_leader(
    call: Call,
    node: Annotated[
        str | None,
        typer.Argument(metavar="[NODE]", help="Who is to lead, such as n2.", show_default="the nearest"),
    ] = None,
    group: GroupOption = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Hand leadership over to another node, and wait until it leads."""
    name = group or only_group(read_cluster(call))
    wanted = ChangeCall(
        "POST",
        path_of("replication", name, "transfer"),
        lambda services: services.replication.transfer(name, node),
        {"nodeId": node},
    )
    change(call, wanted, yes=yes, dry_run=dry_run)


@app.command(name="preferred-leader")
@remote
def preferred_leader(
    call: Call,
    node: Annotated[str, typer.Argument(metavar="NODE", help="Such as n2, or `none`.")],
    group: GroupOption = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Say who is to lead whenever it can. Another that leads hands over by itself."""
    name = group or only_group(read_cluster(call))
    node_id = None if node == "none" else node
    wanted = ChangeCall(
        "PUT",
        path_of("replication", name, "preferred-leader"),
        lambda services: services.replication.prefer(name, node_id),
        {"nodeId": node_id},
    )
    change(call, wanted, yes=yes, dry_run=dry_run)


def only_group(view: Json) -> str:
    """Raises: UserError when there is not just one that is replicated."""
    names = [str(g["group"]) for g in view["groups"] if all(n["isLedgermq"] is not False for n in g["nodes"])]
    if len(names) == 1:
        return names[0]
    if not names:
        raise UserError("there is no replication group; RocketMQ's own brokers have none.")
    raise UserError(f"there are {len(names)} groups: name one with --group ({', '.join(names)}).")
