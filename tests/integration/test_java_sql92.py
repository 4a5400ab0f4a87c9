"""The unchanged Java clients with MessageSelector.bySql, on clusters that filter by properties and do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.programs import versions
from tests.integration.checks import assert_each_exactly_once, assert_found_where_stored
from tests.integration.client_runs import Driver, Report, finish, java_driver, read_report
from tests.integration.cluster import Cluster
from tests.integration.conftest import RETRY_SOON
from tests.integration.messages import WORD, Sample, samples
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
VERSIONS = ("5.5.0", "4.9.8")
COUNTS = {"sync": 120, "async": 100, "batch": 100, "large": 5}
SENT = samples(**COUNTS)
EXPRESSIONS: tuple[tuple[str, Callable[[Sample], bool]], ...] = (
    (
        f"number between 10 and 79 and TAGS in ('TagA', 'TagB') and word = '{WORD}'",
        lambda sample: 10 <= sample.number <= 79 and sample.tag != "TagC",
    ),
    (
        "KEYS startswith 'key-large' or KEYS = 'key-batch-7'",
        lambda s: s.kind == "large" or s.key == "key-batch-7",
    ),
    ("missing is null and not (number > 3.5)", lambda sample: sample.number <= 3),
)


@pytest.fixture(scope="module")
def filtering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that filters by properties; a test that kills a node starts it again."""
    cluster = Cluster(tmp_path_factory.mktemp("filtering"))
    try:
        cluster.start({"enablePropertyFilter": "true", **RETRY_SOON})
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module", params=versions(VERSIONS))
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return java_driver(request.param, tmp_path_factory.mktemp("java-sql92"))


def run(driver: Driver, namesrv: str, action: str, topic: str, group: str, **options: object) -> Report:
    out = driver.folder / f"{action}-{group}.jsonl"
    arguments = [action, f"namesrv={namesrv}", f"topic={topic}", f"group={group}", f"out={out}"]
    return driver.run([*arguments, *(f"{name}={value}" for name, value in options.items())], out)


@pytest.fixture(scope="module")
def topic(filtering: Cluster, driver: Driver, name: str) -> str:
    """A topic with the samples in it."""
    topic = f"Sql92{_label(driver)}{name}"
    sent = run(driver, filtering.namesrv, "produce", topic, f"{topic}Producer", **COUNTS)
    assert len(sent) == len(SENT)
    received = run(
        driver, filtering.namesrv, "consume", topic, f"{topic}All", count=len(SENT), sql="number >= 0"
    )
    assert_each_exactly_once(received, SENT)
    assert_found_where_stored(sent, received)
    return topic


@pytest.mark.parametrize(
    ("which", "lite"),
    [
        (0, "false"),
        pytest.param(1, "false", marks=pytest.mark.long),
        pytest.param(2, "false", marks=pytest.mark.long),
        (0, "true"),
    ],
)
def test_exactly_what_the_expression_is_true_for_is_consumed(
    filtering: Cluster, driver: Driver, topic: str, which: int, lite: str
) -> None:
    sql, is_wanted = EXPRESSIONS[which]
    wanted = list(filter(is_wanted, SENT))
    group = f"{topic}G{which}{lite}"
    received = run(driver, filtering.namesrv, "consume", topic, group, sql=sql, count=len(wanted), lite=lite)
    assert_each_exactly_once(received, wanted)


def test_an_expression_that_java_refuses_is_refused_at_the_start(
    filtering: Cluster, driver: Driver, topic: str
) -> None:
    (report,) = run(driver, filtering.namesrv, "consume", topic, f"{topic}Bad", sql="number > 'x'")
    assert report["refused"] == 23
    assert "only numbers and properties" in report["words"]


def test_where_it_is_not_enabled_the_client_is_told(cluster: Cluster, driver: Driver, name: str) -> None:
    topic = f"Sql92Off{_label(driver)}{name}"
    run(driver, cluster.namesrv, "produce", topic, f"{topic}Producer", sync=1)
    (report,) = run(driver, cluster.namesrv, "consume", topic, f"{topic}Group", sql="number >= 0")
    assert report["refused"] == 1
    assert "does not support consumer to filter message by SQL92" in report["words"]


def test_a_message_that_fails_comes_back_though_retries_are_not_filtered(
    filtering: Cluster, driver: Driver, name: str
) -> None:
    topic = f"Sql92Retry{_label(driver)}{name}"
    run(driver, filtering.namesrv, "produce", topic, f"{topic}Producer", sync=4)
    sql = "number = 1 or number = 2"
    received = run(driver, filtering.namesrv, "consume", topic, f"{topic}Group", sql=sql, count=4, failures=1)
    wanted = [sample for sample in samples(sync=4) if sample.number in (1, 2)]
    assert_each_exactly_once([each for each in received if each["reconsume_times"] == 0], wanted)
    assert_each_exactly_once([each for each in received if each["reconsume_times"] == 1], wanted)


def test_the_new_leader_filters_where_the_old_one_stopped(
    filtering: Cluster, name: str, tmp_path: Path
) -> None:
    """All the expression is true for is consumed, perhaps twice, as after any failover, and nothing else."""
    sends, consumed, stop = tmp_path / "stream.jsonl", tmp_path / "consumed.jsonl", tmp_path / "stop"
    driver = java_driver("5.5.0", tmp_path)
    options = [
        f"namesrv={filtering.namesrv}",
        f"topic=Sql92Kill{name}",
        f"group=Sql92Kill{name}",
        "poll_ms=1000",
    ]
    producer = driver.start(["stream", *options, f"out={sends}", f"stop={stop}"], sends)
    try:
        wait_for("a hundred sends", lambda: len(acknowledged(sends)) >= 100, 60.0)
        only = ["sql=TAGS = 'TagB' and number > 20", "count=1000000000"]
        consumer = driver.start(["consume", *options, *only, f"out={consumed}"], consumed)
        wait_for("twenty consumed", lambda: len(read_report(consumed)) >= 20, 60.0)
        dead = filtering.wait_leader()
        filtering.kill(dead)
        before = len(acknowledged(sends))
        wait_for("a hundred sends to the new leader", lambda: len(acknowledged(sends)) >= before + 100, 60.0)
    finally:
        stop.touch()
        finish(producer, sends)
    filtering.restart(dead)
    try:
        wanted = {each["number"] for each in acknowledged(sends) if _is_of_tag_b(each)}
        wait_for("all that is wanted is consumed", lambda: wanted <= consumed_numbers(consumed), 90.0)
    finally:
        consumer.terminate()
        consumer.wait(20.0)
    strangers = [each for each in read_report(consumed) if not _is_of_tag_b(each)]
    assert strangers == []


def acknowledged(sends: Path) -> Report:
    return [each for each in read_report(sends) if each["status"] == "SEND_OK"]


def consumed_numbers(consumed: Path) -> set[int]:
    return {int(each["number"]) for each in read_report(consumed)}


def _is_of_tag_b(report: dict[str, Any]) -> bool:
    number = int(report["number"])
    return number > 20 and Sample("stream", number).tag == "TagB"


def _label(driver: Driver) -> str:
    """A word for the client's version, in the names of topics and groups."""
    return "Java4" if any("4.9.8" in part for part in driver.command) else "Java5"
