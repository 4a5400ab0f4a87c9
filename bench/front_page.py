"""The table of figures in README.md: the most important ones, good and bad.

`python -m bench.page` writes them between two marks.
"""

from __future__ import annotations

from typing import Any, Final

from bench.results_file import ROOT
from bench.summary import OURS
from bench.text_table import number, text_table

PAGE = ROOT / "README.md"
BEGIN: Final = "<!-- figures: written by python -m bench.page -->"
END: Final = "<!-- end of figures -->"
JAVA: Final = "java-dledger"
CPU: Final = "all_nodes_us_per_message"
NOT_MEASURED: Final = "-"
NO_CPU: Final = (NOT_MEASURED, NOT_MEASURED)
Document = dict[str, Any]

ROWS: Final = (
    ("stock Java producer, 64 threads", "messages/s", "sync64", "per_second", JAVA),
    ("the same", "messages/s", "sync64", "per_second", "java-single"),
    ("stock Java producer, 2,000 in flight", "messages/s", "flight2000", "per_second", JAVA),
    ("the same", "messages/s", "flight2000", "per_second", "java-single"),
    ("the same, bodies of 128 B", "messages/s", "flight2000-128", "per_second", JAVA),
    ("stock Java producer, 1 thread", "messages/s", "sync1", "per_second", JAVA),
    ("2,000 sends in flight, each side's own load", "messages/s", "own2000", "per_second", "nats"),
    ("stock push consumer drains", "messages/s", "drain", "per_second", JAVA),
    ("from send to push consumer, p99", "ms", "latency", "p99_ms", JAVA),
    ("`kill -9` of the leader, stock producer stands still", "s", "failover", "gap_s", JAVA),
    ("most memory of a node under load", "MB", "memory", "resident_mb", JAVA),
    ("**cold**: 64 threads, seconds after the start", "messages/s", "cold64", "per_second", JAVA),
)
"""Work, unit, scenario, figure and rival of each row."""
RIVALS: Final = {
    JAVA: "RocketMQ (Java) DLedger: page cache of a majority",
    "java-single": "RocketMQ (Java), one broker: its page cache",
    "nats": "NATS JetStream R3: disks of a majority",
}
"""Name of each rival, and where its acknowledged messages are. LedgerMQ: on the disks of a majority."""


SPARK_ROWS: Final = (
    ("source", "java-pull-32", "a stock Java consumer, one thread, pulls of 32, same cluster"),
    ("source", "java-pull-1024", "the same with pulls of 1,024"),
)
"""Part, the part beside it, and what that is."""


def figures_table(result: Document, pipeline: Document | None) -> str:
    """The rows that were measured: of the comparison's `result`, and of the pipeline's if there is one."""
    rows = []
    for work, unit, scenario, figure, rival in ROWS:
        pair = _pair(result, scenario, figure, rival)
        if NOT_MEASURED not in pair:
            cpu = _pair(result, scenario, CPU, rival)
            rows.append([work, unit, *pair, *cpu, RIVALS[rival]])
    rates = {
        part: found["per_second"]["median"]
        for part, found in (pipeline or {"summary": {}})["summary"].items()
    }
    for part, other, name in SPARK_ROWS:
        if part in rates and other in rates:
            rows.append(
                [
                    "Spark reads a topic",
                    "messages/s",
                    number(rates[part]),
                    number(rates[other]),
                    *NO_CPU,
                    name,
                ]
            )
    header = ["work", "", "LedgerMQ", "other", "CPU µs a message", "the other's"]
    return text_table([*header, "the other, and where its acknowledged message is"], rows)


def _pair(result: Document, scenario: str, figure: str, rival: str) -> tuple[str, str]:
    """The medians of LedgerMQ and of the rival."""
    sides = result["summary"].get(scenario, {})
    ours, theirs = (sides.get(side, {}).get(figure) for side in (OURS, rival))
    return _median(ours), _median(theirs)


def _median(spread: Document | None) -> str:
    return number(spread["median"]) if spread else NOT_MEASURED


def with_figures(text: str, table: str) -> str:
    """The page's text with this table between the marks. Raises ValueError when it has not both of them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def write_figures(result: Document, pipeline: Document | None) -> None:
    """Write the figures into README.md."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_figures(text, figures_table(result, pipeline)), encoding="utf-8")
