"""A cluster of one broker, as far as the endpoint sees it: answers by request code, and what was asked."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import orjson

from grpc_endpoint.brokers import Brokers
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from remoting.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
    format_cluster_info,
    format_topic_route,
)

NAMESRV = "127.0.0.1:1"
BROKER = "broker-a"
OLD, NEW = "127.0.0.1:2", "127.0.0.1:3"
Scripted = RemotingCommand | RemotingError | Callable[[RemotingCommand], RemotingCommand]


def answer(
    code: int = ResponseCode.SUCCESS, remark: str | None = None, body: bytes = b"", **ext: object
) -> RemotingCommand:
    fields = {name: str(value) for name, value in ext.items()}
    return RemotingCommand(code, remark=remark, ext_fields=fields, body=body)


class FakeSent:
    """As SentRequest."""

    def __init__(self, answer: asyncio.Future[RemotingCommand]) -> None:
        self.answer = answer
        self.is_dropped = False

    async def result(self) -> RemotingCommand:
        return await self.answer

    def drop(self) -> None:
        self.is_dropped = True


class FakeCluster:
    """Topic `orders` with 4 queues. The leader is `leader`, which the name server knows at once.

    is_connected: requests can be sent at once; `at_once` are those that were.
    """

    def __init__(self, message_type: str = "NORMAL") -> None:
        self.leader = OLD
        self.is_connected = False
        self.at_once: list[FakeSent] = []
        self.asked: list[tuple[str, RemotingCommand]] = []
        self.group: dict[str, Any] | None = {"groupName": "billing", "retryMaxTimes": 16}
        self._message_type = message_type
        self._scripted: dict[int, deque[Scripted]] = {}

    def script(self, code: RequestCode, *answers: Scripted) -> None:
        """What the next requests of this code get."""
        self._scripted.setdefault(code, deque()).extend(answers)

    def brokers(self) -> Brokers:
        """To be called on a running loop."""
        return Brokers(cast("RemotingClient", self), NAMESRV)

    def requests(self, code: RequestCode) -> list[RemotingCommand]:
        return [command for _, command in self.asked if command.code == code]

    def send(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> FakeSent | None:
        if not self.is_connected:
            return None
        sent = FakeSent(asyncio.ensure_future(self.invoke(address, command, timeout_s)))
        self.at_once.append(sent)
        return sent

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        self.asked.append((address, command))
        scripted = self._scripted.get(command.code)
        if scripted:
            found = scripted.popleft()
            if isinstance(found, Exception):
                raise found
            return found(command) if callable(found) else found
        return self._usual(address, command)

    def _usual(self, address: str, command: RemotingCommand) -> RemotingCommand:
        node = BrokerData("DefaultCluster", BROKER, {0: self.leader})
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if command.ext_fields["topic"] != "orders":
                return answer(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
            return answer(body=format_topic_route(TopicRoute((QueueData(BROKER, 4, 4, 6),), (node,))))
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return answer(body=format_cluster_info(ClusterInfo({BROKER: node})))
        if command.code in (RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG):
            return answer()
        if address != self.leader:
            return answer(ResponseCode.SLAVE_NOT_AVAILABLE, "not the leader")
        if command.code == RequestCode.GET_TOPIC_CONFIG:
            return answer(body=orjson.dumps({"attributes": {"message.type": self._message_type}}))
        if command.code == RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG:
            if self.group is None:
                return answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group")
            return answer(body=orjson.dumps(self.group))
        return answer()
