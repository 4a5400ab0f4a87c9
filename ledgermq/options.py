"""Options that several commands have, and the parser of times that users write."""

import re
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from ledgermq.errors import WRONG_USAGE, UserError

DEFAULT_DATA_DIR: Final = Path("ledgermq-data")
DEFAULT_NAMESRV: Final = "127.0.0.1:9876"

DataDir = Annotated[
    Path, typer.Option("--data", envvar="LEDGERMQ_DATA", metavar="DIR", help="Folder of the cluster's data.")
]


def _require_addresses(text: str) -> str:
    """Raises: UserError."""
    if text == DEFAULT_NAMESRV:
        return text  # a command that asks an admin service starts without these modules
    from admin_api.settings import SettingsError, name_servers_of

    try:
        name_servers_of(text)
    except SettingsError as error:
        raise UserError(str(error), WRONG_USAGE) from None
    return text


Namesrv = Annotated[
    str,
    typer.Option(
        "--namesrv",
        envvar="LEDGERMQ_NAMESRV",
        metavar="HOST:PORT",
        help="The name server; several are separated by `;`.",
        callback=_require_addresses,
    ),
]
Admin = Annotated[
    str | None,
    typer.Option(
        "--admin",
        envvar="LEDGERMQ_ADMIN",
        metavar="URL",
        help="Ask this admin service instead of the brokers.",
        show_default=False,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="LEDGERMQ_ADMIN_TOKEN",
        metavar="TOKEN",
        help="For --admin; better given as LEDGERMQ_ADMIN_TOKEN, where no list of processes shows it.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON as /api/v1 answers it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what it would do.")]
Page = Annotated[int, typer.Option(min=1, help="Which page of a long list.")]
PageSize = Annotated[int, typer.Option("--page-size", min=1, max=1000, help="Lines on a page.")]
PAGE_SIZE: Final = 1000


_AGO: Final = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNIX_MS: Final = re.compile(r"\d{12,15}")
FORMS: Final = "2026-01-31T05:00, 2026-01-31 05:00+01:00, a Unix time in ms, or 30m for half an hour ago"


def parse_moment_ms(option: str, text: str) -> int:
    """Return Unix time in ms. A time without a zone is in this machine's time zone. Raises: UserError."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return time.time_ns() // 1_000_000 - int(ago[1]) * _UNIT_MS[ago[2]]
    if _UNIX_MS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        return max(0, round(moment.astimezone().timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise UserError(f"{option} {text!r} is no time: write {FORMS}.", WRONG_USAGE) from None
