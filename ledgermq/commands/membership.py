"""`ledgermq member`: who belongs to a replication group, and changes of that while it runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final

import typer

from ledgermq.app import Subcommands
from ledgermq.calls import Call, P, cluster_options, path_of, remote, with_options
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


@dataclass(frozen=True, slots=True)
class _Changes:
    """Makes changes of one group's members as the options say that all these commands have."""

    call: Call
    group: str
    yes: bool
    dry_run: bool

    def make(
        self,
        kind: str,
        method: str,
        path: str,
        asked: Mapping[str, object],
        body: Mapping[str, object] | None,
    ) -> None:
        """`asked`: what the leader is asked; `body`: of the request to the service. Raises: UserError."""
        wanted = ChangeCall(
            method,
            f"{path_of('replication', self.group, 'members')}{path}",
            lambda services: _planned(services, self.group, kind, asked),
            body,
            {"force": asked["force"]} if body is None else None,
        )
        change(self.call, wanted, yes=self.yes, dry_run=self.dry_run)


def _options(group: GroupOption = None, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Declares what every change of the members has."""


def _made(group: str | None, yes: bool, dry_run: bool, **of_call: Any) -> _Changes:
    call = Call(**of_call)
    return _Changes(call, group or only_group(read_cluster(call)), yes, dry_run)


def changing(command: Callable[Concatenate[_Changes, P], None]) -> Callable[..., None]:
    """Gives a command the options of changes, and of the cluster to use."""
    return with_options(command, _made, _options, cluster_options)


@app.command()
@changing
def add(
    changes: _Changes,
    member: Member,
    address: OptionalAddress = None,
    learner: Annotated[bool, typer.Option("--learner", help="It gets the log and never a vote.")] = False,
    local: Local = False,
    data: DataDir = DEFAULT_DATA_DIR,
    wait: Wait = False,
    force: Force = False,
) -> None:
    """Add a member. It gets the log without a vote, and its vote when it has nearly all of it.

    Its node has an empty store, dLegerJoin = true, and itself and some members in dLegerPeers.
    """
    role = "learner" if learner else "voter"
    with _joining(changes, member, address, data, is_local=local) as at:
        body = {"id": member, "address": at, "role": role, "force": force}
        changes.make("add", "POST", "", body, body)
    _follow(changes, member, role, wait=wait, started=data if local else None)


@app.command()
@changing
def replace(
    changes: _Changes,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="Who leaves, dead or alive.")],
    by: Annotated[str, typer.Argument(metavar="NEW", help="The id of the one that takes its place.")],
    address: OptionalAddress = None,
    local: Local = False,
    data: DataDir = DEFAULT_DATA_DIR,
    wait: Wait = False,
    force: Force = False,
) -> None:
    """Put another in a member's place: the new one joins, and when it votes the old one is removed."""
    with _joining(changes, by, address, data, is_local=local, leaving=member) as at:
        body = {"id": by, "address": at, "force": force}
        changes.make("replace", "POST", path_of(member, "replace"), {"old": member, **body}, body)
    _follow(changes, by, "voter", wait=wait, started=data if local else None, without=member)


@app.command()
@changing
def remove(
    changes: _Changes,
    member: Member,
    local: Local = False,
    data: DataDir = DEFAULT_DATA_DIR,
    force: Force = False,
) -> None:
    """Remove a member, dead or alive. Its files stay on its disk. One that joins is given up."""
    changes.make("remove", "DELETE", path_of(member), {"id": member, "force": force}, None)
    if local and not changes.dry_run:
        from ledgermq.local.plan import require_plan

        require_plan(data.absolute()).without(member).save()
        remark(f"`ledgermq up` does not start {member} any more. If it runs, stop it.")


@app.command()
@changing
def move(changes: _Changes, member: Member, address: Address, force: Force = False) -> None:
    """Change a member's address: it is the same member, with its files, at another host or port."""
    body = {"address": address, "force": force}
    changes.make("move", "PUT", path_of(member, "address"), {"id": member, **body}, body)


@app.command()
@changing
def promote(changes: _Changes, member: Member, wait: Wait = False) -> None:
    """Give a learner its vote, as soon as it has nearly the whole log."""
    changes.make("promote", "PUT", path_of(member, "role"), {"id": member}, {"role": "voter"})
    _follow(changes, member, "voter", wait=wait)


@app.command()
@changing
def demote(changes: _Changes, member: Member, force: Force = False) -> None:
    """Take a voter's vote: it stays as a learner, which only gets the log."""
    body = {"role": "learner", "force": force}
    changes.make("demote", "PUT", path_of(member, "role"), {"id": member, "force": force}, body)


def _planned(services: "Services", group: str, kind: str, values: Mapping[str, object]) -> "ChangeMembers":
    from broker.admin.types import ChangeKind

    return services.members.change(group, ChangeKind(kind), **values)


@contextmanager
def _joining(
    changes: _Changes,
    member: str,
    address: str | None,
    data: Path,
    *,
    is_local: bool,
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
    from ledgermq.local.plan import require_plan
    from ledgermq.machines.folders import writing

    plan = require_plan(data.absolute())
    grown = plan.with_node(member)
    group = grown.group_of(grown.node(member)).name
    if group != changes.group:
        raise UserError(f"{member} would be of {group}, not of {changes.group}.", WRONG_USAGE)
    is_dry_run = changes.dry_run
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


def _start_hint(member: str, data: Path) -> None:
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
    changes: _Changes,
    member: str,
    role: str,
    *,
    wait: bool,
    started: Path | None = None,
    without: str | None = None,
) -> None:
    """After a change was made: shows the progress until the member has the role, and `without` is none any
    more. `started`: the local cluster whose node the user has to start.

    Raises: UserError when the member is given up meanwhile.
    """
    if changes.dry_run:
        return
    if started is not None:
        _start_hint(member, started)
    if not wait:
        remark("`ledgermq member list` shows how far it is.")
        return
    import time

    while True:
        rows = {row["id"]: row for row in read_members(changes.call, changes.group)["members"]}
        if member not in rows:
            raise UserError(f"{member} is no member of {changes.group} any more.")
        row = rows[member]
        if row["role"] == role and without not in rows and (role == "voter" or row["isInSync"]):
            remark(f"{member} {'votes' if role == 'voter' else 'has the log'}.")
            return
        remark(
            f"{member} {row['role']}, {row['state']}: {progress_words(row['progress']) or 'not known yet'}"
        )
        time.sleep(POLL_S)
