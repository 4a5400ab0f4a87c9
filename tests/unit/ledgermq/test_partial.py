"""Changes of which a part was not done, without a service in between."""

import pytest

from tests.unit.admin_api.fake_brokers import NAMESRV, FakeBroker, FakeBrokers
from tests.unit.ledgermq.running import CommandLine


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


class TwoBrokers(FakeBrokers):
    """In place of the client that speaks to brokers."""

    async def close(self) -> None:
        """There is nothing to close."""


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
    monkeypatch.setattr("admin_api.services.context.RemotingClient", lambda: brokers)
    ran = run("topic", "edit", "orders", "--queues", "6", "--namesrv", NAMESRV)
    assert (ran.code, first.topics["orders"]["writeQueueNums"]) == (3, 6)
    assert f"not done: {second.address}: left out" in ran.err
    ran = run("topic", "delete", "orders", "--yes", "--json", "--namesrv", NAMESRV)
    assert (ran.code, ran.json["isPartial"]) == (3, True)
    assert [outcome["ok"] for outcome in ran.json["outcomes"]] == [True, False]
