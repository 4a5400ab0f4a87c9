"""The commands with a real session: what they print, and their exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from rocketmq_spark.errors import TopicNotFoundError
from rocketmq_spark.jobs import cli as cli_app
from rocketmq_spark.jobs.cli import app
from tests.integration.cluster import Cluster
from tests.spark.conftest import TopicName
from tests.spark.producing import create_topic, numbered, send


class Kept:
    """The tests' own session, which a command may not stop."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def stop(self) -> None:
        """Nothing."""


@pytest.fixture
def commands(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setattr(cli_app, "open_session", lambda options: Kept(spark))
    return CliRunner()


def run(commands: CliRunner, *args: str, code: int = 0) -> str:
    result = commands.invoke(app, list(args))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def test_archive_verify_replay_report(
    commands: CliRunner, cluster: Cluster, topic_name: TopicName, tmp_path: Path
) -> None:
    topic, target, path = topic_name("Commanded"), topic_name("Commanded_again"), str(tmp_path / "archive")
    at = ("--namesrv", cluster.namesrv)
    create_topic(cluster.namesrv, topic, queues=2)
    send(cluster.namesrv, topic, numbered(30, queues=2))

    told = run(commands, "archive", topic, "--to", path, "--files", "1", *at)
    assert told.startswith("30 messages (")
    assert told.endswith(f" archived to {path} in 1 batches, 1 files.\n")
    added = orjson.loads(run(commands, "archive", topic, "--to", path, "--json", *at))
    assert added == {"batches": 0, "files": 0, "messages": 0, "body_bytes": 0}
    assert f"{path} is whole: 30 messages" in run(commands, "archive", "--verify", path)

    replay = ("replay", "--archive", path, "--to", target, "--state", str(tmp_path / "state"))
    sent = run(commands, *replay, "--create-queues", "2", "--rate", "10000", "--json", *at)
    assert orjson.loads(sent)["total"] == 30
    report = run(commands, "report", target, "--to", str(tmp_path / "report"), *at)
    assert report.startswith(f"30 messages: {tmp_path}/report/report.html, and as Parquet beside it: ")

    (file,) = (tmp_path / "archive").glob("topic=*/*/*/*.parquet")
    file.with_name("copy.parquet").write_bytes(file.read_bytes())
    file.unlink()
    told = run(commands, "archive", "--verify", path, code=1)
    assert "copy.parquet: not in the manifest" in told
    assert f"{path} is NOT whole, 2 problems" in told
    found = orjson.loads(run(commands, "archive", "--verify", path, "--json", code=1))
    assert found["problem_count"] == 2


def test_a_missing_topic_is_a_sentence(commands: CliRunner, cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="Nowhere") as raised:
        run(commands, "archive", "Nowhere", "--to", str(tmp_path / "a"), "--namesrv", cluster.namesrv)
    assert "\n" not in str(raised.value)
    with pytest.raises(TopicNotFoundError, match="Nowhere"):
        run(
            commands,
            *("replay", "--topic", "Nowhere", "--to", "T", "--state", str(tmp_path / "s")),
            *("--namesrv", cluster.namesrv),
        )
