"""Messages of a delay level that wait while the leader dies: none early, none lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.programs import JAVA, Client, versions
from tests.compat.stage import Stage
from tests.integration.messages import samples

pytestmark = pytest.mark.integration
LEVEL = 2
DELAY_MS = 5_000


@pytest.mark.parametrize("version", versions(JAVA))
def test_delayed_messages_come_after_their_time_though_the_leader_died(
    stage: Stage, tmp_path: Path, version: str
) -> None:
    topic, group = stage.topic("Delayed", 2), stage.unique("Delayed")
    client = Client(version, stage.namesrv, tmp_path)
    with client.start("consumers", topic, group) as consumers:
        consumers.wait_lines("it runs", event="started")
        sent = client.run("produce", topic, f"{topic}Producers", sync=20, delay_level=LEVEL)
        assert [line["status"] for line in sent] == ["SEND_OK"] * 20
        with stage.leader_dead():
            consumers.wait_until(
                "all delivered", lambda: sum("body" in each for each in consumers.report) >= 20
            )
        consumers.stop()
    received = [line for line in consumers.report if "body" in line]
    assert {line["body"] for line in received} == {sample.body for sample in samples(sync=20)}
    for line in received:
        assert line["at_ms"] - line["born_ms"] >= DELAY_MS
