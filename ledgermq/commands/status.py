"""`ledgermq status`: the cluster as its nodes report it."""

import typer

from ledgermq.calls import Call, remote
from ledgermq.errors import NOT_DONE, UserError
from ledgermq.output import Json

app = typer.Typer(add_completion=False)


@app.command()
@remote
def status(call: Call) -> None:
    """Show every node's role, term and log. Exit code 1 unless every group has a writable leader."""
    from ledgermq.cluster_view import show_cluster

    view = read_cluster(call)
    call.show(view, show_cluster)
    if not is_well(view):
        raise typer.Exit(NOT_DONE)


def read_cluster(call: Call) -> Json:
    """Raises: UserError when nothing is known because the name server gives no answer."""
    view = call.get("/cluster", lambda services: services.reader.read())
    require_known(view)
    return view


def require_known(view: Json) -> None:
    """Raises: UserError when nothing is known because the name server gives no answer."""
    namesrv = view["namesrv"]
    if namesrv["state"] == "down" and not view["groups"]:
        raise UserError(f"the name server {namesrv['address']} gives no answer: {namesrv['problem']}.")


def is_well(view: Json) -> bool:
    """Whether the name server answers, and every group has one writable leader."""
    groups = view["groups"]
    writable = bool(groups) and all(group["state"] == "writable" for group in groups)
    return writable and bool(view["namesrv"]["state"] == "up")
