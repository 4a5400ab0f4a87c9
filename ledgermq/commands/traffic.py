"""`produce`, `consume` and `bench`: send messages, receive them, and measure throughput."""

from enum import StrEnum
from typing import Annotated

import typer

from ledgermq.options import DEFAULT_NAMESRV, Namesrv

app = typer.Typer(add_completion=False)


class Start(StrEnum):
    """Where a group without offsets begins."""

    FIRST = "first"
    LAST = "last"


@app.command()
def produce(
    topic: str,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    count: Annotated[int | None, typer.Option(min=1, help="Send this many made-up messages.")] = None,
    size: Annotated[int, typer.Option(min=1, help="Bytes of each made-up message.")] = 100,
    tag: Annotated[str | None, typer.Option(help="Tag of every message.")] = None,
    key: Annotated[str | None, typer.Option(help="Key of every message.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Messages a second at most.")] = None,
    in_flight: Annotated[
        int, typer.Option(min=1, max=10_000, help="Messages sent and not yet acknowledged.")
    ] = 32,
) -> None:
    """Send each line of stdin as a message, or --count made-up ones, and count the acknowledgements."""
    from ledgermq.commands.messaging import ProduceOptions
    from ledgermq.commands.messaging import produce as run

    run(ProduceOptions(topic, namesrv, count, size, tag, key, rate, in_flight))


@app.command()
def consume(
    topic: str,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    group: Annotated[
        str, typer.Option(help="Consumer group; its offsets are kept by the brokers.")
    ] = "ledgermq-cli",
    start: Annotated[Start, typer.Option("--from", help="Where a new group begins.")] = Start.FIRST,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many messages.")] = None,
) -> None:
    """Print each message's body as a line of text until --count or Ctrl-C."""
    from ledgermq.commands.messaging import ConsumeOptions
    from ledgermq.commands.messaging import consume as run

    run(ConsumeOptions(topic, namesrv, group, start is Start.FIRST, count))


@app.command()
def bench(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    seconds: Annotated[float, typer.Option(min=2.0, help="Length of all loads together.")] = 60.0,
    size: Annotated[int, typer.Option(min=1, max=4 * 1024 * 1024, help="Bytes of a body.")] = 1024,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Load the cluster for a minute: 1, 64 and 2,000 sends in flight, then a quarter of that rate, evenly.

    Every acknowledged message is counted afterwards. The topic is deleted, but its messages stay in the log
    until retention deletes them: about 1 GiB on every node per minute and 16,000 messages of 1 KiB a second.
    """
    from ledgermq.commands.bench import BenchOptions
    from ledgermq.commands.bench import bench as run

    run(BenchOptions(namesrv, seconds, size), as_json=as_json)
