"""The examples of docs/spark.md, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.client_runs import ROOT
from tests.integration.cluster import Cluster

PAGE = ROOT / "docs/spark.md"
NAMESRV = "127.0.0.1:9876"
QUICKSTART = "Quickstart in ten lines"
COOKBOOK = ("Cookbook", "SQL over a topic", "Join a topic with a table", "Count per window")
COPY = "Copy between topics exactly once"
JOBS = ("Jobs", "Archive")
ORDERS = 100


def examples(heading: str) -> list[str]:
    """The Python blocks right under a heading, before the next one."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", _without_comments(text), re.M | re.S)
    assert found is not None, f"docs/spark.md has no heading {heading!r}"
    return re.findall(r"^```python\n(.*?)^```", found[1], re.M | re.S)


def _without_comments(text: str) -> str:
    """Lines of code that begin with `#` are no headings."""
    blocks = re.compile(r"^```.*?^```", re.M | re.S)
    return blocks.sub(lambda block: re.sub(r"^#", " #", block[0], flags=re.M), text)


class Page:
    """Runs examples one after the other, in one namespace, against a cluster and in a folder."""

    def __init__(self, namesrv: str, folder: Path) -> None:
        self.names: dict[str, Any] = {}
        self._places = {
            NAMESRV: namesrv,
            '"checkpoints/copy"': repr(str(folder / "copy")),
            '"archive"': repr(str(folder / "archive")),
        }

    def run(self, heading: str) -> None:
        blocks = examples(heading)
        assert blocks, f"{heading} has no example"
        for block in blocks:
            for place, real in self._places.items():
                block = block.replace(place, real)
            exec(compile(block, f"{PAGE.name}: {heading}", "exec"), self.names)


def test_the_quickstart_has_ten_lines() -> None:
    (block,) = examples(QUICKSTART)
    assert len([line for line in block.splitlines() if line.strip()]) <= 10


def test_the_examples_do_what_they_say(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Page(cluster.namesrv, tmp_path)
    page.run(QUICKSTART)
    assert {"hello", "world"} <= set(re.findall(r"\w+", capsys.readouterr().out))
    for heading in COOKBOOK:
        page.run(heading)
    new = [n for n in range(ORDERS) if n % 3]
    sums = {customer: sum(n + 0.5 for n in new if n % 4 == customer) for customer in range(4)}
    assert {row.customer: row.amount for row in page.names["best"].collect()} == sums
    everything = [sum(n + 0.5 for n in range(ORDERS) if n % 4 == customer) for customer in range(4)]
    assert {row.name: row.amount for row in page.names["named"].collect()} == dict(
        zip(("Ada", "Grace", "Edsger", "Barbara"), everything, strict=True)
    )
    assert sum(row["count"] for row in spark.table("per_minute").collect()) == ORDERS
    for _ in range(2):
        page.run(COPY)
        reader = spark.read.format("rocketmq").option("namesrv", cluster.namesrv)
        assert reader.option("subscribe", "OrdersCopy").load().count() == ORDERS
    for heading in JOBS:
        page.run(heading)
    archived = page.names["SPARK_SCHEMA"]
    assert spark.read.schema(archived).parquet(str(tmp_path / "archive")).count() == ORDERS
