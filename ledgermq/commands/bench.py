"""`ledgermq bench`: measures throughput and latency of sends to a cluster, in a minute."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from admin_api.services import open_services
from admin_api.settings import Settings
from ledgermq.errors import UserError
from ledgermq.load.cluster import ask
from ledgermq.load.run import Load, LoadResult, Run
from ledgermq.messaging import tls_credentials
from ledgermq.signals import ending_in_order

TOPIC = "LedgerMQBench"
QUEUES = 8
RATE_SHARE = 0.25
"""The last load has this share of the highest measured rate, so that the cluster is below its limit."""
_FILE_WIDTH = 120
_WARMUP_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """`seconds`: all loads together; `size`: bytes of a body; `count_limit_s`: limit of the final count."""

    namesrv: str
    seconds: float = 60.0
    size: int = 1024
    in_flight: tuple[int, ...] = (1, 64, 2000)
    count_limit_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Row:
    """One load and its result."""

    name: str
    result: LoadResult


@dataclass(slots=True)
class Figures:
    """The table's content. `durability` and `nodes` are None if the broker does not report them."""

    rows: list[Row]
    durability: str | None
    nodes: int | None
    acknowledged: int
    stored: int

    def as_json(self) -> dict[str, Any]:
        return {
            "durability": self.durability,
            "nodes": self.nodes,
            "acknowledged": self.acknowledged,
            "stored": self.stored,
            "loads": [{"name": row.name} | row.result.as_json() for row in self.rows],
        }


def bench(options: BenchOptions, *, as_json: bool) -> None:
    """Run the loads against a new topic, print the figures, and delete the topic, also when the command is
    interrupted.

    Raises: UserError when no message can be written, or an acknowledged one is not stored.
    """
    with ending_in_order():
        figures = _measured(options)
    if as_json:
        print(orjson.dumps(figures.as_json()).decode())
    else:
        show(figures, options)
    if figures.stored < figures.acknowledged:
        raise UserError(f"{figures.acknowledged} messages were acknowledged and {figures.stored} are stored.")


def _measured(options: BenchOptions) -> Figures:
    durability, nodes = asyncio.run(_about(options.namesrv))
    topic = f"{TOPIC}-{time.time_ns() // 1_000_000}"
    leader = ask(options.namesrv, lambda cluster: cluster.make_topic(topic, QUEUES, limit_s=10.0))
    limit_s = options.count_limit_s
    try:
        # The first message, which proved that the topic is writable, belongs to no load.
        before = ask(options.namesrv, lambda cluster: cluster.stored_in_the_end(topic, 1, limit_s))
        rows = run_loads(options, topic, leader)
        acknowledged = sum(row.result.acknowledged for row in rows)
        wanted = before + acknowledged
        stored = ask(options.namesrv, lambda cluster: cluster.stored_in_the_end(topic, wanted, limit_s))
    finally:
        ask(options.namesrv, lambda cluster: cluster.delete_topic(topic))
    return Figures(rows, durability, nodes, acknowledged, stored - before)


def run_loads(options: BenchOptions, topic: str, leader: str) -> list[Row]:
    """One load for each number of sends in flight, then one at a fixed rate, which shows every stall."""
    host, _, port = leader.rpartition(":")
    seconds = options.seconds / (len(options.in_flight) + 1)
    warmup_s = seconds * _WARMUP_SHARE
    base = Load(size=options.size, seconds=seconds - warmup_s, warmup_s=warmup_s)
    targets = [(topic, queue) for queue in range(QUEUES)]
    rows: list[Row] = []
    tls = tls_credentials()
    with _progress() as progress:
        for in_flight in options.in_flight:
            load = replace(base, in_flight=in_flight)
            name = f"{in_flight:,} in flight"
            on_progress = _reporter(progress, name)
            rows.append(Row(name, Run(load, (host, int(port)), targets, on_progress, tls).measure()))
        rate = max(1.0, max(row.result.per_second for row in rows) * RATE_SHARE)
        load = replace(base, in_flight=max(options.in_flight), rate=rate)
        name = f"{rate:,.0f} a second"
        last = Run(load, (host, int(port)), targets, _reporter(progress, name), tls)
        rows.append(Row(name, last.measure()))
    return rows


def _reporter(progress: Progress, name: str) -> Callable[[float], None]:
    bar = progress.add_task(name, total=1.0)
    return lambda share: progress.update(bar, completed=share)


def show(figures: Figures, options: BenchOptions) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    console.print(table(figures, options.size))
    console.print(count_words(figures))
    generator = max(row.result.generator_us_per_message for row in figures.rows[1:])
    console.print(
        f"The load ran beside the command on one thread, at most {generator:g} µs of CPU time a message."
    )


def count_words(figures: Figures) -> str:
    """A send that failed, or whose answer was lost, may be stored nevertheless."""
    words = f"{figures.acknowledged:,} messages acknowledged, {figures.stored:,} stored"
    more = figures.stored - figures.acknowledged
    if more <= 0:
        return f"{words}."
    each = "one, whose send" if more == 1 else f"{more:,}, whose sends"
    return f"{words}: {each} failed or had no answer, {'was' if more == 1 else 'were'} stored all the same."


def table(figures: Figures, size: int) -> Table:
    durability = figures.durability or "durability unknown"
    nodes = f"{figures.nodes} nodes, " if figures.nodes else ""
    title = f"Bodies of {size:,} B; {nodes}{durability}; latencies in ms"
    found = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    found.add_column("sends")
    for name in ("messages/s", "MB/s", "p50", "p99", "p99.9", "max", "errors"):
        found.add_column(name, justify="right")
    for row in figures.rows:
        result = row.result
        marks = (result.p50_ms, result.p99_ms, result.p999_ms, result.max_ms)
        found.add_row(
            *(row.name, f"{result.per_second:,.0f}", f"{result.per_second * size / 1e6:,.1f}"),
            *("-" if mark is None else f"{mark:,.2f}" for mark in marks),
            str(sum(result.errors.values())),
        )
    return found


async def _about(namesrv: str) -> tuple[str | None, int | None]:
    """The durability that the nodes report, and their number.

    Raises: UserError when the name server gives no answer.
    """
    async with open_services(Settings(namesrv=namesrv)) as services:
        view = await services.reader.read()
    if view.namesrv.problem:
        raise UserError(f"the name server {namesrv} gives no answer: {view.namesrv.problem}.")
    group = view.groups[0] if view.groups else None
    return (group.durability, len(group.nodes)) if group else (None, None)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
