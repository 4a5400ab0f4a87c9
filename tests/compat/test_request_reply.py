"""Request and reply between stock clients: each request gets the reply to it, also when leaders change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.programs import GO, JAVA, Client, Program
from tests.compat.stage import Stage
from tests.integration.messages import Sample

pytestmark = pytest.mark.integration
COUNT = 20
ENDLESS: dict[str, int] = {"count": 100_000, "pause_ms": 50, "poll_ms": 500, "timeout_ms": 3_000}
PAIRS = (
    ("5.5.0", GO),
    pytest.param(GO, "4.9.8", marks=pytest.mark.long),
    pytest.param("4.9.8", "5.5.0", marks=pytest.mark.long),
)


def reply_to(number: int, kind: str = "request") -> str:
    return f"re: {Sample(kind, number).body}"


def answered(answering: Program) -> list[str]:
    """The requests whose reply was taken."""
    bodies = [line["body"] for line in answering.lines(event="replied")]
    return [body for body in bodies if body.startswith("request-")]


def assert_all_replied(report: list[dict[str, object]], count: int) -> None:
    assert [line["status"] for line in report] == ["OK"] * count, report
    assert [line["reply"] for line in report] == [reply_to(number) for number in range(count)]


@pytest.mark.parametrize(("asker", "answerer"), PAIRS)
def test_every_request_gets_its_own_reply(stage: Stage, tmp_path: Path, asker: str, answerer: str) -> None:
    topic = stage.topic("Request")
    group = stage.unique("Repliers")
    with Client(answerer, stage.namesrv, tmp_path).start("answer", topic, group) as answering:
        answering.wait_lines("the one who answers", event="started")
        asked = Client(asker, stage.namesrv, tmp_path).run("ask", topic, stage.unique("Askers"), count=COUNT)
        assert_all_replied(asked, COUNT)
        answering.wait_until("the last answer", lambda: len(answered(answering)) >= COUNT)
        assert answered(answering) == [Sample("request", number).body for number in range(COUNT)]


def test_reply_finds_who_asked_at_another_node_after_a_hand_over(stage: Stage, tmp_path: Path) -> None:
    """A heartbeat goes to a new leader within 30 s; till then the node that knows the client pushes."""
    topic, group = stage.topic("Moved"), stage.unique("Repliers")
    client = Client(JAVA[0], stage.namesrv, tmp_path)
    with (
        client.start("answer", topic, group, poll_ms=500) as answering,
        client.start("ask", topic, stage.unique("Askers"), **ENDLESS) as asking,
    ):
        asking.wait_lines("replies before", 10, status="OK")
        stage.transfer_leader(stage.follower_ids()[0])
        before = len(asking.report)
        asking.wait_until("replies after", lambda: oks_since(asking.report, before) >= 20, 90.0)
        asking.stop()
        assert answering.lines(event="replied")
        for line in asking.lines(status="OK"):
            assert line["reply"] == reply_to(line["number"])


def oks_since(report: list[dict[str, object]], first: int) -> int:
    return sum(line["status"] == "OK" for line in report[first:])


@pytest.mark.long
@pytest.mark.parametrize("version", [*JAVA, GO])
def test_requests_go_on_after_the_leader_died(stage: Stage, tmp_path: Path, version: str) -> None:
    topic, group = stage.topic("Died"), stage.unique("Repliers")
    client = Client(version, stage.namesrv, tmp_path)
    with (
        client.start("answer", topic, group, poll_ms=500) as answering,
        client.start("ask", topic, stage.unique("Askers"), **ENDLESS) as asking,
    ):
        asking.wait_lines("replies before", 10, status="OK")
        with stage.leader_dead():
            before = len(asking.report)
            asking.wait_until("replies after", lambda: oks_since(asking.report, before) >= 20, 120.0)
        asking.stop()
        assert answering.lines(event="replied")
        for line in asking.lines(status="OK"):
            assert line["reply"] == reply_to(line["number"])
