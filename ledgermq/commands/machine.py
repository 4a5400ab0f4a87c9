"""`ledgermq machine`: what runs on this machine, of a cluster over several."""

from pathlib import Path
from typing import Annotated

import typer

from ledgermq.app import Subcommands

app = typer.Typer(
    name="machine",
    cls=Subcommands,
    help="Run what belongs on this machine, as `ledgermq cluster init --machines` planned it.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def up(
    home: Annotated[
        Path,
        typer.Option(envvar="LEDGERMQ_HOME", metavar="DIR", help="The folder of this machine."),
    ] = Path("/var/lib/ledgermq"),
    log_files: Annotated[
        bool, typer.Option("--log-files", help="Each process writes to DIR/logs, not to this one's output.")
    ] = False,
) -> None:
    """Run this machine's name server, nodes, admin and gRPC endpoint, and start again what ends.

    Once all of them listen, one line is printed on stdout, READY and their process ids and addresses as JSON,
    and systemd is notified. Other machines are not waited for. SIGTERM stops all in order.
    """
    from ledgermq.machines.run import up as run

    run(home, has_log_files=log_files)
