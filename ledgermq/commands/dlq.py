"""`ledgermq dlq`: dead letters."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledgermq.app import Subcommands
from ledgermq.calls import Call, checked, path_of, remote
from ledgermq.change_commands import ChangeCall, change
from ledgermq.commands.groups import Group
from ledgermq.commands.messages import ROWS, Cursor, From, Limit, Until, window_query
from ledgermq.errors import UserError
from ledgermq.options import PAGE_SIZE, DryRun, Page, PageSize, Yes
from ledgermq.output import (
    Column,
    Json,
    duration,
    moment,
    number,
    printable,
    remark,
    show_pages,
    show_table,
)
from telemetry.escapes import escaped_json

if TYPE_CHECKING:
    from pydantic import BaseModel

    from admin_api.changes import Change
    from admin_api.services import Services

app = typer.Typer(
    name="dlq",
    help="Dead letters: what groups could not consume.",
    cls=Subcommands,
    no_args_is_help=True,
    add_completion=False,
)


class Target(StrEnum):
    """As `target` of `/api/v1/dlq/{group}/resend`."""

    GROUP = "group"
    TOPIC = "topic"


class ExportFormat(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"


_GROUPS = (
    Column("group", "group"),
    number("messages", "count"),
    Column("oldest", lambda row: moment(row["oldestAtMs"]), nothing="-"),
    Column("newest", lambda row: moment(row["newestAtMs"]), nothing="-"),
)
_LETTERS = (
    *ROWS[:1],
    Column("age", lambda row: duration(row["ageMs"])),
    Column("original topic", "originalTopic"),
    number("tried", "reconsumeTimes"),
    *ROWS[4:],
)


@app.command(name="list")
@remote
def list_groups(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="[PART]", help="A part of the name, in any case.")] = "",
    page: Page = 1,
    page_size: PageSize = PAGE_SIZE,
) -> None:
    """List groups with dead letters: how many, and how old."""

    async def local(services: "Services") -> "BaseModel":
        from admin_api.errors import PageWanted

        return await services.dlq_queues.groups(PageWanted(page, page_size), name or None)

    def render(answer: Json) -> None:
        show_table(answer["items"], _GROUPS)
        show_pages(answer)

    query = {"name": name or None, "page": page, "pageSize": page_size}
    call.show(call.get("/dlq", local, query), render)


@app.command()
@remote
def show(
    call: Call,
    group: Group,
    start: From = None,
    until: Until = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """Show a group's dead letters, the newest first."""
    query = window_query(start, until, limit, cursor)

    async def local(services: "Services") -> "BaseModel":
        from admin_api.messages.window import FOREVER_MS

        if cursor is not None:
            return await services.dlq.next_window(group, cursor, limit)
        since_ms, until_ms = _bounds(query, FOREVER_MS)
        return await services.dlq.window(group, since_ms, until_ms, limit)

    def render(answer: Json) -> None:
        show_table(answer["items"], _LETTERS)
        if answer["nextCursor"]:
            remark(f"more: --cursor {answer['nextCursor']}")

    call.show(call.get(path_of("dlq", group, "messages"), local, query), render)


def _bounds(query: dict[str, Any], forever_ms: int) -> tuple[int, int]:
    return query["from"] or 0, forever_ms if query["to"] is None else query["to"]


@app.command()
@remote
def resend(
    call: Call,
    group: Group,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", show_default="the oldest")] = None,
    target: Annotated[
        Target, typer.Option("--to", help="group: to this group only; topic: to the original topic.")
    ] = Target.GROUP,
    start: From = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most so many.")] = 200,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Send dead letters again: those named, or the oldest that were not sent again yet."""
    query = window_query(start, until, limit)
    given = {"target": target.value, "ids": ids or [], "fromMs": query["from"], "toMs": query["to"]}
    body = {name: value for name, value in (given | {"limit": limit}).items() if value is not None}

    def local(services: "Services") -> "Change":
        from admin_api.dead_letters.resend import DlqResend
        from admin_api.dead_letters.service import DlqResendOrder

        return DlqResend(services.dlq, group, DlqResendOrder.model_validate(body))

    change(call, ChangeCall("POST", path_of("dlq", group, "resend"), local, body), yes=yes, dry_run=dry_run)


@app.command()
@remote
def export(
    call: Call,
    group: Group,
    file: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Instead of stdout.")] = None,
    file_format: Annotated[ExportFormat, typer.Option("--format")] = ExportFormat.JSONL,
    start: From = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 10_000,
) -> None:
    """Write a group's dead letters as JSON lines or CSV, the oldest first."""
    query = {**window_query(start, until, limit), "format": file_format.value}
    text = _exported(call, group, query)
    if file is None:
        _print(text, file_format)
        return
    try:
        # Only this user may read a new file: it contains messages.
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}.") from error
    remark(f"Written to {file}.")


def _print(text: str, file_format: ExportFormat) -> None:
    """On a terminal invisible characters are escaped. CSV changes by that, so a remark says so."""
    if not sys.stdout.isatty():
        print(text, end="")
        return
    if file_format is ExportFormat.JSONL:
        print(escaped_json(text), end="")
        return
    text = text.replace("\r\n", "\n")
    shown = printable(text)
    print(shown, end="")
    if shown != text:
        remark("What cannot be seen is shown as escapes; --to FILE writes it as it is.")


def _exported(call: Call, group: str, query: dict[str, Any]) -> str:
    if call.admin is not None:
        return call.service.text(path_of("dlq", group, "export"), query)
    import asyncio

    return asyncio.run(checked(call.namesrv, lambda services: _lines(services, group, query)))


async def _lines(services: "Services", group: str, query: dict[str, Any]) -> str:
    from admin_api.dead_letters.service import ExportFormat as Format
    from admin_api.messages.window import FOREVER_MS

    bounds = _bounds(query, FOREVER_MS)
    lines = services.dlq.export(group, Format(query["format"]), *bounds, query["limit"])
    return "".join([line async for line in lines])
