"""`ledgermq doctor`: what is wrong, and what to do."""

from typing import Annotated

import typer

from ledgermq.calls import Call, remote
from ledgermq.errors import NOT_DONE
from ledgermq.output import Json, Styled, printable, write

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
    for finding in report["findings"]:
        severity = finding["severity"]
        write(Styled(f"{severity:<8}", _STYLES[severity]), Styled(printable(finding["sentence"])))
        write(Styled(f"        {printable(finding['remedy'])}", "dim"))
    checked = ", ".join(map(counted, report["lookedAt"].values(), _LOOKED_AT))
    write(Styled(f"Checked {checked}." if report["findings"] else f"Nothing is wrong with {checked}."))


def counted(count: int | None, thing: str) -> str:
    """`1 group`, `3 groups`, `unknown groups`."""
    return f"{'unknown' if count is None else count} {thing if count == 1 else f'{thing}s'}"


_LOOKED_AT = ("group", "node", "consumer group", "dead letter queue")
