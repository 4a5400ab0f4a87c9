"""`ledgermq node`: start, list and show nodes."""

from typing import Annotated, Any

import typer

from ledgermq.app import Subcommands
from ledgermq.calls import Call, remote
from ledgermq.errors import UserError
from ledgermq.options import DEFAULT_DATA_DIR, DataDir
from ledgermq.output import Json


class _StartsByDefault(Subcommands):
    """`ledgermq node n0` is `ledgermq node start n0`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.infos, "--help") and not ctx.resilient_parsing:
            args = ["start", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="node",
    cls=_StartsByDefault,
    help="The nodes: list, show, and start one of this machine again: `ledgermq node n0`.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def start(node_id: Annotated[str, typer.Argument(metavar="NODE")], data: DataDir = DEFAULT_DATA_DIR) -> None:
    """Start one node of a local cluster again, in the foreground. The word `start` may be left out."""
    from ledgermq.local.processes import run_node

    run_node(node_id, data)


@app.command(name="list")
@remote
def list_nodes(call: Call) -> None:
    """List every node: its group, state and addresses."""
    from ledgermq.cluster_view import show_nodes
    from ledgermq.commands.cluster import read_cluster

    call.show(read_cluster(call), show_nodes)


@app.command()
@remote
def show(call: Call, node: Annotated[str, typer.Argument(metavar="NODE", help="Its id or address.")]) -> None:
    """Show one node: its log, its lag, and how its leader sees it."""
    from ledgermq.cluster_view import show_node
    from ledgermq.commands.cluster import read_cluster

    call.show(find_node(read_cluster(call), node), show_node)


def find_node(view: Json, wanted: str) -> Json:
    """`{group, node}` of the node with this id or client address; the group lacks its other nodes.

    Raises: UserError when there is no such node, or several groups have one.
    """
    found = [
        {"group": {name: value for name, value in group.items() if name != "nodes"}, "node": node}
        for group in view["groups"]
        for node in group["nodes"]
        if wanted in (node["id"], node["remotingAddress"])
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        known = ", ".join(str(n["id"] or n["remotingAddress"]) for g in view["groups"] for n in g["nodes"])
        raise UserError(f"there is no node {wanted}; there are {known or 'none'}.")
    addresses = ", ".join(str(each["node"]["remotingAddress"]) for each in found)
    raise UserError(f"several groups have a node {wanted}: name one by its address ({addresses}).")
