"""Go, and Python (which is C++), through the death of the leader: what was acknowledged is consumed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.compat.stage import Stage
from tests.integration.client_runs import Driver, Report, finish, go_driver, python_driver, read_report
from tests.integration.messages import Sample
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.long]
ROUTE_LIMIT_S = 120.0
"""These clients look for a new route every 30 s, and wait out what they had asked of the dead node."""


class Program:
    """The command line of one of the two drivers."""

    def __init__(self, language: str, stage: Stage, folder: Path) -> None:
        self.language = language
        self.stage = stage
        self.folder = folder
        self.driver: Driver = go_driver(folder) if language == "go" else python_driver(folder)

    def start(
        self, action: str, topic: str, group: str, **options: object
    ) -> tuple[subprocess.Popen[bytes], Path]:
        out = self.folder / f"{action}-{group}.jsonl"
        given = {"namesrv": self.stage.namesrv, "topic": topic, "group": group, "out": out, **options}
        dash = "-" if self.language == "go" else "--"
        arguments = [
            text for name, value in given.items() for text in (f"{dash}{name.replace('_', '-')}", str(value))
        ]
        return self.driver.start([action, *arguments], out), out

    def produce(self, topic: str, group: str, **counts: int) -> Report:
        return finish(*self.start("produce", topic, group, **counts), ROUTE_LIMIT_S)


def bodies(out: Path) -> set[str]:
    return {line["body"] for line in read_report(out)}


@pytest.mark.parametrize("language", ["go", "python"])
def test_what_was_sent_before_and_after_the_kill_is_consumed(
    stage: Stage, tmp_path: Path, language: str
) -> None:
    program = Program(language, stage, tmp_path)
    topic, group = stage.topic("Other", 4), stage.unique("Other")
    limit = {"limit_ms" if language == "go" else "limit_s": 600_000 if language == "go" else 600}
    consumer, consumed = program.start("consume", topic, group, count=1_000_000, **limit)
    try:
        sent = program.produce(topic, f"{group}-before", sync=30)
        wanted = {Sample(line["kind"], line["number"]).body for line in sent}
        wait_for("all of before", lambda: wanted <= bodies(consumed), ROUTE_LIMIT_S)
        with stage.leader_dead():
            sent = program.produce(topic, f"{group}-after", oneway=30)
            wanted |= {Sample(line["kind"], line["number"]).body for line in sent}
            wait_for("all of after", lambda: wanted <= bodies(consumed), ROUTE_LIMIT_S)
    finally:
        consumer.kill()
        consumer.wait()
    assert bodies(consumed) == wanted
