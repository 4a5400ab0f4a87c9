"""`ledgermq member`: who belongs to a replication group, and changes of that while it runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ledgermq.app import Subcommands
from ledgermq.calls import Call, path_of, remote
from ledgermq.change_commands import ChangeCall, change
from ledgermq.commands.cluster import GroupOption, only_group, read_cluster
from ledgermq.errors import WRONG_USAGE, UserError
from ledgermq.options import DEFAULT_DATA_DIR, DataDir, DryRun, Yes
from ledgermq.output import Column, Json, printable, remark, show_table

if TYPE_CHECKING:
    from admin_api.cluster.members import ChangeMembers
    from admin_api.services import Services

app = typer.Typer(
    name="member",
    cls=Subcommands,
    help="The members of a group: list, add, remove, replace and move them while it runs.",
    no_args_is_help=True,
    add_completion=False,
)
Member = Annotated[str, typer.Argument(metavar="MEMBER", help="Its id, such as n2.")]
Address = Annotated[str, typer.Argument(metavar="HOST:PORT", help="For replication.")]
OptionalAddress = Annotated[
    str | None,
    typer.Argument(
        metavar="[HOST:PORT]", help="For replication.", show_default="with --local that of the plan"
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Also where fewer than a majority of the voters keep up afterwards.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Show the progress in bytes until it is done.")]
Local = Annotated[
    bool,
    typer.Option(
        "--local", help="Of the cluster in the folder --data (`ledgermq up`): its files and its plan."
    ),
]
POLL_S: Final = 1.0
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@app.command(name="list")
@remote
def list_members(call: Call, group: GroupOption = None) -> None:
    """Show who votes, who only gets the log, and how much of it a joining member has."""
    call.show(read_members(call, group or only_group(read_cluster(call))), show_members)


@app.command()
@remote
def add(
    call: Call,
    member: Member,
    address: OptionalAddress = None,
    learner: Annotated[bool, typer.Option("--learner", help="It gets the log and never a vote.")] = False,
    group: GroupOption = None,
    local: Local = False,
    data: DataDir = DEFAULT_DATA_DIR,
    wait: Wait = False,
    force: Force = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Add a member. It gets the log without a vote, and its vote when it has nearly all of it.

    Its node has an empty store, dLegerJoin = true, and itself and some members in dLegerPeers.
    """
    name = group or only_group(read_cluster(call))
    role = "learner" if learner else "voter"
    with _joining(member, address, data, is_local=local, is_dry_run=dry_run) as at:
        body = {"id": member, "address": at, "role": role, "force": force}
        _change(call, name, "add", "POST", "", body, body, yes=yes, dry_run=dry_run)
    if not dry_run:
        _start_hint(member, data, is_local=local)
        _follow(call, name, member, "learner" if learner else "voter", wait=wait)


@app.command()
@remote
def replace(
    call: Call,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="Who leaves, dead or alive.")],
    by: Annotated[str, typer.Argument(metavar="NEW", help="The id of the one that takes its place.")],
    address: OptionalAddress = None,
    group: GroupOption = None,
    local: Local = False,
    data: DataDir = DEFAULT_DATA_DIR,
    wait: Wait = False,
    force: Force = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Put another in a member's place: the new one joins, and when it votes the old one is removed."""
    name = group or only_group(read_cluster(call))
    with _joining(by, address, data, is_local=local, is_dry_run=dry_run, leaving=member) as at:
        body = {"id": by, "address": at, "force": force}
        asked = {"old": member, **body}
        _change(
            call, name, "replace", "POST", path_of(member, "replace"), body, asked, yes=yes, dry_run=dry_run
        )
    if not dry_run:
        _start_hint(by, data, is_local=local)
        _follow(call, name, by, "voter", wait=wait, without=member)


@app.command()
@remote
def remove(
    call: Call,
    member: Member,
    group: GroupOption = None,
    local: Local = False,
    data: DataDir = DEFAULT_DATA_DIR,
    force: Force = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Remove a member, dead or alive. Its files stay on its disk. One that joins is given up."""
    name = group or only_group(read_cluster(call))
    asked = {"id": member, "force": force}
    _change(call, name, "remove", "DELETE", path_of(member), None, asked, yes=yes, dry_run=dry_run)
    if local and not dry_run:
        from ledgermq.local.plan import require_plan

        require_plan(data.absolute()).without(member).save()
        remark(f"`ledgermq up` starts {member} no more. If it runs, stop it.")


@app.command()
@remote
def move(
    call: Call,
    member: Member,
    address: Address,
    group: GroupOption = None,
    force: Force = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Change a member's address: it is the same member, with its files, at another host or port."""
    name = group or only_group(read_cluster(call))
    body = {"address": address, "force": force}
    asked = {"id": member, **body}
    _change(call, name, "move", "PUT", path_of(member, "address"), body, asked, yes=yes, dry_run=dry_run)


@app.command()
@remote
def promote(
    call: Call,
    member: Member,
    group: GroupOption = None,
    wait: Wait = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Give a learner its vote, as soon as it has nearly the whole log."""
    name = group or only_group(read_cluster(call))
    body = {"role": "voter"}
    asked = {"id": member}
    _change(call, name, "promote", "PUT", path_of(member, "role"), body, asked, yes=yes, dry_run=dry_run)
    if not dry_run:
        _follow(call, name, member, "voter", wait=wait)


@app.command()
@remote
def demote(
    call: Call,
    member: Member,
    group: GroupOption = None,
    force: Force = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Take a voter's vote: it stays as a learner, which only gets the log."""
    name = group or only_group(read_cluster(call))
    body = {"role": "learner", "force": force}
    asked = {"id": member, "force": force}
    _change(call, name, "demote", "PUT", path_of(member, "role"), body, asked, yes=yes, dry_run=dry_run)


def _change(
    call: Call,
    group: str,
    kind: str,
    method: str,
    path: str,
    body: Mapping[str, object] | None,
    asked: Mapping[str, object],
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    """`body`: of the request to the service; `asked`: what the leader is asked. Raises: UserError."""
    wanted = ChangeCall(
        method,
        f"{path_of('replication', group, 'members')}{path}",
        lambda services: _planned(services, group, kind, asked),
        body,
        {"force": asked["force"]} if body is None else None,
    )
    change(call, wanted, yes=yes, dry_run=dry_run)


def _planned(services: "Services", group: str, kind: str, values: Mapping[str, object]) -> "ChangeMembers":
    from broker.admin.types import ChangeKind

    return services.members.change(group, ChangeKind(kind), **values)


@contextmanager
def _joining(
    member: str,
    address: str | None,
    data: Path,
    *,
    is_local: bool,
    is_dry_run: bool,
    leaving: str | None = None,
) -> Iterator[str]:
    """The address of a new member. Of a local cluster its files are made first, and its plan has it, unless
    the change is not made.
    """
    if is_local == (address is not None):
        words = (
            "leave the address out with --local" if is_local else "name its address, HOST:PORT, or --local"
        )
        raise UserError(f"{words}.", WRONG_USAGE)
    if address is not None:
        yield address
        return
    from ledgermq.local.cluster import write_files
    from ledgermq.local.group_files import writing
    from ledgermq.local.plan import require_plan

    plan = require_plan(data.absolute())
    grown = plan.with_node(member)
    if not is_dry_run:
        with writing(plan.data_dir):
            write_files(grown, [grown.node(member)])  # the others may be about to start
    try:
        yield grown.node(member).replication_address
    except BaseException:
        if not is_dry_run:
            plan.save()  # the new node's files stay, and no start uses them
        raise
    if leaving is not None and not is_dry_run:
        grown.without(leaving).save()


def _start_hint(member: str, data: Path, *, is_local: bool) -> None:
    if is_local:
        from ledgermq.local.plan import require_plan
        from ledgermq.local.processes import node_hint

        plan = require_plan(data.absolute())
        remark(f"Start it: {node_hint(plan.node(member), plan.data_dir)}")


def read_members(call: Call, group: str) -> Json:
    path = path_of("replication", group, "members")
    return call.get(path, lambda services: services.members.view(group))


def show_members(view: Json) -> None:
    leader = f"{view['leaderId']} leads in term {view['term']}" if view["leaderId"] else "no leader known"
    level = "fixed members" if view["formatLevel"] is None else f"format level {view['formatLevel']}"
    pending = "" if view["isCommitted"] is not False else ", a change is not committed"
    show_table(view["members"], _COLUMNS, printable(f"{view['group']}: {leader}, {level}{pending}"))
    for stranger in view["strangers"]:
        remark(f"{stranger} runs and is no member.")


def _role(row: Json) -> str:
    replaces = "" if row["replaces"] is None else f", replaces {row['replaces']}"
    return f"{'leader' if row['isLeader'] else row['role']}{replaces}"


def progress_words(progress: Json | None) -> str | None:
    """`1.2 of 20.0 GiB, 90.0 MiB/s`; all: None where it has everything."""
    if progress is None:
        return None
    total, received, rate = progress["totalBytes"], progress["receivedBytes"], progress["bytesPerS"]
    if received >= total:
        return "all"
    speed = "" if rate is None else f", {in_bytes(rate)}/s"
    return f"{in_bytes(received)} of {in_bytes(total)}{speed}"


def in_bytes(size: int) -> str:
    """`512 B`, `1.5 MiB`."""
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{size} B"


_COLUMNS: Final = (
    Column("member", "id"),
    Column("role", _role),
    Column("state", "state"),
    Column("replication", "replicationAddress"),
    Column("clients", "remotingAddress"),
    Column("log", lambda row: "all" if row["isLeader"] else progress_words(row["progress"])),
)


def _follow(
    call: Call, group: str, member: str, role: str, *, wait: bool, without: str | None = None
) -> None:
    """Shows the progress until the member has the role, and `without` is none any more.

    Raises: UserError when the member is given up meanwhile.
    """
    if not wait:
        remark("`ledgermq member list` shows how far it is.")
        return
    import time

    while True:
        rows = {row["id"]: row for row in read_members(call, group)["members"]}
        if member not in rows:
            raise UserError(f"{member} is no member of {group} any more.")
        row = rows[member]
        if row["role"] == role and without not in rows and (role == "voter" or row["isInSync"]):
            remark(f"{member} {'votes' if role == 'voter' else 'has the log'}.")
            return
        remark(
            f"{member} {row['role']}, {row['state']}: {progress_words(row['progress']) or 'not known yet'}"
        )
        time.sleep(POLL_S)
