"""Orderly consumers of a group through the death of the leader: their queues stay theirs, in order."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.compat.programs import JAVA, Client, Program, versions
from tests.compat.stage import Stage
from tests.integration.client_runs import Report
from tests.integration.messages import Sample

pytestmark = pytest.mark.integration
QUEUES = 4


def succeeded(sending: Program) -> Report:
    return sending.lines(status="SEND_OK")


def places(lines: Report) -> set[tuple[int, int]]:
    return {(line["queue"], line["offset"]) for line in lines}


def consumed(consumers: Program) -> Report:
    return [line for line in consumers.report if "body" in line]


@pytest.mark.parametrize("version", versions(JAVA))
def test_queues_stay_with_their_consumers_and_in_order_when_the_leader_dies(
    stage: Stage, tmp_path: Path, version: str
) -> None:
    topic, group = stage.topic("Orderly", QUEUES), stage.unique("Orderly")
    client = Client(version, stage.namesrv, tmp_path)
    with (
        client.start("consumers", topic, group, members=2, orderly=True) as consumers,
        client.start("stream", topic, stage.unique("Stream")) as sending,
    ):
        consumers.wait_until("both consume", lambda: len(members_by_queue(consumed(consumers))) == QUEUES)
        consumers.wait_until("a hundred", lambda: len(consumed(consumers)) >= 100)
        with stage.leader_dead():
            before = len(succeeded(sending))
            sending.wait_until("sends after", lambda: len(succeeded(sending)) >= before + 100)
        sending.stop()
        sent = succeeded(sending)
        consumers.wait_until("all sent", lambda: places(sent) <= places(consumed(consumers)), 90.0)
        consumers.stop()
    received = consumed(consumers)
    bodies = {(line["queue"], line["offset"]): line["body"] for line in received}
    for line in sent:
        assert bodies[line["queue"], line["offset"]] == Sample("stream", line["number"]).body
    for queue in range(QUEUES):
        assert_in_order([line for line in received if line["queue"] == queue])


def members_by_queue(received: Report) -> dict[int, set[int]]:
    members: dict[int, set[int]] = defaultdict(set)
    for line in received:
        members[line["queue"]].add(line["member"])
    return members


def assert_in_order(lines: Report) -> None:
    """Ever higher offsets without a hole; whoever takes a queue over may begin a little before its end."""
    member, offset = lines[0]["member"], -1
    for line in lines:
        if line["member"] == member:
            assert line["offset"] == offset + 1, line
        else:
            assert line["offset"] <= offset + 1, line
        member, offset = line["member"], line["offset"]
