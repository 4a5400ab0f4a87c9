"""`ledgermq watch`: groups, nodes, marks, lag and rates, live."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ledgermq.calls import Call, remote
from ledgermq.commands.status import require_known
from ledgermq.errors import PARTIAL, UserError
from ledgermq.output import print_json, remark

if TYPE_CHECKING:
    from ledgermq.polling import Snapshot
    from ledgermq.watch_view import Watched

app = typer.Typer(add_completion=False)


@app.command()
@remote
def watch(
    call: Call,
    every: Annotated[
        float, typer.Option(min=0.2, max=60, metavar="SECONDS", help="Between two polls.")
    ] = 1.0,
) -> None:
    """Show the cluster live until q or Ctrl-C. Without a terminal: one poll (with --json: as JSON)."""
    from ledgermq.polling import poller
    from ledgermq.watch_view import Watched

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
