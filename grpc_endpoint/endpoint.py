"""Puts the features together: what serves each method of the service, and what runs beside them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from grpc_endpoint import messaging_pb2
from grpc_endpoint.brokers import Brokers
from grpc_endpoint.call import Begun, Call
from grpc_endpoint.clients import BEAT_S, Clients
from grpc_endpoint.messaging_pb2 import (
    Code,
    LiteSubscriptionAction,
    SyncLiteSubscriptionRequest,
    SyncLiteSubscriptionResponse,
)
from grpc_endpoint.offsets import Offsets
from grpc_endpoint.receiving import NACK_MS, Receiving
from grpc_endpoint.renewal import Renewals
from grpc_endpoint.routes import Routes
from grpc_endpoint.sending import Sending
from grpc_endpoint.status import StatusError, status_of
from grpc_endpoint.telemetry import Telemetry
from grpc_endpoint.transactions import Transactions
from grpc_endpoint.validation import check_lite_topic, group_of, topic_of
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.pop_receipts import ReceiptHandle
from remoting.router import HandlerResult

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
UNKNOWN_S: Final = 1.0
"""Between two tries to reach any node, as when the brokers start together with the endpoint."""
LISTED_S: Final = 60.0
"""Between two entries of the endpoint at the name servers, one of which may have lost it."""
_ASKED_OF_CLIENTS: Final = frozenset(
    {RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY}
)

logger = logging.getLogger(__name__)
Unary = Callable[[Call, Any], Awaitable[Any]]
Stream = Callable[[Call, Any], AsyncIterator[Any]]
AtOnce = Callable[[Call, Any], Begun | None]


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the service. A `Unary` answers once, a `Stream` any number of times. `at_once`: see
    `rpc.Served`.
    """

    name: str
    request: type[Message]
    response: type[Message]
    unary: Unary | None = None
    stream: Stream | None = None
    reads_stream: bool = False
    at_once: AtOnce | None = None

    def refusal(self, error: BaseException) -> Message:
        """The answer of a call that failed."""
        return self.response(status=status_of(error))


class Endpoint:
    """All features over one client of the brokers. Made and used on one running loop."""

    def __init__(self, client: RemotingClient, namesrv: str, *, needs_proof: bool = False) -> None:
        """`needs_proof`: brokers have access control, so that each client must sign its calls."""
        self.needs_proof = needs_proof
        self._address: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.brokers = Brokers(client, namesrv)
        self.clients = Clients(self.brokers, self._client_gone)
        self.renewals = Renewals(self._change, self.clients.pause_ms)
        self._routes = Routes(self.brokers)
        self._receiving = Receiving(self.brokers, self.clients, self.renewals, self.spawn)
        self._telemetry = Telemetry(self.clients)
        self._sending = Sending(self.brokers, self._routes)
        self._transactions = Transactions(self.brokers, self.clients)
        self._offsets = Offsets(self.brokers)
        client.on_request(self._on_request)

    def methods(self) -> Mapping[str, Method]:
        """Every method by its name."""
        unary: dict[str, Unary] = {
            "QueryRoute": self._routes.query_route,
            "QueryAssignment": self._routes.query_assignment,
            "SendMessage": self._sending.send_message,
            "RecallMessage": self._sending.recall_message,
            "AckMessage": self._receiving.ack_message,
            "ChangeInvisibleDuration": self._receiving.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": self._receiving.forward_message_to_dead_letter_queue,
            "EndTransaction": self._transactions.end_transaction,
            "QueryOffset": self._offsets.query_offset,
            "UpdateOffset": self._offsets.update_offset,
            "GetOffset": self._offsets.get_offset,
            "Heartbeat": self._telemetry.heartbeat,
            "NotifyClientTermination": self._telemetry.notify_client_termination,
            "SyncLiteSubscription": _sync_lite_subscription,
        }
        streams: dict[str, Stream] = {
            "ReceiveMessage": self._receiving.receive_message,
            "PullMessage": self._offsets.pull_message,
            "Telemetry": self._telemetry.telemetry,
        }
        at_once: dict[str, AtOnce] = {
            "SendMessage": self._sending.send_at_once,
            "AckMessage": self._receiving.ack_at_once,
        }
        service = messaging_pb2.DESCRIPTOR.services_by_name["MessagingService"]
        return {
            each.name: Method(
                each.name,
                getattr(messaging_pb2, each.input_type.name),
                getattr(messaging_pb2, each.output_type.name),
                unary.get(each.name),
                streams.get(each.name),
                reads_stream=each.name == "Telemetry",
                at_once=at_once.get(each.name),
            )
            for each in service.methods
        }

    def start(self, address: str) -> None:
        """Begin what runs beside the calls. `address`: where clients connect."""
        self._address = address
        self.spawn(self.clients.run())
        self.spawn(self.renewals.run())
        self.spawn(self._stay_listed(address))
        self.spawn(self._stay_announced(address))

    async def _stay_announced(self, address: str) -> None:
        while True:
            is_known = await self.brokers.announce(address)
            await asyncio.sleep(BEAT_S if is_known else UNKNOWN_S)

    async def _stay_listed(self, address: str) -> None:
        while True:
            await self.brokers.enter(address)
            await asyncio.sleep(LISTED_S)

    async def stop(self) -> None:
        """End it. Messages that were renewed are handed out again after their invisible time."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._address is not None:
            await self.brokers.leave(self._address)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it beside the calls; a failure is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a background task failed", exc_info=error)

    async def _change(
        self, group: str, topic: str, handle: ReceiptHandle, invisible_ms: int
    ) -> ReceiptHandle:
        return await self._receiving.change(group, topic, handle, invisible_ms)

    def _client_gone(self, client_id: str) -> None:
        for group, topic, handle in self.renewals.drop_client(client_id):
            self.spawn(self._free(group, topic, handle))

    async def _free(self, group: str, topic: str, handle: ReceiptHandle) -> None:
        try:
            await self._change(group, topic, handle, NACK_MS)
        except StatusError as error:
            logger.info("a message of a client that has gone stays invisible for its time: %s", error)

    def _on_request(self, request: RemotingCommand, connection: Connection) -> HandlerResult:
        """A broker's request."""
        if request.code in _ASKED_OF_CLIENTS:
            return self._telemetry.ask_client(request, connection)
        if request.code == RequestCode.LEDGERMQ_GRPC_CLIENTS:
            return self._telemetry.list_clients(request)
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._transactions.check(request, connection)
        return None


async def _sync_lite_subscription(
    call: Call, request: SyncLiteSubscriptionRequest
) -> SyncLiteSubscriptionResponse:
    topic_of(request.topic)
    group_of(request.group)
    if request.action == LiteSubscriptionAction.PARTIAL_ADD:
        for name in request.lite_topic_set:
            check_lite_topic(name)
    raise StatusError(Code.NOT_IMPLEMENTED, "lite topics are not supported")
