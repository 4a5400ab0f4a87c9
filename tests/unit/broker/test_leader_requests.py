"""An operator's change that reaches a follower is the leader's to make."""

from pathlib import Path

import pytest

from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.errors import ConnectFailedError, RemotingError
from tests.support.broker_parts import FakeEngine
from tests.support.operator import Operator

LEADER = "127.0.0.1:10921"


class OtherNode:
    """Stands in for the broker's client: the leader's answers, and what it was asked."""

    def __init__(self, answer: RemotingCommand | RemotingError) -> None:
        self.answer = answer
        self.asked: list[tuple[str, RemotingCommand]] = []

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        self.asked.append((address, command))
        if isinstance(self.answer, RemotingError):
            raise self.answer
        return self.answer


@pytest.fixture
async def follower(tmp_path: Path) -> Operator:
    operator = Operator(tmp_path, FakeEngine(leader_id="n1", client_addresses={"n1": LEADER}))
    operator.log.set_writable(False)
    return operator


def use(operator: Operator, node: OtherNode) -> OtherNode:
    operator.parts.core.forwarder._client = node  # type: ignore[assignment]
    return node


async def test_the_leaders_answer_comes_back(follower: Operator) -> None:
    node = use(follower, OtherNode(RemotingCommand(17, remark="from the leader")))
    fields = {"topic": "t", "LEDGERMQ_GRPC_PORT": "40000"}
    answer = await follower.ask(RequestCode.DELETE_TOPIC_IN_BROKER, **fields)
    assert (answer.code, answer.remark, answer.opaque) == (17, "from the leader", 5)
    ((address, command),) = node.asked
    assert "LEDGERMQ_GRPC_PORT" not in command.ext_fields, "the endpoint has a connection to the leader, too"
    assert (address, command.code, command.ext_fields["topic"]) == (LEADER, 215, "t")
    assert follower.log.messages == []


async def test_it_is_handed_on_once_only(follower: Operator) -> None:
    node = use(follower, OtherNode(RemotingCommand(0)))
    answer = await follower.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t", LEDGERMQ_FORWARDED="1")
    assert (answer.code, node.asked) == (14, [])


async def test_a_leader_that_is_silent_is_named(follower: Operator) -> None:
    use(follower, OtherNode(ConnectFailedError("refused")))
    answer = await follower.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"g"}')
    assert (answer.code, LEADER in (answer.remark or "")) == (14, True)


async def test_the_leader_asks_nobody(tmp_path: Path) -> None:
    operator = Operator(tmp_path, FakeEngine())
    node = use(operator, OtherNode(RemotingCommand(1)))
    body = b'{"groupName":"g"}'
    assert (await operator.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)).code == 0
    assert node.asked == []
