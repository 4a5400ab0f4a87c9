"""Replies of request-reply: 324 SEND_REPLY_MESSAGE and 325 SEND_REPLY_MESSAGE_V2 (ReplyMessageProcessor).

A reply names the client that asked (REPLY_TO_CLIENT). It is pushed to that client with 326, and the answer to
the sender of the reply reports whether the client accepted it. Every node that received the client's
heartbeats can push to it; a node that did not asks the other nodes of the group to push. Then the reply is
stored in the cluster's reply topic like any message, where storeReplyMessageEnable says so; a failed write is
no error, since the client has the reply.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from random import Random

from broker.config import BrokerConfig
from broker.consume.clients import ClientConnection, ClientRegistry
from broker.leadership import MARK, Forwarder
from broker.responses import put_error
from broker.send.admission import Admission, Admitted, NeedsTopic, process_bytes
from broker.state.state import ReplicatedState, StateChangeError
from commitlog.log import MessageLog, PutStatus
from commitlog.record import (
    PROPERTIES_BYTES_MAX,
    MessageIllegalError,
    format_properties,
    offset_msg_id,
    parse_properties,
)
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import CommandError, HeaderError, RemotingError, RequestError
from remoting.headers.send import SendMessageRequestHeader
from remoting.router import Handlers
from remoting.unique_keys import UniqueKeys

PUSH_TIMEOUT_S = 3.0
"""Senders of replies wait no longer for the answer by default."""
PROPERTY_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
_CREATED = 2
"""A topic is there when its creation is committed, unless it was deleted since."""

logger = logging.getLogger(__name__)


class ReplyMessageProcessor:
    """Pushes replies to the clients that requested them, and stores them."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        clients: ClientRegistry,
        clock: Callable[[], int],
        store_host: bytes,
        rng: Random,
        forwarder: Forwarder,
    ) -> None:
        self._config = config
        self._log = log
        self._state = state
        self._clients = clients
        self._clock = clock
        self._store_host = store_host
        self._forwarder = forwarder
        keys = UniqueKeys(process_bytes(store_host, rng), clock)
        self._admission = Admission(config, state, store_host, keys, rng)

    def handlers(self) -> Handlers:
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.handle,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.handle,
        }

    async def handle(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """324 and 325."""
        try:
            header = SendMessageRequestHeader.parse(request.ext_fields)
            admitted = await self._admit(header, request.body, connection.born_host)
            await self._push(request, header, connection)
        except HeaderError as error:
            return self._answer(request, ResponseCode.SYSTEM_ERROR, str(error))
        except RequestError as error:
            return self._answer(request, error.code, error.remark)
        place = {"msgId": "0", "queueId": str(admitted.queue_id), "queueOffset": "0"}
        if self._config.store_replies and MARK not in request.ext_fields:
            place |= await self._store(admitted)
        return self._answer(request, ResponseCode.SUCCESS, None, place)

    def _answer(
        self, request: RemotingCommand, code: int, remark: str | None, place: Mapping[str, str] | None = None
    ) -> RemotingCommand:
        config = self._config
        trace = {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}
        return success_response(request, {**trace, **(place or {})}, remark=remark, code=code)

    async def _admit(self, header: SendMessageRequestHeader, body: bytes, born_host: bytes) -> Admitted:
        """The checks of every send. Raises RequestError."""
        for _ in range(_CREATED):
            admitted = self._admission.admit(header, body, born_host)
            if isinstance(admitted, Admitted):
                if len(admitted.messages) != 1:
                    raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "a batch is no reply")
                return admitted
            await self._create(admitted)
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first!")

    async def _create(self, wanted: NeedsTopic) -> None:
        try:
            await self._state.ensure_topic_config(wanted.config)
        except StateChangeError as error:
            raise RequestError(*put_error(error.status)) from error

    async def _push(
        self, request: RemotingCommand, header: SendMessageRequestHeader, connection: Connection
    ) -> None:
        """Raises RequestError when the requesting client did not accept the reply."""
        properties = parse_properties(header.properties.encode())
        client_id = properties.get(PROPERTY_REPLY_TO_CLIENT)
        if client_id is None:
            raise _failed(f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null")
        asker = self._clients.producer_connection(client_id)
        if asker is not None and asker.is_open:
            await self._push_to(asker, client_id, self._push_request(request, header, properties, connection))
        elif not await self._others_push(request):
            raise _failed(f"push reply message fail, channel of <{client_id}> not found.")

    async def _push_to(self, asker: ClientConnection, client_id: str, push: RemotingCommand) -> None:
        try:
            answer = await asker.request(push, PUSH_TIMEOUT_S)
        except (RemotingError, CommandError) as error:
            raise _failed(f"push reply message to {client_id} fail: {error}") from error
        if answer.code != ResponseCode.SUCCESS:
            raise _failed(f"push reply message to {client_id} fail: {answer.code} {answer.remark}")

    def _push_request(
        self,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        properties: dict[str, str],
        connection: Connection,
    ) -> RemotingCommand:
        """326, in the form with full names (ReplyMessageRequestHeader)."""
        now_ms = self._clock()
        try:
            text = format_properties({**properties, PROPERTY_PUSH_REPLY_TIME: str(now_ms)}).decode()
        except MessageIllegalError as error:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        if len(text) > PROPERTIES_BYTES_MAX:
            remark = f"the properties have more than {PROPERTIES_BYTES_MAX} characters"
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, remark)
        fields = {
            "producerGroup": header.producer_group,
            "topic": header.topic,
            "defaultTopic": header.default_topic,
            "defaultTopicQueueNums": str(header.default_topic_queue_nums),
            "queueId": str(header.queue_id),
            "sysFlag": str(header.sys_flag),
            "bornTimestamp": str(header.born_timestamp_ms),
            "flag": str(header.flag),
            "properties": text,
            "reconsumeTimes": str(header.reconsume_times),
            "unitMode": "true" if header.unit_mode else "false",
            "bornHost": connection.remote_address,
            "storeHost": self._config.broker_address,
            "storeTimestamp": str(now_ms),
        }
        return RemotingCommand(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext_fields=fields, body=bytes(request.body)
        )

    async def _others_push(self, request: RemotingCommand) -> bool:
        """Whether another node of the group could push it; all are asked at once, one has the client."""
        addresses = self._forwarder.other_addresses
        if not addresses or not self._forwarder.may_forward(request):
            return False
        asked = [self._forwarder.ask(address, request, PUSH_TIMEOUT_S) for address in addresses]
        answers = await asyncio.gather(*asked)
        return any(answer is not None and answer.code == ResponseCode.SUCCESS for answer in answers)

    async def _store(self, admitted: Admitted) -> dict[str, str]:
        """Where the reply is stored; nothing when it could not be."""
        done: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        result = self._log.put(admitted.messages, partial(_resolve, done))
        status = result.status
        if status is PutStatus.PUT_OK:
            status = await done
        if status is not PutStatus.PUT_OK:
            logger.info("a reply was delivered, but not stored: %s", status.name)
            return {}
        message_id = offset_msg_id(self._store_host, result.positions[0])
        return {"msgId": message_id, "queueOffset": str(result.queue_offsets[0])}


def _resolve(done: asyncio.Future[PutStatus], status: PutStatus) -> None:
    if not done.done():
        done.set_result(status)


def _failed(remark: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)
