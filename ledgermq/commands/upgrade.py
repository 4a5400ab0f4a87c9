"""Upgrades to this release: `upgrade-check`, before and between the steps, and `upgrade-finish`, the last
one. docs/upgrading.md describes a whole upgrade.
"""

from pathlib import Path
from typing import Annotated, Final

import typer

from ledgermq.calls import Call, path_of, remote
from ledgermq.change_commands import ChangeCall, change
from ledgermq.commands.cluster import GroupOption, only_group, read_cluster, write_findings
from ledgermq.errors import NOT_DONE, WRONG_USAGE, UserError
from ledgermq.options import DryRun, Yes
from ledgermq.output import Column, Json, Styled, printable, show_table, write

app = typer.Typer(add_completion=False)

NO_CLUSTER: Final[Json] = {"isReady": True, "groups": [], "findings": []}
Stores = Annotated[
    list[Path] | None,
    typer.Option(
        "--store", metavar="DIR", help="A node's store on this machine: also check the formats of its files."
    ),
]


@app.command(name="upgrade-check")
@remote
def upgrade_check(
    call: Call,
    store: Stores = None,
    is_cluster_checked: Annotated[
        bool, typer.Option("--cluster/--no-cluster", help="Ask the cluster, or read the stores only.")
    ] = True,
) -> None:
    """Say whether an upgrade to this release can begin or go on, and its steps. Exit code 1: not now."""
    from ledgermq.local.store_formats import read_store

    stores = [read_store(each) for each in store or ()]
    if not is_cluster_checked and not stores:
        raise UserError("--no-cluster leaves the stores: name them with --store.", WRONG_USAGE)
    report = NO_CLUSTER
    if is_cluster_checked:
        report = call.get("/upgrade", lambda services: services.upgrades.check())
    is_ready = report["isReady"] and all(each["isReadable"] for each in stores)
    answer = {**report, "isReady": is_ready, "stores": stores}
    try:
        call.show(answer, show_check)
    finally:
        if not is_ready:
            raise typer.Exit(NOT_DONE)


@app.command(name="upgrade-finish")
@remote
def upgrade_finish(call: Call, group: GroupOption = None, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Raise a group's format level when all its nodes run the new release. There is no way back then."""
    name = group or only_group(read_cluster(call))
    wanted = ChangeCall(
        "POST",
        path_of("replication", name, "format-level"),
        lambda services: services.upgrades.finish(name),
    )
    change(call, wanted, yes=yes, dry_run=dry_run)


_NODES = (
    Column("node", "id"),
    Column("state", "state"),
    Column("release", "release"),
    Column("leads", lambda row: "yes" if row["isLeader"] else ""),
    Column("in sync", lambda row: _yes_no(row["isInSync"])),
    Column("protocol", "protocolVersion"),
    Column("formats up to", "formatLevelMax"),
    Column("disk used", lambda row: _percent(row["diskUsedRatio"])),
)
_FILES = (
    Column("file", "file"),
    Column("version", "version"),
    Column("this release reads", lambda row: ", ".join(map(str, row["known"]))),
)


def show_check(report: Json) -> None:
    """The nodes, their files, what stands in the way, and the steps."""
    for group in report["groups"]:
        level = group["formatLevel"]
        title = f"{group['group']}: format level {'unknown' if level is None else level}"
        show_table(group["nodes"], _NODES, printable(title))
    for store in report["stores"]:
        show_table(store["files"], _FILES, printable(f"{store['folder']}: {store['summary']}"))
    write_findings(report["findings"])
    for group in report["groups"]:
        for number, step in enumerate(group["steps"], start=1):
            write(Styled(printable(f"{group['group']} {number}. {step}")))
        if not group["steps"]:
            write(Styled(printable(f"{group['group']} runs this release in its newest formats.")))


def _yes_no(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else f"{ratio:.0%}"
