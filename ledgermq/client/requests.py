"""Request and reply over topics (RocketMQ's RequestResponseFuture): the reply comes over the requester's
connection to the broker.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from ledgermq.client.errors import UncertainError, WrongMessageError
from ledgermq.client.messages import UNIQUE_KEY, UNPACKED_BYTES_MAX, Message, ReceivedMessage
from ledgermq.client.session import Session
from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.message_body import BodyError, unpack_body
from remoting.record import parse_properties

CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
KIND: Final = "MSG_TYPE"
REPLY: Final = "reply"
CLUSTER: Final = "CLUSTER"
REPLY_SUFFIX: Final = "_REPLY_TOPIC"

logger = logging.getLogger(__name__)


class Replies:
    """The requests of one producer that wait for their reply."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}
        session.answer(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._replied)

    def expect(self, timeout_s: float) -> tuple[str, dict[str, str]]:
        """The id of a request, and the properties that it needs. `wait` or `give_up` must follow."""
        request_id = f"{self._session.surroundings.rng.getrandbits(128):032x}"
        self._waiting[request_id] = asyncio.get_running_loop().create_future()
        return request_id, {
            CORRELATION_ID: request_id,
            REPLY_TO: self._session.client_id,
            TTL: str(round(timeout_s * 1000)),
        }

    async def wait(self, request_id: str, timeout_s: float) -> ReceivedMessage:
        """Raises UncertainError when no reply came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._waiting[request_id]
        except TimeoutError:
            raise UncertainError(f"no reply within {timeout_s:g} s") from None

    def give_up(self, request_id: str) -> None:
        """A later reply is dropped."""
        self._waiting.pop(request_id, None)

    def _replied(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """326: always a success, as the reply of a request that has ended is of no interest."""
        properties = parse_properties(request.ext_fields.get("properties", "").encode())
        waiting = self._waiting.get(properties.get(CORRELATION_ID, ""))
        if waiting is not None and not waiting.done():
            try:
                waiting.set_result(_reply_of(request, properties))
            except (ValueError, BodyError) as error:
                waiting.set_exception(UncertainError(f"the reply cannot be read: {error}"))
        return RemotingCommand(ResponseCode.SUCCESS)


def reply_to(request: ReceivedMessage, body: bytes) -> Message:
    """The message that answers a request. Raises WrongMessageError where it is none."""
    properties = request.properties
    cluster = properties.get(CLUSTER)
    if cluster is None or CORRELATION_ID not in properties:
        raise WrongMessageError(f"the message {request.message_id} expects no reply")
    kept: dict[str, str] = {
        name: properties[name] for name in (CORRELATION_ID, REPLY_TO, TTL) if name in properties
    }
    return Message(cluster + REPLY_SUFFIX, body, properties={KIND: REPLY, **kept})


def _reply_of(request: RemotingCommand, properties: Mapping[str, str]) -> ReceivedMessage:
    """Raises ValueError, BodyError."""
    ext = request.ext_fields
    return ReceivedMessage(
        topic=ext.get("topic", ""),
        body=unpack_body(request.body, int(ext.get("sysFlag", "0")), UNPACKED_BYTES_MAX),
        queue=MessageQueue(ext.get("topic", ""), "", int(ext.get("queueId", "0"))),
        queue_offset=-1,
        position=-1,
        message_id=properties.get(UNIQUE_KEY, ""),
        offset_message_id="",
        tag=properties.get("TAGS"),
        keys=tuple(properties.get("KEYS", "").split()),
        properties=dict(properties),
        flag=int(ext.get("flag", "0")),
        born_at_ms=int(ext.get("bornTimestamp", "0")),
        stored_at_ms=int(ext.get("storeTimestamp", "0")),
        born_host=ext.get("bornHost", ""),
        attempts=0,
    )
