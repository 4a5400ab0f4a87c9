"""Fixtures of the pipeline's tests: one Spark session, one cluster for all that do not break it."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rocketmq_spark import register
from rocketmq_spark.errors import SetupError
from rocketmq_spark.jobs.session import require_java
from tests.compat.programs import versions
from tests.integration.client_runs import QUICK_JVM, ROOT, need
from tests.integration.cluster import Cluster
from tests.spark.stock_broker import VERSIONS, StockBroker

TopicName = Callable[[str], str]
SESSION_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.task.maxFailures": "4",
    "spark.python.authenticate.socketTimeout": "120s",  # a worker takes long to start on a busy machine
    "spark.driver.extraJavaOptions": " ".join(QUICK_JVM),
}

PATIENT = {"electionTimeoutMinMs": "4000", "electionTimeoutMaxMs": "6000", "maxWaitAckTimeMs": "15000"}
"""Of the cluster that nobody breaks: a machine full of Spark's processes must not make it elect."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder starts real processes."""
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.integration)


def need_java() -> None:
    """Skip the test where Spark has no Java, unless scripts/test has said that there is one."""
    try:
        require_java(os.environ)
    except SetupError as error:
        need("spark", False, str(error))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The only session of the process, on two local cores, with our formats registered."""
    need_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)  # of the workers: this checkout
    folder = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2,4]").appName("tests")
    for name, value in SESSION_SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    builder = builder.config("spark.local.dir", str(folder / "local"))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running three-node cluster with a leader, shared: tests must leave it as they found it."""
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        running.start(PATIENT)
        yield running
    finally:
        running.stop()


@pytest.fixture
def killable_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A three-node cluster of the test's own, to be broken."""
    running = Cluster(tmp_path / "cluster")
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
def topic_name() -> TopicName:
    """Makes names that no other test has: `topic_name("Orders")`."""
    suffix = secrets.token_hex(4)
    return lambda name: f"{name}_{suffix}"


@pytest.fixture(scope="session", params=versions(VERSIONS))
def java_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StockBroker]:
    """A stock Java name server and broker, each version that the pipeline is tried with."""
    version: str = request.param
    running = StockBroker(tmp_path_factory.mktemp(f"java-{version}"), version)
    try:
        running.start()
        yield running
    finally:
        running.kill()
