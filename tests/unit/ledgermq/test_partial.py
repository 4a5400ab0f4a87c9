"""Looks and changes of which a part is missing, without a service in between."""

import pytest

from admin_api.cluster.examples import CLUSTER_EXAMPLE
from ledgermq.output import Json
from tests.unit.admin_api.fake_brokers import NAMESRV, FakeBroker, FakeBrokers
from tests.unit.ledgermq.fake_admin import Asked, as_json, serving
from tests.unit.ledgermq.running import CommandLine


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


class TwoBrokers(FakeBrokers):
    """In place of the client that speaks to brokers."""

    async def close(self) -> None:
        """There is nothing to close."""


@pytest.mark.parametrize("form", [["--json"], []], ids=["json", "text"])
def test_a_look_of_watch_without_a_broker_is_exit_code_3(run: CommandLine, form: list[str]) -> None:
    trouble = {"address": "127.0.0.1:20911", "problem": "it cannot be reached"}
    answers: dict[str, Json] = {
        "cluster": CLUSTER_EXAMPLE,
        "brokers": {"items": [], "problems": [], "isPartial": False},
        "consumer-groups": {"items": [], "total": 0, "problems": [], "isPartial": False},
    }

    def answer(asked: Asked) -> tuple[int, bytes]:
        return as_json(200, answers[asked.target.removeprefix("/api/v1/").partition("?")[0]])

    with serving(answer) as admin:
        whole = run("watch", *form, "--admin", admin.url)
        answers["brokers"] |= {"problems": [trouble], "isPartial": True}
        ran = run("watch", *form, "--admin", admin.url)
    assert (whole.code, whole.err, ran.code) == (0, "", 3)
    if form:
        assert (whole.json["isPartial"], ran.json["isPartial"]) == (False, True)
    else:
        assert ran.err == "127.0.0.1:20911: it cannot be reached\n"


def test_a_look_of_watch_without_one_of_its_parts_is_exit_code_3(
    run: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = TwoBrokers(FakeBroker("broker-a", "127.0.0.1:10911", is_stock=True))
    monkeypatch.setattr("admin_api.services.client_from", lambda *_: brokers)
    ran = run("watch", "--json", "--namesrv", NAMESRV)
    assert (ran.code, ran.json["isPartial"], "groups" in ran.json) == (3, True, False)


def test_a_look_of_watch_without_a_name_server_is_an_error(run: CommandLine) -> None:
    ran = run("watch", "--json", "--namesrv", "127.0.0.1:1")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: the name server 127.0.0.1:1 gives no answer: ")


@pytest.mark.parametrize("how", ["hanging", "dead"])
def test_a_broker_that_gives_no_answer_is_exit_code_3(
    run: CommandLine, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    first = FakeBroker("broker-a", "127.0.0.1:10911", is_stock=True)
    second = FakeBroker("broker-b", "127.0.0.1:20911", is_stock=True)
    for broker in (first, second):
        broker.add_topic("orders")
    brokers = TwoBrokers(first, second)
    getattr(brokers, how).add(second.address)
    monkeypatch.setattr("admin_api.services.client_from", lambda *_: brokers)
    ran = run("topic", "edit", "orders", "--queues", "6", "--namesrv", NAMESRV)
    assert (ran.code, first.topics["orders"]["writeQueueNums"]) == (3, 6)
    assert f"not done: {second.address}: left out" in ran.err
    ran = run("topic", "delete", "orders", "--yes", "--json", "--namesrv", NAMESRV)
    assert (ran.code, ran.json["isPartial"]) == (3, True)
    assert [outcome["ok"] for outcome in ran.json["outcomes"]] == [True, False]
