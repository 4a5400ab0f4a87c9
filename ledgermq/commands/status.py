"""`ledgermq status`: the cluster as its nodes tell it."""

import asyncio

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from admin_api.reader import ClusterReader
from admin_api.schemas import ClusterView, GroupState, GroupView, NodeState, NodeView
from admin_api.settings import Settings
from ledgermq.errors import UserError
from remoting.client import RemotingClient

_COLUMNS = ("node", "state", "clients", "term", "begin", "end", "persisted", "committed", "applied", "lag")
_TEXT_COLUMNS = ("node", "state", "clients")
_FILE_WIDTH = 160
"""Columns where stdout is no terminal, so that nothing is folded there."""


def status(namesrv: str, *, as_json: bool) -> bool:
    """Prints the state; returns whether every group has one writable leader.

    Raises: UserError when the name server gives no answer.
    """
    view = asyncio.run(read_cluster(namesrv))
    if view.namesrv.state is NodeState.DOWN:
        raise UserError(f"the name server {namesrv} gives no answer: {view.namesrv.problem}.")
    if as_json:
        print(view.model_dump_json(by_alias=True))
    else:
        _print_view(view)
    return bool(view.groups) and all(group.state is GroupState.WRITABLE for group in view.groups)


async def read_cluster(namesrv: str) -> ClusterView:
    """One look at the cluster."""
    client = RemotingClient()
    try:
        return await ClusterReader(client, Settings(namesrv=namesrv)).read()
    finally:
        await client.close()


def _print_view(view: ClusterView) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    if not view.groups:
        console.print("No broker has registered.")
    for group in view.groups:
        console.print(group_table(group))
        for node in group.nodes:
            if node.problem:
                console.print(
                    f"{node.id or node.remoting_address}: {node.problem}", markup=False, soft_wrap=True
                )


def group_table(group: GroupView) -> Table:
    leader = f"{group.leader_id} leads in term {group.term}" if group.leader_id else "no leader known"
    title = f"{group.group}: {group.state}, {leader}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _TEXT_COLUMNS else "right", overflow="fold")
    for node in group.nodes:
        table.add_row(*_cells(node))
    return table


def _cells(node: NodeView) -> list[Text]:
    log = node.log
    state = (node.role or "unknown").lower() if node.state is NodeState.UP else str(node.state)
    if node.impairment is not None:
        state += f", repairing: {node.impairment}"
    style = {"leader": "bold green", "down": "bold red"}.get(state, "")
    numbers = (
        *(node.term, log.begin_index, log.end_index, log.persisted_index),
        *(log.committed_index, log.applied_index, node.lag_entries),
    )
    texts = [Text(node.id or "unknown"), Text(state, style), Text(node.remoting_address or "unknown")]
    return texts + [Text("unknown", "dim") if number is None else Text(str(number)) for number in numbers]
