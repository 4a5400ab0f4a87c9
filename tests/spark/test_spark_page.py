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
OTHERS = ("Reading", "Data loss", "Writing", "Exactly-once", "Reading store files", "Audit")
EVERY = (QUICKSTART, *COOKBOOK, COPY, *JOBS, *OTHERS)
ORDERS = 100
QUERY_LIMIT_S = 120
STORE = re.compile(r'"data/(n\d)/store"')


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

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.names: dict[str, Any] = {}
        self._cluster, self._folder = cluster, folder

    def run(self, heading: str) -> None:
        blocks = examples(heading)
        assert blocks, f"{heading} has no example"
        for block in blocks:
            exec(compile(self._placed(block, heading), f"{PAGE.name}: {heading}", "exec"), self.names)

    def _placed(self, block: str, heading: str) -> str:
        places = {
            NAMESRV: self._cluster.namesrv,
            '"checkpoints/copy"': repr(str(self._folder / "copy")),
            '"checkpoint"': repr(str(self._folder / heading)),
            '"path", "orders"': f'"path", {str(self._folder / "orders")!r}',
            '"archive"': repr(str(self._folder / "archive")),
        }
        for place, real in places.items():
            block = block.replace(place, real)
        return STORE.sub(lambda found: repr(str(self._cluster.data / found[1] / "store")), block)


def test_the_quickstart_has_ten_lines() -> None:
    (block,) = examples(QUICKSTART)
    assert len([line for line in block.splitlines() if line.strip()]) <= 10


def test_every_example_of_the_page_is_run() -> None:
    blocks = re.findall(r"^```python\n", PAGE.read_text(encoding="utf-8"), re.M)
    assert len(blocks) == sum(len(examples(heading)) for heading in EVERY)


def test_the_examples_do_what_they_say(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Page(cluster, tmp_path)
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
    others_do_what_they_say(page, spark, tmp_path, capsys)


def others_do_what_they_say(
    page: Page, spark: SparkSession, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The examples beside the cookbook, after it: what they need besides is made here."""
    page.run("Reading")
    assert page.names["fresh"].count() == 2
    assert page.names["query"].awaitTermination(QUERY_LIMIT_S)
    assert spark.read.parquet(str(folder / "orders")).where("topic = 'Orders'").count() == ORDERS
    page.run("Data loss")
    lag = page.names["lag_by_queue"](page.names["query"].lastProgress)
    assert lag["Orders"] == {f"broker-a:{queue}": 0 for queue in range(4)}

    spark.range(7).selectExpr("id", "id * 2 AS amount").createOrReplaceTempView("paid_orders")
    topic = spark.readStream.format("rocketmq").options(**page.names["cluster"], subscribe="Greetings")
    page.names["stream"] = topic.option("startingOffsets", "earliest").load().select("body")
    page.run("Writing")
    try:
        page.names["query"].processAllAvailable()
    finally:
        page.names["query"].stop()
    read = spark.read.format("rocketmq").options(**page.names["cluster"])
    assert read.option("subscribe", "Orders").load().count() == ORDERS + 7 + 2

    page.run("Exactly-once")
    made = {**page.names["cluster"], "topic": "Copy", "createTopicQueues": 4}
    spark.sql("SELECT 'first' AS body").write.format("rocketmq").mode("append").options(**made).save()
    page.names["copy"](spark.createDataFrame([("a row",)], "body string"), 0)
    page.names["copy"](spark.createDataFrame([("a row",)], "body string"), 0)
    assert read.option("subscribe", "Copy").load().count() == 1 + 1

    capsys.readouterr()
    page.run("Reading store files")
    assert re.search(r"new\|\s*66", capsys.readouterr().out)
    page.run("Audit")
    assert page.names["report"].is_identical
