"""`ledgermq audit`: who changed what through an admin service."""

import typer

from ledgermq.calls import Call, remote
from ledgermq.commands.topics import show_pages
from ledgermq.errors import WRONG_USAGE, UserError
from ledgermq.options import Page, PageSize
from ledgermq.output import Column, Json, moment, remark, show_table

app = typer.Typer(add_completion=False)
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
