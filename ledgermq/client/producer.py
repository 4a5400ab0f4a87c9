"""A small producer: each send is tried again, at the current leader, until acknowledged or out of time.

A try whose answer was lost may have been stored, so a message can be stored twice, with the same UNIQ_KEY.
"""

import asyncio
from dataclasses import dataclass

from commitlog.record import format_properties
from dledger.environment import Environment
from remoting.client.aio import RemotingClient, RouteTable, ask_once
from remoting.client.routes import DEFAULT_QUEUES_MAX, Queue, RetryableError
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError
from remoting.headers.send import SendMessageRequestHeader
from remoting.route import DEFAULT_TOPIC

_STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
_PAUSE_FIRST_S = 0.02
_PAUSE_MAX_S = 0.5


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Where an acknowledged message is. `tries` is 1 when the first went through."""

    unique_key: str
    offset_msg_id: str
    broker_name: str
    queue_id: int
    queue_offset: int
    tries: int


class Producer:
    """Sends to the queues of a topic in turn."""

    def __init__(
        self,
        client: RemotingClient,
        namesrv: str,
        *,
        group: str = "ledgermq-cli",
        try_timeout_s: float = 3.0,
        give_up_s: float = 30.0,
        environment: Environment | None = None,
    ) -> None:
        self._client = client
        self._routes = RouteTable(client, namesrv)
        self._group = group
        self._environment = environment or Environment()
        self._try_timeout_s = try_timeout_s
        self._give_up_s = give_up_s
        self._turn = 0

    async def send(
        self, topic: str, body: bytes, *, tag: str | None = None, key: str | None = None
    ) -> SendReceipt:
        """Returns once a majority has the message.

        Raises: ClientError when it is refused for good, or not acknowledged within `give_up_s`.
        """
        unique_key = f"{self._environment.rng.getrandbits(128):032X}"
        properties = {"UNIQ_KEY": unique_key, "WAIT": "true"}
        properties |= {name: value for name, value in (("TAGS", tag), ("KEYS", key)) if value}
        text = format_properties(properties).decode()
        tries, pause_s, reason = 0, _PAUSE_FIRST_S, "no leader was found"
        try:
            async with asyncio.timeout(self._give_up_s):
                while True:
                    try:
                        tries += 1
                        queue, answer = await self._try(topic, body, text)
                    except RetryableError as error:
                        reason = str(error)
                        self._routes.invalidate(topic)
                        await asyncio.sleep(pause_s)
                        pause_s = min(pause_s * 2, _PAUSE_MAX_S)
                    else:
                        return _receipt(unique_key, queue, answer, tries)
        except TimeoutError as error:
            raise ClientError(f"no acknowledgement within {self._give_up_s:g} s: {reason}") from error

    async def _try(self, topic: str, body: bytes, properties: str) -> tuple[Queue, RemotingCommand]:
        """One send. Raises: RetryableError when another may succeed, ClientError when none will."""
        try:
            queues = await self._routes.publish_queues(topic)
        except ClientError as error:
            raise RetryableError(str(error)) from error
        if not queues:
            raise RetryableError(f"no broker accepts messages for {topic}")
        self._turn += 1
        queue = queues[self._turn % len(queues)]
        request = self._request(topic, queue.queue_id, body, properties)
        answer = await ask_once(self._client, queue.address, request, _STORED, self._try_timeout_s)
        return queue, answer

    def _request(self, topic: str, queue_id: int, body: bytes, properties: str) -> RemotingCommand:
        header = SendMessageRequestHeader(
            producer_group=self._group,
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=DEFAULT_QUEUES_MAX,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp_ms=self._environment.wall_clock_ms(),
            properties=properties,
        )
        return RemotingCommand(RequestCode.SEND_MESSAGE, ext_fields=header.ext_fields(), body=body)


def _receipt(unique_key: str, queue: Queue, answer: RemotingCommand, tries: int) -> SendReceipt:
    ext = answer.ext_fields
    try:
        queue_id, queue_offset = int(ext["queueId"]), int(ext["queueOffset"])
    except (KeyError, ValueError) as error:
        raise ClientError(
            f"{queue.address} acknowledged without saying where the message is ({error!r})"
        ) from error
    return SendReceipt(unique_key, ext.get("msgId", ""), queue.broker_name, queue_id, queue_offset, tries)
