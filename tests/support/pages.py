"""The tables of pages that follow from the code, each between two markers.

`python -m tests.support.pages` writes them again; `tests/unit/test_pages.py` checks that they are up to date.
"""

import ast
import asyncio
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from prometheus_client.core import Metric
from pydantic.fields import FieldInfo

import broker.config
import remoting.codes
from admin_api.cluster.schemas import ClusterView, NamesrvView, NodeState
from admin_api.metrics import AdminMetrics
from broker.config import MIB, RUNTIME_KEYS, BrokerConfig
from broker.monitoring.exporter import make_exporter
from grpc_endpoint.metrics import CallFigures, EndpointMetrics
from remoting.codes import RequestCode, ResponseCode
from remoting.server import RemotingServer
from telemetry.families import PREFIX
from tests.support.broker_parts import FakeEngine, make_parts
from tests.support.fake_log import FakeLog
from tests.unit.commitlog import damage_page

ROOT = Path(__file__).resolve().parents[2]
Row = tuple[str, ...]
LINK = re.compile(r"\bdocs/((?:\w+/)?(\w+)\.md(#[\w-]+)?)")
"""How docstrings name a page."""
BOUNDS = ("ge", "le", "multiple_of")
LABELS = "_labelnames"
"""Where Prometheus' library keeps the names of a metric's labels."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table in `page`, between the markers `<!-- NAME -->` and `<!-- end of NAME -->`."""

    page: str
    name: str
    titles: Row
    rows: Callable[[], Iterable[Row]]

    def written(self) -> str:
        """What the page has; raises ValueError when it lacks a marker."""
        return self._parts()[1]

    def text(self) -> str:
        """What the page should have."""
        lines = (self.titles, ("---",) * len(self.titles), *self.rows())
        return "".join(f"| {' | '.join(cells)} |\n".replace("|  ", "| ") for cells in lines)

    def write(self) -> None:
        before, _, behind = self._parts()
        (ROOT / self.page).write_text(before + self.text() + behind, encoding="utf-8")

    def _parts(self) -> tuple[str, str, str]:
        begin, end = f"<!-- {self.name} -->\n", f"<!-- end of {self.name} -->\n"
        before, has_begin, rest = (ROOT / self.page).read_text(encoding="utf-8").partition(begin)
        within, has_end, behind = rest.partition(end)
        if not has_begin or not has_end:
            raise ValueError(f"{self.page} lacks the markers of {self.name}")
        return before + begin, within, end + behind


def key_rows() -> Iterator[Row]:
    """The keys of a broker's configuration."""
    meanings = docstrings(broker.config, "BrokerConfig")
    for name, field in BrokerConfig.model_fields.items():
        changes = "yes" if field.alias in RUNTIME_KEYS else ""
        default = _value(name, field.default)
        yield f"`{field.alias}`", default, _allowed(name, field), changes, meanings.get(name, "")


def _value(name: str, value: object) -> str:
    match value:
        case None:
            return "none"
        case "":
            return "empty"
        case bool():
            return str(value).lower()
        case int() if "bytes" in name and value >= MIB and value % MIB == 0:
            mib = value // MIB
            return f"{mib // 1024} GiB" if mib % 1024 == 0 else f"{mib} MiB"
    return str(value)


def _allowed(name: str, field: FieldInfo) -> str:
    bounds = {name: getattr(each, name) for each in field.metadata for name in BOUNDS if hasattr(each, name)}
    words = []
    if get_origin(field.annotation) is Literal:
        words = [" or ".join(f"`{value}`" for value in get_args(field.annotation))]
    if "ge" in bounds:
        words = [f"{_value(name, bounds['ge'])} to {_value(name, bounds['le'])}"]
    if "multiple_of" in bounds:
        words.append(f"multiples of {bounds['multiple_of']}")
    return ", ".join(words)


def own_code_rows() -> Iterator[Row]:
    """The codes that RocketMQ does not have."""
    codes: tuple[type[IntEnum], ...] = (RequestCode, ResponseCode)
    for kind in codes:
        meanings = docstrings(remoting.codes, kind.__name__)
        for code in kind:
            if code.name.startswith("LEDGERMQ_"):
                word = "request" if kind is RequestCode else "answer"
                yield str(int(code)), f"{code.name}", word, meanings.get(code.name, "")


def broker_metric_rows() -> Iterator[Row]:
    """What a scrape of a broker shows."""
    return iter(asyncio.run(_broker_metrics()))


async def _broker_metrics() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        parts = make_parts(Path(folder), FakeLog(), FakeEngine(), metricsPort=1)
        server = RemotingServer(parts.router, "127.0.0.1", 0)
        return list(_metric_rows(make_exporter(parts.core, {}, server).collect()))


def admin_metric_rows() -> Iterator[Row]:
    """What a scrape of the admin service shows, without what brokers show under the same names."""
    metrics = AdminMetrics()
    metrics.render(ClusterView(as_of_ms=0, namesrv=NamesrvView(address="", state=NodeState.UP), groups=[]), 0)
    families = [*metrics.collect()]
    for counted in (metrics.requests, metrics.request_seconds, metrics.asks, metrics.ask_seconds):
        for family in counted.collect():
            setattr(family, LABELS, getattr(counted, LABELS))
            families.append(family)
    shared = ("event_loop", "process")
    return _metric_rows(each for each in families if not each.name.startswith(shared, len(PREFIX)))


def grpc_metric_rows() -> Iterator[Row]:
    """What a scrape of the gRPC endpoint shows, without what all processes show."""
    calls = {"SendMessage": CallFigures()}
    calls["SendMessage"].end(calls["SendMessage"].begin(), 0)
    families = EndpointMetrics(calls, (), (), lambda: 0, {"all": 0}).collect()
    shared = ("event_loop", "process")
    return _metric_rows(each for each in families if not each.name.startswith(shared, len(PREFIX)))


def _metric_rows(metrics: Iterable[Metric]) -> Iterator[Row]:
    for metric in metrics:
        labels = [*getattr(metric, LABELS, ())]
        if metric.type == "histogram":
            labels.append("le")
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        yield f"`{name}`", ", ".join(labels), metric.documentation


def docstrings(module: Any, name: str) -> dict[str, str]:
    """The texts below the fields or members of a module's class, with links that work in `docs/`."""
    tree = ast.parse(Path(module.__file__).read_bytes())
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    found = {}
    for field, text in pairwise(body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=field_name)) | ast.Assign(targets=[ast.Name(id=field_name)]),
                ast.Expr(value=ast.Constant(value=str(words))),
            ):
                found[field_name] = LINK.sub(r"[\2](\1)", " ".join(words.split()))
    return found


METRIC_TITLES = ("name", "labels", "meaning")
TABLES = (
    Table(
        "docs/broker.md",
        "the keys",
        ("key", "default", "allowed", "changes while it runs", "meaning"),
        key_rows,
    ),
    Table("docs/broker.md", "our own codes", ("code", "name", "of a", "meaning"), own_code_rows),
    Table("docs/crash_safety.md", "the damage table", damage_page.TITLES, damage_page.damage_rows),
    Table("docs/monitoring.md", "the metrics of brokers", METRIC_TITLES, broker_metric_rows),
    Table("docs/monitoring.md", "the metrics of the admin service", METRIC_TITLES, admin_metric_rows),
    Table("docs/monitoring.md", "the metrics of the gRPC endpoint", METRIC_TITLES, grpc_metric_rows),
)


if __name__ == "__main__":
    for table in TABLES:
        table.write()
