"""`ledgermq watch`: polls over persistent connections, and shows nodes with the ends of their logs, the lag
of consumers, and rates. Its keys are read from the terminal without Enter.
"""

import asyncio
import os
import select
import termios
import tty
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

import orjson

from ledgermq.calls import Call, sentence
from ledgermq.cluster_view import STOCK_WORDS, is_stock, namesrvs_of, node_state
from ledgermq.errors import UserError
from ledgermq.output import Column, Json, cell, duration, moment, number, printable

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
    from rich.measure import Measurement
    from rich.table import Table

    from admin_api.services import Services


GROUPS_SHOWN: Final = 20
PARTS: Final = ("cluster", "brokers", "groups")
_PATHS: Final = {
    "cluster": ("/cluster", None),
    "brokers": ("/brokers", {"pageSize": 1000}),
    "groups": ("/consumer-groups", {"sort": "lag", "descending": True, "pageSize": GROUPS_SHOWN}),
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a cluster. A part that could not be read is missing, and `problems` has the reason."""

    parts: dict[str, Json]
    problems: tuple[str, ...]

    @property
    def is_partial(self) -> bool:
        """Whether a part is missing or incomplete."""
        return bool(self.problems) or any(part.get("isPartial") for part in self.parts.values())

    @property
    def silent(self) -> dict[str, str]:
        """Nodes that gave no answer for some part, each with the reason."""
        troubles = [trouble for part in self.parts.values() for trouble in part.get("problems") or ()]
        return {trouble["address"]: trouble["problem"] for trouble in troubles}


@contextmanager
def poller(call: Call) -> Iterator[Callable[[], Snapshot]]:
    """Yield a function that polls once. It does not raise when a broker or service fails."""
    if call.admin is not None:
        yield _http_poller(call)
        return
    with asyncio.Runner() as runner:
        services = _Opened(call.namesrv)
        runner.run(services.open())
        try:
            yield lambda: runner.run(services.poll())
        finally:
            runner.run(services.close())


def _http_poller(call: Call) -> Callable[[], Snapshot]:
    from ledgermq.api_client import ApiClient

    assert call.admin is not None
    admin = call.admin

    def poll() -> Snapshot:
        # A new client for each poll: the limit for waiting is per client, and polling continues for days.
        client = ApiClient(admin, call.token)
        parts: dict[str, Json] = {}
        problems: dict[str, None] = {}
        for name in PARTS:
            path, query = _PATHS[name]
            try:
                parts[name] = client.call("GET", path, query)
            except UserError as error:
                problems[str(error)] = None
        return Snapshot(parts, tuple(problems))

    return poll


class _Opened:
    """The admin services of this process, open while it polls."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._context: Any = None
        self._services: Services | None = None

    async def open(self) -> None:
        from admin_api.services import open_services
        from admin_api.settings import Settings

        self._context = open_services(Settings(namesrv=self._namesrv))
        self._services = await self._context.__aenter__()

    async def close(self) -> None:
        await self._context.__aexit__(None, None, None)

    async def poll(self) -> Snapshot:
        assert self._services is not None
        problems: dict[str, None] = {}
        asked = [self._part(ask(self._services), problems) for ask in (_cluster, _brokers, _groups)]
        found = await asyncio.gather(*asked)
        parts = {name: part for name, part in zip(PARTS, found, strict=True) if part is not None}
        return Snapshot(parts, tuple(problems))

    async def _part(self, asking: "Awaitable[BaseModel]", problems: dict[str, None]) -> Json | None:
        from admin_api.errors import ServiceError
        from admin_api.gateway import AskError

        try:
            part: Json = orjson.loads((await asking).model_dump_json(by_alias=True))
        except (AskError, ServiceError) as error:
            problems[sentence(error)] = None
            return None
        return part


def _cluster(services: "Services") -> "Awaitable[BaseModel]":
    return services.reader.read()


def _brokers(services: "Services") -> "Awaitable[BaseModel]":
    from admin_api.errors import PageWanted

    return services.brokers.find(PageWanted(size=1000))


def _groups(services: "Services") -> "Awaitable[BaseModel]":
    from admin_api.errors import PageWanted
    from admin_api.groups.overview import GroupSort
    from admin_api.groups.service import GroupQuery

    query = GroupQuery(sort=GroupSort.LAG, is_descending=True)
    return services.consumer_groups.find(query, PageWanted(size=GROUPS_SHOWN))


class Keys:
    """Inside this block keys are read one by one and are not echoed; Ctrl-C works as before."""

    def __init__(self, terminal: TextIO) -> None:
        self._fd = terminal.fileno()
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._fd)
        tty.setcbreak(self._fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str | None:
        """The next key, or None if none was pressed in this time. The end of stdin counts as `q`."""
        waiting = select.poll()
        waiting.register(self._fd, select.POLLIN)
        if not waiting.poll(1_000 * seconds):
            return None
        key = os.read(self._fd, 1)
        return key.decode("latin-1") if key else "q"


BAR_CELLS: Final = 24
BAR_CELLS_MIN: Final = 4
UNKNOWN: Final = "?"
"""Unknown. One character, since a node that is down has it in every column of a terminal of 80 columns."""
_ELECTIONS: Final = 3


@dataclass(slots=True)
class Pace:
    """Rates between two polls: the earlier counts, and when they were polled (seconds of one clock)."""

    at_s: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    def rates(self, counts: Mapping[str, int], at_s: float) -> dict[str, float]:
        """The rate of each count, per second since the last snapshot; none at the first snapshot."""
        before, then_s = self.counts, self.at_s
        self.counts, self.at_s = counts, at_s
        if then_s is None or at_s <= then_s:
            return {}
        return {key: (now - before[key]) / (at_s - then_s) for key, now in counts.items() if key in before}


@dataclass(slots=True)
class Watched:
    """Renders snapshots, one after the other."""

    entries: Pace = field(default_factory=Pace)
    lags: Pace = field(default_factory=Pace)

    def picture(self, snapshot: Snapshot, at_s: float, shown_at_ms: int, ending: str) -> "Group":
        from rich.console import Group
        from rich.text import Text

        cluster = snapshot.parts.get("cluster")
        groups = snapshot.parts.get("groups")
        head = Text(f"{moment(shown_at_ms)}  ", "bold") + Text(ending, "dim")
        lines: list[RenderableType] = [head, Text()]
        if cluster is not None:
            lines += self._cluster(cluster, snapshot.parts.get("brokers"), at_s)
        if groups is not None:
            lines += self._groups(groups, at_s)
        lines += [Text(printable(problem), "bold red") for problem in snapshot.problems]
        return Group(*lines)

    def _cluster(self, view: Json, brokers: Json | None, at_s: float) -> "list[RenderableType]":
        from rich.text import Text

        committed = {group["group"]: _committed(group) for group in view["groups"]}
        known = {name: index for name, index in committed.items() if index is not None}
        rates = self.entries.rates(known, at_s)
        traffic = {row["address"]: row for row in brokers["items"]} if brokers else {}
        lines: list[RenderableType] = []
        for group in view["groups"]:
            style = "bold green" if group["state"] == "writable" else "bold red"
            leader = f"{group['leaderId']} leads, term {group['term']}" if group["leaderId"] else "no leader"
            said = STOCK_WORDS if is_stock(group) else leader
            name, said = printable(group["group"]), printable(said)
            title = Text(f"{name}: ", "bold") + Text(group["state"], style) + Text(f", {said}")
            if group["group"] in rates:
                title += Text(f", {rates[group['group']]:,.0f} entries/s committed")
            end = max((n["log"]["endIndex"] or 0 for n in group["nodes"]), default=0)
            rows = [{**n, "traffic": traffic.get(n["remotingAddress"]), "top": end} for n in group["nodes"]]
            lines += [title, _table(rows, _NODES)]
            lines += [Text(_election(each), "dim") for each in (group["elections"] or [])[-_ELECTIONS:][::-1]]
            lines.append(Text())
        for namesrv in namesrvs_of(view):
            if namesrv["problem"]:
                lines.append(Text(f"name server: {printable(namesrv['problem'])}", "bold red"))
        return lines

    def _groups(self, page: Json, at_s: float) -> "list[RenderableType]":
        from rich.text import Text

        lags = {row["group"]: row["lag"] for row in page["items"] if row["lag"] is not None}
        rates = self.lags.rates(lags, at_s)
        rows = [{**row, "grows": rates.get(row["group"])} for row in page["items"]]
        title = Text(f"consumer groups: {page['total']}, those with the most lag first", "bold")
        return [title, _table(rows, _GROUPS)] if rows else [Text("no consumer groups", "dim")]


def _committed(group: Json) -> int | None:
    """The highest value that a node reports; None if no node reports one."""
    reported: list[int | None] = [node["log"]["committedIndex"] for node in group["nodes"]]
    return max((index for index in reported if index is not None), default=None)


def _table(rows: Iterable[Json], columns: Sequence[Column]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(column.head, justify="right" if column.is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_shown(column.of(row)) for column in columns))
    return table


def _shown(value: object) -> "RenderableType":
    from rich.text import Text

    if isinstance(value, Bar):
        return value
    styled = cell(value, UNKNOWN)
    return Text(styled.text, styled.style)


@dataclass(frozen=True, slots=True)
class Bar:
    """A node's log as a bar, as wide as its column: a folded bar would be useless."""

    node: Json

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        yield Text(bar(self.node, min(BAR_CELLS, options.max_width)), no_wrap=True)

    def __rich_measure__(self, console: "Console", options: "ConsoleOptions") -> "Measurement":
        from rich.measure import Measurement

        return Measurement(BAR_CELLS_MIN, BAR_CELLS)


def bar(node: Json, cells: int = BAR_CELLS) -> str:
    """The share of the longest log that the node has committed (=), and only written (-)."""
    log: Json = node["log"]
    top: int = node["top"]
    if log["endIndex"] is None or top <= 0:
        return ""
    begin: int = round(cells * max(0, log["beginIndex"] or 0) / top)
    committed: int = round(cells * min(1.0, max(0, log["committedIndex"] or 0) / top))
    end: int = round(cells * min(1.0, max(0, log["endIndex"]) / top))
    text = " " * begin + "=" * max(0, committed - begin) + "-" * max(0, end - committed)
    return text.ljust(cells)


def _election(election: Json) -> str:
    who = f"{election['leaderId']} elected" if election["leaderId"] else "no leader"
    reason = f" ({election['reason']})" if election["reason"] else ""
    return printable(f"  {moment(election['atMs'])}  term {election['term']}: {who}{reason}")


def _rate(key: str) -> Column:
    head = {"putPerSecond": "in/s", "getPerSecond": "out/s"}[key]
    return number(head, lambda node: (node["traffic"] or {}).get(key))


_NODES = (
    Column("node", lambda node: node["id"] or node["remotingAddress"]),
    Column("state", node_state),
    Column("log", Bar),
    number("end", lambda node: node["log"]["endIndex"]),
    number("persisted", lambda node: node["log"]["persistedIndex"]),
    number("committed", lambda node: node["log"]["committedIndex"]),
    number("lag", "lagEntries"),
    Column("behind", lambda node: duration(node["lagMs"])),
    _rate("putPerSecond"),
    _rate("getPerSecond"),
)
_GROUPS = (
    Column("group", "group"),
    Column("state", "presence"),
    number("members", "members"),
    number("lag", "lag"),
    number("lag grows by /s", "grows"),
    number("consumed/s", "consumeTps"),
)
