"""A client of a broker for tests: sends with any properties, reads a topic, one request each."""

import asyncio
from typing import Self

from commitlog.record import format_properties
from remoting.client.aio import RemotingClient, RouteTable
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.consume import PullMessageRequestHeader, QueueRequestHeader
from remoting.headers.send import SendMessageRequestHeader
from remoting.record import Record, decode_records
from remoting.route import DEFAULT_TOPIC

QUEUES = 1
HAS_SUBSCRIPTION, MAY_BE_HELD = 4, 2


class Messages:
    """One topic of one queue. `async with Messages(b.namesrv, "orders") as messages`."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.topic = topic
        self.client = RemotingClient()
        self._routes = RouteTable(self.client, namesrv)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def leader(self) -> str:
        route = await self._routes.request(DEFAULT_TOPIC)
        assert route is not None
        address = route.broker_datas[0].master_addr
        assert address is not None
        return address

    async def send(self, body: bytes, **properties: str) -> RemotingCommand:
        header = SendMessageRequestHeader(
            producer_group="tests",
            topic=self.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=QUEUES,
            queue_id=0,
            sys_flag=0,
            born_timestamp_ms=0,
            properties=format_properties(properties).decode(),
        )
        return await self.ask(RequestCode.SEND_MESSAGE, header.ext_fields(), body)

    async def ask(self, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """Raises: AssertionError when the broker refuses."""
        answer = await self.client.invoke(
            await self.leader(), RemotingCommand(code, ext_fields=ext, body=body)
        )
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
        return answer

    async def read(self) -> list[bytes]:
        """The bodies of the whole topic."""
        answer = await self.ask(RequestCode.GET_MAX_OFFSET, QueueRequestHeader(self.topic, 0).ext_fields())
        if answer.ext_fields["offset"] == "0":
            return []
        return [record.body for record in decode_records((await self._pull(0, 0)).body)]

    def held(self, offset: int, limit_s: float) -> "asyncio.Task[list[Record]]":
        """A pull that the broker holds until there is a message, for so long at most."""

        async def wait() -> list[Record]:
            answer = await self._pull(offset, round(limit_s * 1_000))
            return decode_records(answer.body) if answer.code == ResponseCode.SUCCESS else []

        return asyncio.create_task(wait())

    async def _pull(self, offset: int, held_ms: int) -> RemotingCommand:
        header = PullMessageRequestHeader(
            consumer_group="tests",
            topic=self.topic,
            queue_id=0,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=HAS_SUBSCRIPTION | (MAY_BE_HELD if held_ms else 0),
            commit_offset=0,
            suspend_timeout_ms=held_ms,
            subscription="*",
            expression_type="TAG",
        )
        request = RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=header.ext_fields())
        return await self.client.invoke(await self.leader(), request, held_ms / 1_000 + 5.0)
