"""The cluster as a whole: `status`, `doctor`, `transfer-leader`, `preferred-leader`, `watch`, `audit`."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ledgermq.calls import Call, path_of, remote
from ledgermq.change_commands import ChangeCall, change
from ledgermq.errors import NOT_DONE, PARTIAL, WRONG_USAGE, UserError
from ledgermq.options import DryRun, Page, PageSize, Yes
from ledgermq.output import (
    Column,
    Json,
    Styled,
    moment,
    print_json,
    printable,
    remark,
    show_pages,
    show_table,
    write,
)

if TYPE_CHECKING:
    from ledgermq.watch_view import Snapshot, Watched


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


_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


@app.command()
@remote
def doctor(
    call: Call,
    sample: Annotated[
        float, typer.Option(min=0, max=10, metavar="SECONDS", help="Pause between two checks of a lag.")
    ] = 0,
) -> None:
    """Check everything: report in sentences what is wrong and what to do. Exit code 1 with an error."""
    sample_ms = round(sample * 1000)
    report = call.get(
        "/doctor", lambda services: services.health_checks.examine(sample_ms), {"sampleMs": sample_ms or None}
    )
    try:
        call.show(report, show_report)
    finally:
        if not report["isWell"]:
            raise typer.Exit(NOT_DONE)


def show_report(report: Json) -> None:
    write_findings(report["findings"])
    for endpoint in report.get("grpcEndpoints", ()):
        show_clients(endpoint)
    checked = ", ".join(map(counted, report["lookedAt"].values(), _LOOKED_AT))
    write(Styled(f"Checked {checked}." if report["findings"] else f"Nothing is wrong with {checked}."))


def write_findings(findings: list[Json]) -> None:
    """Each with its remedy."""
    for finding in findings:
        severity = finding["severity"]
        write(Styled(f"{severity:<8}", _STYLES[severity]), Styled(printable(finding["sentence"])))
        write(Styled(f"        {printable(finding['remedy'])}", "dim"))


def show_clients(endpoint: Json) -> None:
    """The clients of a gRPC endpoint; of many the first ones."""
    title = printable(f"gRPC endpoint {endpoint['address']}: {counted(endpoint['total'], 'client')}")
    more = (endpoint["total"] or 0) - len(endpoint["clients"])
    if more > 0:
        title = f"{title}, the first {len(endpoint['clients'])}"
    if endpoint["clients"]:
        show_table(endpoint["clients"], _CLIENT_COLUMNS, title)
    else:
        write(Styled(title))


def _names(row: Json) -> str:
    """`orders, bills, …`"""
    return ", ".join([*row["topics"], *(["…"] if row["topicCount"] > len(row["topics"]) else [])])


_CLIENT_COLUMNS = (
    Column("client", "clientId"),
    Column("type", "clientType"),
    Column("library", lambda row: f"{row['language']} {row['version']}".strip()),
    Column("address", "address"),
    Column("groups", lambda row: ", ".join(row["groups"])),
    Column("topics", _names),
    Column("namespace", "namespace"),
)


def counted(count: int | None, thing: str) -> str:
    """`1 group`, `3 groups`, `unknown groups`."""
    return f"{'unknown' if count is None else count} {thing if count == 1 else f'{thing}s'}"


_LOOKED_AT = ("group", "node", "consumer group", "dead letter queue")


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
        typer.Argument(metavar="[NODE]", help="Node to lead, such as n2.", show_default="the nearest"),
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
    """Choose the node that leads whenever it can. Another leader hands over to it by itself."""
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
    """Return the one replication group's name. Raises: UserError when there is none, or more than one."""
    names = [str(g["group"]) for g in view["groups"] if all(n["isLedgermq"] is not False for n in g["nodes"])]
    if len(names) == 1:
        return names[0]
    if not names:
        raise UserError("there is no replication group; RocketMQ's own brokers have none.")
    raise UserError(f"there are {len(names)} groups: name one with --group ({', '.join(names)}).")


@app.command()
@remote
def watch(
    call: Call,
    every: Annotated[
        float, typer.Option(min=0.2, max=60, metavar="SECONDS", help="Between two polls.")
    ] = 1.0,
) -> None:
    """Show the cluster live until q or Ctrl-C. Without a terminal: one poll (with --json: as JSON)."""
    from ledgermq.watch_view import Watched, poller

    with poller(call) as poll:
        if call.as_json or not (sys.stdout.isatty() and sys.stdin.isatty()):
            _once(call, poll())
        else:
            _live(poll, Watched(), every)


def _once(call: Call, seen: "Snapshot") -> None:
    """Raises: UserError when nothing is known; typer.Exit when a part of it is missing."""
    if not seen.parts:
        raise UserError(" ".join(seen.problems))
    if "cluster" in seen.parts:
        require_known(seen.parts["cluster"])
    if call.as_json:
        print_json({**seen.parts, "problems": seen.problems, "isPartial": seen.is_partial})
    else:
        _print(seen)
    if seen.is_partial:
        raise typer.Exit(PARTIAL)


def _print(seen: "Snapshot") -> None:
    import time

    from rich.console import Console

    from ledgermq.output import FILE_WIDTH
    from ledgermq.watch_view import Watched

    printer = Console(highlight=False)
    if not printer.is_terminal:
        printer.width = FILE_WIDTH
    printer.print(Watched().picture(seen, time.monotonic(), time.time_ns() // 1_000_000, ""))
    for address, problem in seen.silent.items():
        remark(f"{address}: {problem}")


def _live(poll: "Callable[[], Snapshot]", watched: "Watched", every_s: float) -> None:
    import time

    from rich.live import Live

    from ledgermq.signals import ending_in_order
    from ledgermq.watch_view import Keys

    with ending_in_order(), Keys(sys.stdin) as keys, Live(screen=True, auto_refresh=False) as live:
        while True:
            seen = poll()
            ending = f"every {every_s:g} s, q ends"
            now_ms = time.time_ns() // 1_000_000
            live.update(watched.picture(seen, time.monotonic(), now_ms, ending), refresh=True)
            if keys.wait(every_s) in ("q", "Q", "\x1b"):
                return


_ENTRIES = (
    Column("when", lambda row: moment(row["atMs"])),
    Column("who", lambda row: f"{row['actor']} ({row['role']}) from {row['remote']}"),
    Column("what", "action"),
    Column("target", "target"),
    Column("outcome", "outcome"),
    Column("problem", "problem", nothing=""),
)


@app.command()
@remote
def audit(call: Call, page: Page = 1, page_size: PageSize = 50) -> None:
    """Show every change made through the admin service named by --admin, the newest first."""
    if call.admin is None:
        raise UserError("the audit log is the admin service's: name it with --admin URL.", WRONG_USAGE)
    query = {"page": page, "pageSize": page_size}
    call.show(call.service.call("GET", "/audit", query), _show)


def _show(answer: Json) -> None:
    show_table(answer["items"], _ENTRIES)
    show_pages(answer)
    if not answer["isKept"]:
        remark("These are in the service's memory only: start it with --audit FILE to keep them.")
