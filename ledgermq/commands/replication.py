"""`ledgermq replication`: groups that come and go while the cluster runs."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ledgermq.app import Subcommands
from ledgermq.calls import Call, path_of, remote
from ledgermq.change_commands import ChangeCall, change
from ledgermq.commands.cluster import is_well, read_cluster
from ledgermq.errors import NOT_DONE, WRONG_USAGE, UserError
from ledgermq.options import DEFAULT_DATA_DIR, DataDir, DryRun, Yes
from ledgermq.output import Column, Json, Styled, printable, remark, show_table, write

if TYPE_CHECKING:
    from admin_api.changes import Change
    from admin_api.services import Services

app = typer.Typer(
    name="replication",
    cls=Subcommands,
    help="Replication groups: stop one from taking messages, see what is left in it, add and remove one.",
    no_args_is_help=True,
    add_completion=False,
)
Group = Annotated[str, typer.Argument(metavar="GROUP", help="A replication group, such as broker-b.")]
POLL_S: Final = 1.0
START_LIMIT_S: Final = 60.0
"""So long a new, empty group may take until it has a leader."""


@app.command()
@remote
def left(call: Call, group: Group) -> None:
    """Show what would be lost with a group. Exit code 1 unless nothing would."""
    view = read_draining(call, group)
    call.show(view, show_draining)
    if not view["isDrained"]:
        raise typer.Exit(NOT_DONE)


@app.command()
@remote
def drain(
    call: Call,
    group: Group,
    wait: Annotated[bool, typer.Option("--wait", help="Until nothing is left in it.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Take a group's queues out of the routes of producers; consumers go on. `fill` takes it back.

    With --wait the group refuses messages in the end: it can be removed.
    """
    change(call, _accepting(group, accepted=False), yes=yes, dry_run=dry_run)
    if wait and not dry_run:
        _wait_until_drained(call, group)
        _refuse_messages(call, group)
        remark(f"Nothing is left in {group}.")


@app.command()
@remote
def fill(call: Call, group: Group, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Let producers choose a group's queues again."""
    change(call, _accepting(group, accepted=True), yes=yes, dry_run=dry_run)


def _accepting(group: str, *, accepted: bool, refused: bool | None = None) -> ChangeCall:
    def accept(services: "Services") -> "Change":
        from admin_api.cluster.draining import AcceptedMessages

        return services.draining.accept(group, AcceptedMessages(accepted=accepted, refused=refused))

    body = {"accepted": accepted, "refused": refused}
    return ChangeCall("PUT", path_of("replication", group, "accepts-messages"), accept, body)


@app.command(name="copy-settings")
@remote
def copy_settings(
    call: Call,
    source: Annotated[str, typer.Argument(metavar="FROM", help="A replication group, such as broker-a.")],
    group: Annotated[str, typer.Argument(metavar="TO", help="The group that lacks them.")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Make in one group the topics and consumer groups of another that it lacks."""
    change(call, _copying(source, group), yes=yes, dry_run=dry_run)


def _copying(source: str, group: str) -> ChangeCall:
    return ChangeCall(
        "POST",
        path_of("replication", group, "copied-settings"),
        lambda services: services.draining.copy_settings(source, group),
        {"source": source},
    )


@app.command()
@remote
def add(call: Call, data: DataDir = DEFAULT_DATA_DIR) -> None:
    """Add a group to the cluster in the folder --data, which `ledgermq up` runs: it starts its nodes.

    The new group gets the topics and consumer groups of the first one.
    """
    from ledgermq.local.cluster import write_files
    from ledgermq.local.plan import require_plan
    from ledgermq.machines.folders import writing

    plan = require_plan(data.absolute())
    _require_running(data)
    grown = plan.with_group()
    new = grown.groups[-1]
    with writing(plan.data_dir):
        write_files(grown, new.nodes)
    remark(f"`ledgermq up` starts {', '.join(node.id for node in new.nodes)}.")
    _wait_until_writable(call, new.name)
    change(call, _copying(plan.groups[0].name, new.name), yes=True, dry_run=False)


@app.command()
@remote
def remove(
    call: Call,
    group: Group,
    data: DataDir = DEFAULT_DATA_DIR,
    force: Annotated[bool, typer.Option("--force", help="Also if messages would be lost.")] = False,
) -> None:
    """Remove a group from the cluster in the folder --data: `ledgermq up` stops its nodes.

    Refused until nothing is left in it (`drain`). Its files stay.
    """
    from ledgermq.local.plan import require_plan

    smaller = require_plan(data.absolute()).without_group(group)
    if not force:
        view = read_draining(call, group)
        if not view["isDrained"]:
            raise UserError(f"{group} is not drained. {' '.join(view['reasons'])}")
        if not view["refusesMessages"]:
            _refuse_messages(call, group)
    smaller.save()
    remark(f"{group} is removed; its files stay in {smaller.data_dir}.")


def read_draining(call: Call, group: str) -> Json:
    """Raises: UserError."""
    path = path_of("replication", group, "draining")
    return call.get(path, lambda services: services.draining.view(group))


def show_draining(view: Json) -> None:
    accepts = "accepts messages" if view["acceptsMessages"] else "accepts no messages"
    if view["refusesMessages"]:
        accepts = "refuses messages"
    state = "nothing is left in it" if view["isDrained"] else "it is not drained"
    write(Styled(printable(f"{view['group']} {accepts}; {state}.")))
    for reason in view["reasons"]:
        write(Styled(printable(reason)))
    if view["lags"]:
        show_table(view["lags"], _LAGS)
    if view["unread"]:
        rows = [{"topic": topic, "messages": count} for topic, count in view["unread"].items()]
        show_table(rows, _UNREAD)


_LAGS = (
    Column("consumer group", "consumerGroup"),
    Column("topic", "topic"),
    Column("not consumed", "lag", nothing="unknown"),
)
_UNREAD = (Column("topic that no group reads", "topic"), Column("messages", "messages"))


def _wait_until_drained(call: Call, group: str) -> None:
    """Prints each other reason once. Raises: UserError."""
    said: list[str] = []
    while not (view := read_draining(call, group))["isDrained"]:
        kinds = [str(reason).partition(":")[0] for reason in view["reasons"] if not reason[0].isdigit()]
        if kinds != said:
            said = kinds
            for reason in view["reasons"]:
                remark(printable(str(reason)))
        time.sleep(POLL_S)


def _refuse_messages(call: Call, group: str) -> None:
    """Also of producers with an old route, so that none comes after the last look. Raises: UserError."""
    change(call, _accepting(group, accepted=False, refused=True), yes=True, dry_run=False)
    _wait_until_drained(call, group)


def _wait_until_writable(call: Call, group: str) -> None:
    """Raises: UserError after START_LIMIT_S."""
    end_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end_s:
        view = read_cluster(call)
        if any(each["group"] == group for each in view["groups"]) and is_well(view):
            return
        time.sleep(POLL_S)
    raise UserError(
        f"{group} has no leader after {START_LIMIT_S:g} s: look at its logs, and then give it its topics "
        "with `ledgermq replication copy-settings`."
    )


def _require_running(data: Path) -> None:
    """Raises: UserError."""
    from ledgermq.local.foreground import locked

    try:
        with locked(data.absolute()):
            pass
    except UserError:
        return
    raise UserError(
        f"the cluster in {data} does not run: `ledgermq up --groups N` starts it with more groups.",
        WRONG_USAGE,
    )
