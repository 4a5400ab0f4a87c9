"""EndTransaction, and the brokers' questions about transactions that stay open (EndTransactionActivity,
TransactionProcessor, GrpcClientChannel.processCheckTransaction).

The transaction id says where the half message is, so any endpoint can end it; the broker's nodes forward the
request to their leader.
"""

import logging
from typing import Final

from grpc_endpoint.brokers import Brokers, UnknownBrokerError
from grpc_endpoint.call import Call
from grpc_endpoint.clients import Clients
from grpc_endpoint.handles import TransactionId
from grpc_endpoint.messaging_pb2 import (
    Code,
    EndTransactionRequest,
    EndTransactionResponse,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
    TransactionResolution,
    TransactionSource,
)
from grpc_endpoint.properties import PRODUCER_GROUP, message_of
from grpc_endpoint.status import StatusError, ok
from grpc_endpoint.validation import topic_of
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import HeaderError
from remoting.headers.transactions import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from remoting.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    CorruptRecordError,
    decode_record,
    parse_properties,
)

END_S: Final = 5.0
_UNKNOWN: Final = 0
_ENDINGS: Final = {
    TransactionResolution.COMMIT: TRANSACTION_COMMIT,
    TransactionResolution.ROLLBACK: TRANSACTION_ROLLBACK,
}

logger = logging.getLogger(__name__)


class Transactions:
    def __init__(self, brokers: Brokers, clients: Clients) -> None:
        self._brokers = brokers
        self._clients = clients

    async def end_transaction(self, call: Call, request: EndTransactionRequest) -> EndTransactionResponse:
        """Answered when the decision is committed; RocketMQ's proxy does not wait for it."""
        topic = topic_of(request.topic)
        transaction = TransactionId.parse(request.transaction_id)
        header = EndTransactionRequestHeader(
            producer_group=topic,  # by which the half message was sent
            queue_offset=transaction.queue_offset,
            position=transaction.position,
            commit_or_rollback=_ENDINGS.get(request.resolution, _UNKNOWN),
            from_transaction_check=request.source == TransactionSource.SOURCE_SERVER_CHECK,
            msg_id=request.message_id,
            transaction_id=transaction.unique_key,
            topic=topic,
        )
        command = RemotingCommand(RequestCode.END_TRANSACTION, ext_fields=header.ext_fields())
        try:
            await self._brokers.ask(transaction.broker_name, command, call.limit_s(END_S), topic=topic)
        except UnknownBrokerError as error:
            raise StatusError(Code.INVALID_TRANSACTION_ID, error.message) from error
        return EndTransactionResponse(status=ok())

    def check(self, request: RemotingCommand, connection: Connection) -> None:
        """39: ask one of the producers. Without one the broker asks again later, or at another endpoint."""
        try:
            header = CheckTransactionStateRequestHeader.parse(request.ext_fields)
            record = decode_record(request.body)
        except (HeaderError, CorruptRecordError) as error:
            logger.warning("a broker's question about a transaction cannot be read: %s", error)
            return
        properties = parse_properties(record.properties)
        producer = self._clients.producer(properties.get(PRODUCER_GROUP, record.topic))
        broker = self._brokers.name_at(f"{connection.remote_host}:{connection.remote_port}")
        if producer is None or producer.stream is None or broker is None:
            return
        message = message_of(record, "", properties)
        transaction = TransactionId(
            header.queue_offset, header.position, broker, message.system_properties.message_id
        )
        recover = RecoverOrphanedTransactionCommand(message=message, transaction_id=str(transaction))
        producer.stream.send(TelemetryCommand(recover_orphaned_transaction_command=recover))
