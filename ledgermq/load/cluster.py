"""What a load needs before and after it runs: a topic, and the number of messages that are stored in it.

Only the RocketMQ protocol is used, so that other brokers with this protocol can be measured too.
"""

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import orjson

from ledgermq.errors import UserError
from ledgermq.messaging import messaging_client
from remoting.client.aio import RemotingClient, RouteTable
from remoting.client.routes import leaders_of, name_server_addresses
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError, RemotingError
from remoting.headers.admin import CreateTopicRequestHeader
from remoting.headers.consume import PullMessageRequestHeader
from remoting.route import DEFAULT_TOPIC, TopicRoute

T = TypeVar("T")
READ_GROUP = "ledgermq-load"
_PULL_MAX = 1024
_PULL_BY_SUBSCRIPTION = 4
_TRY_INTERVAL_S = 0.02
_read_size = struct.Struct(">I").unpack_from
_WAITS = frozenset({ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.SYSTEM_BUSY})


class LoadCluster:
    """A cluster, found by its name servers. It may still be starting, or have no leader."""

    def __init__(self, client: RemotingClient, namesrv: str) -> None:
        self._client = client
        self._name_servers = name_server_addresses(namesrv)
        self._routes = RouteTable(client, namesrv)

    async def route(self, topic: str) -> TopicRoute | None:
        """The topic's route; None while it has none."""
        try:
            return await self._routes.request(topic)
        except ClientError:
            return None

    async def leader(self) -> str | None:
        """`host:port` of the node that accepts messages."""
        route = await self.route(DEFAULT_TOPIC)
        leaders = leaders_of(route.broker_datas) if route else {}
        return next(iter(leaders.values()), None)

    async def make_topic(self, topic: str, queues: int, limit_s: float = 60.0) -> str:
        """Create the topic, send a first message to it, and return the leader's address.

        Raises: UserError when this was not possible within `limit_s`.
        """
        end_s = asyncio.get_running_loop().time() + limit_s
        problem = "the name server knows no broker that accepts messages"
        while asyncio.get_running_loop().time() < end_s:
            address = await self.leader()
            if address is not None:
                problem = await self._try_topic(address, topic, queues)
                if not problem:
                    return address
            await asyncio.sleep(_TRY_INTERVAL_S)
        raise UserError(f"no message can be written to the topic {topic}: {problem}.")

    async def _try_topic(self, address: str, topic: str, queues: int) -> str:
        ext = CreateTopicRequestHeader(topic, DEFAULT_TOPIC, queues, queues).ext_fields()
        made = await self._problem(
            address, RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=ext)
        )
        return made or await self._problem(address, send_command(topic, 0))

    async def _problem(self, address: str, request: RemotingCommand) -> str:
        """The reason why the request failed; empty when it was successful."""
        try:
            answer = await self._client.invoke(address, request)
        except RemotingError as error:
            return str(error)
        return "" if answer.code == ResponseCode.SUCCESS else f"code {answer.code}: {answer.remark}"

    async def send(self, topic: str, address: str | None = None) -> bool:
        """Send one message, which may create the topic; return whether it was acknowledged."""
        address = address or await self.leader()
        return address is not None and not await self._problem(address, send_command(topic, 0))

    async def node_status(self, address: str) -> dict[str, Any]:
        """The runtime information of a LedgerMQ node; empty while the node does not answer."""
        try:
            answer = await self._client.invoke(address, RemotingCommand(RequestCode.LEDGERMQ_NODE_STATUS))
        except RemotingError:
            return {}
        found: dict[str, Any] = orjson.loads(answer.body) if answer.code == ResponseCode.SUCCESS else {}
        return found

    async def delete_topic(self, topic: str) -> None:
        """Delete the topic; its messages stay in the log until retention deletes them."""
        address = await self.leader()
        if address is not None:
            ext = {"topic": topic}
            await self._problem(address, RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields=ext))
            code = RequestCode.DELETE_TOPIC_IN_NAMESRV
            requests = {each: RemotingCommand(code, ext_fields=ext) for each in self._name_servers}
            await asyncio.gather(*(self._problem(at, request) for at, request in requests.items()))

    async def stored(self, topic: str) -> int:
        """The number of messages in the queues: the sum of maximum offset minus minimum offset."""
        bounds = await self._per_queue(topic, self._bounds)
        return sum(high - low for low, high in bounds)

    async def stored_in_the_end(self, topic: str, wanted: int, limit_s: float = 5.0) -> int:
        """Ask for `stored` again and again until it is at least `wanted`, or until the time limit.

        A send is acknowledged once it is committed; its queue offset may become visible a moment later.
        """
        end_s = asyncio.get_running_loop().time() + limit_s
        while (count := await self.stored(topic)) < wanted and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(_TRY_INTERVAL_S)
        return count

    async def read_back(self, topic: str) -> int:
        """Read every queue from its beginning to its end, and return the number of messages."""
        return sum(await self._per_queue(topic, self._read_queue))

    async def _per_queue(
        self, topic: str, ask: Callable[[str, str, int], Coroutine[None, None, T]]
    ) -> list[T]:
        route = await self.route(topic)
        if route is None:
            raise UserError(f"the name server has no route to the topic {topic}.")
        leaders = leaders_of(route.broker_datas)
        asked = [
            ask(leaders.get(queue.broker_name, ""), topic, number)
            for queue in route.queue_datas
            for number in range(queue.read_queue_nums)
        ]
        return list(await asyncio.gather(*asked))

    async def _bounds(self, address: str, topic: str, queue: int) -> tuple[int, int]:
        low = await self._offset(RequestCode.GET_MIN_OFFSET, address, topic, queue)
        return low, await self._offset(RequestCode.GET_MAX_OFFSET, address, topic, queue)

    async def _offset(self, code: RequestCode, address: str, topic: str, queue: int) -> int:
        request = RemotingCommand(code, ext_fields={"topic": topic, "queueId": str(queue)})
        answer = await self._client.invoke(address, request, timeout_s=10.0)
        if answer.code != ResponseCode.SUCCESS:
            raise UserError(f"the offsets of {topic} cannot be read: code {answer.code}: {answer.remark}.")
        return int(answer.ext_fields["offset"])

    async def _read_queue(self, address: str, topic: str, queue: int) -> int:
        at, end = await self._bounds(address, topic, queue)
        count = 0
        while at < end:
            answer = await self._client.invoke(address, pull_command(topic, queue, at), timeout_s=30.0)
            if answer.code == ResponseCode.SUCCESS:
                count += count_records(answer.body)
            elif answer.code not in _WAITS:
                raise UserError(f"{topic} cannot be read at {at}: code {answer.code}: {answer.remark}.")
            at = int(answer.ext_fields.get("nextBeginOffset", at))
        return count


def send_command(topic: str, queue: int, body: bytes = b"first") -> RemotingCommand:
    ext = {"a": READ_GROUP, "b": topic, "c": DEFAULT_TOPIC, "d": "8", "e": str(queue), "f": "0", "g": "0"}
    ext |= {"h": "0", "j": "0", "k": "false", "m": "false"}
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=ext, body=body)


def pull_command(topic: str, queue: int, offset: int) -> RemotingCommand:
    header = PullMessageRequestHeader(
        consumer_group=READ_GROUP,
        topic=topic,
        queue_id=queue,
        queue_offset=offset,
        max_msg_nums=_PULL_MAX,
        sys_flag=_PULL_BY_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_ms=0,
        subscription="*",
        expression_type="TAG",
    )
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=header.ext_fields())


def count_records(body: bytes) -> int:
    """The number of records in the answer to a pull; they follow each other without a gap.

    Raises: UserError when their sizes do not add up.
    """
    count = at = 0
    while at + 4 <= len(body):
        size: int = _read_size(body, at)[0]
        if size < 4:
            break
        at += size
        count += 1
    if at != len(body):
        raise UserError(f"an answer of {len(body)} bytes holds {count} records that do not fill it.")
    return count


async def with_cluster(namesrv: str, work: Callable[[LoadCluster], Coroutine[None, None, T]]) -> T:
    """Run `work` with a new client, and close the client afterwards."""
    client = messaging_client()
    try:
        return await work(LoadCluster(client, namesrv))
    finally:
        await client.close()


def ask(namesrv: str, work: Callable[[LoadCluster], Coroutine[None, None, T]]) -> T:
    """`with_cluster` for callers without a running loop."""
    return asyncio.run(with_cluster(namesrv, work))
