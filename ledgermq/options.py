"""Options that several commands have."""

from pathlib import Path
from typing import Annotated, Final

import typer

DEFAULT_DATA_DIR: Final = Path("ledgermq-data")
DEFAULT_NAMESRV: Final = "127.0.0.1:9876"

DataDir = Annotated[
    Path, typer.Option("--data", envvar="LEDGERMQ_DATA", metavar="DIR", help="Folder of the cluster's data.")
]
Namesrv = Annotated[
    str, typer.Option("--namesrv", envvar="LEDGERMQ_NAMESRV", metavar="HOST:PORT", help="The name server.")
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
