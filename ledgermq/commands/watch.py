"""`ledgermq watch`: groups, nodes, marks, lag and rates, live."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ledgermq.calls import Call, remote

if TYPE_CHECKING:
    from ledgermq.looking import Look
    from ledgermq.views.watching import Watched

app = typer.Typer(add_completion=False)


@app.command()
@remote
def watch(
    call: Call,
    every: Annotated[
        float, typer.Option(min=0.2, max=60, metavar="SECONDS", help="Between two looks.")
    ] = 1.0,
) -> None:
    """Show the cluster live until q or Ctrl-C. Without a terminal: one look (with --json: as JSON)."""
    import time

    from ledgermq.looking import looker
    from ledgermq.output import print_json
    from ledgermq.plain_text import FILE_WIDTH
    from ledgermq.views.watching import Watched

    watched = Watched()
    with looker(call) as look:
        if call.as_json:
            seen = look()
            print_json({**seen.parts, "problems": seen.problems})
            return
        from rich.console import Console

        printer = Console(highlight=False)
        if not printer.is_terminal:
            printer.width = FILE_WIDTH
        if not (printer.is_terminal and sys.stdin.isatty()):
            printer.print(watched.picture(look(), time.monotonic(), time.time_ns() // 1_000_000, ""))
            return
        _live(look, watched, every)


def _live(look: "Callable[[], Look]", watched: "Watched", every_s: float) -> None:
    import time

    from rich.live import Live

    from ledgermq.keys import Keys

    with Keys(sys.stdin) as keys, Live(screen=True, auto_refresh=False) as live:
        while True:
            seen = look()
            ending = f"every {every_s:g} s, q ends"
            now_ms = time.time_ns() // 1_000_000
            live.update(watched.picture(seen, time.monotonic(), now_ms, ending), refresh=True)
            if keys.wait(every_s) in ("q", "Q", "\x1b"):
                return
