"""The `ledgermq` command.

Exit codes: 0 done, 1 not done (a sentence on stderr says why), 2 wrong usage, 130 ended by Ctrl-C.
"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ledgermq.errors import UserError
from rocketmq_spark.errors import RocketmqSparkError
from rocketmq_spark.jobs.cli import spark_commands
from rocketmq_spark.jobs.cli_app import tell

DEFAULT_DATA_DIR = Path("ledgermq-data")
DEFAULT_NAMESRV = "127.0.0.1:9876"
_INTERRUPTED = 130

app = typer.Typer(
    help="LedgerMQ: a replicated message broker for stock RocketMQ clients.",
    epilog="Exit codes: 0 done, 1 not done (stderr says why), 2 wrong usage, 130 ended by Ctrl-C.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(spark_commands())

DataDir = Annotated[
    Path, typer.Option("--data", envvar="LEDGERMQ_DATA", metavar="DIR", help="Folder of the cluster's data.")
]
Namesrv = Annotated[
    str, typer.Option("--namesrv", envvar="LEDGERMQ_NAMESRV", metavar="HOST:PORT", help="The name server.")
]


def _port(text: str, default: int) -> Any:
    return typer.Option(min=1, max=65535, metavar="PORT", show_default=str(default), help=text)


class Durability(StrEnum):
    """What stands behind an acknowledged message."""

    PERSISTED = "persisted"
    REPLICATED = "replicated"


class Start(StrEnum):
    """Where a group without offsets begins."""

    FIRST = "first"
    LAST = "last"


@app.command()
def version() -> None:
    """Say which version this is, and whether its hot path is compiled."""
    from importlib import metadata

    from native import compiled_modules

    found = ", ".join(compiled_modules())
    print(f"ledgermq {metadata.version('ledgermq')}, {f'compiled ({found})' if found else 'pure Python'}")


@app.command()
def up(
    data: DataDir = DEFAULT_DATA_DIR,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=9, help="Number of brokers; fixed once made.", show_default="3")
    ] = None,
    namesrv_port: Annotated[int | None, _port("Name server.", 9876)] = None,
    broker_port: Annotated[
        int | None, _port("Node i listens on this + 10·i, its replication 3 above.", 10911)
    ] = None,
    admin_port: Annotated[int | None, _port("Web page and HTTP interface.", 8080)] = None,
    durability: Annotated[
        Durability | None,
        typer.Option(
            help="persisted: acknowledged means on the disks of a majority; replicated: in their memory.",
            show_default="persisted",
        ),
    ] = None,
    restart: Annotated[bool, typer.Option(help="Start a process that ended by itself again.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, help="TOML file of broker keys."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One broker key; may be repeated.")
    ] = None,
) -> None:
    """Start a cluster on this machine, in the foreground: name server, brokers, admin.

    A cluster already in the folder goes on with its data. Once a message can be written, one line is printed
    on stdout: READY and the addresses as JSON.
    """
    from ledgermq.commands.up import up as run

    run(
        data,
        nodes=nodes,
        namesrv_port=namesrv_port,
        broker_port=broker_port,
        admin_port=admin_port,
        durability=durability,
        restart=restart,
        config=config,
        overrides=overrides or [],
    )


@app.command()
def node(node_id: Annotated[str, typer.Argument(metavar="NODE")], data: DataDir = DEFAULT_DATA_DIR) -> None:
    """Start one node of a local cluster again, in the foreground."""
    from ledgermq.commands.node import node as run

    run(node_id, data)


@app.command()
def status(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer of /api/v1/cluster.")] = False,
) -> None:
    """Show every node's role, term and log. Exit code 0 when one leader takes messages, 1 otherwise."""
    from ledgermq.commands.status import status as run

    if not run(namesrv, as_json=as_json):
        raise typer.Exit(1)


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
    from ledgermq.commands.produce import ProduceOptions
    from ledgermq.commands.produce import produce as run

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
    from ledgermq.commands.consume import ConsumeOptions
    from ledgermq.commands.consume import consume as run

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
    until retention takes them: about 1 GiB on every node per minute and 16,000 messages of 1 KiB a second.
    """
    from ledgermq.commands.bench import BenchOptions
    from ledgermq.commands.bench import bench as run

    run(BenchOptions(namesrv, seconds, size), as_json=as_json)


def main() -> None:
    """The entry point: the one place where errors become words and exit codes."""
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except RocketmqSparkError as error:
        sys.exit(tell(error))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
