"""`ledgermq doctor`: what is wrong, and what to do."""

from typing import Annotated

import typer

from ledgermq.calls import Call, remote
from ledgermq.errors import NOT_DONE
from ledgermq.output import Json, console, printable

app = typer.Typer(add_completion=False)
_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


@app.command()
@remote
def doctor(
    call: Call,
    sample: Annotated[
        float, typer.Option(min=0, max=10, metavar="SECONDS", help="Look twice: does a lag grow meanwhile?")
    ] = 0,
) -> None:
    """Look at everything and say in sentences what is wrong and what to do. Exit code 1 with an error."""
    sample_ms = round(sample * 1000)
    report = call.get(
        "/doctor", lambda services: services.doctor.examine(sample_ms), {"sampleMs": sample_ms or None}
    )
    try:
        call.show(report, show_report)
    finally:
        if not report["isWell"]:
            raise typer.Exit(NOT_DONE)


def show_report(report: Json) -> None:
    from rich.text import Text

    printer = console()
    for finding in report["findings"]:
        severity = finding["severity"]
        head = Text(f"{severity:<8}", _STYLES[severity]) + Text(printable(finding["sentence"]))
        printer.print(head, soft_wrap=True)
        printer.print(Text(f"        {printable(finding['remedy'])}", "dim"), soft_wrap=True)
    looked = ", ".join(
        f"{'unknown' if count is None else count} {words}"
        for (_, count), words in zip(report["lookedAt"].items(), _LOOKED_AT, strict=True)
    )
    if report["findings"]:
        printer.print(f"Looked at {looked}.")
    else:
        printer.print(f"Nothing is wrong with {looked}.")


_LOOKED_AT = ("groups", "nodes", "consumer groups", "dead letter queues")
