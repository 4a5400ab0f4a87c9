"""EndTransaction (EndTransactionActivity, TransactionProcessor). The transaction id says where the half
message is; the broker's nodes forward the request to their leader.
"""

from typing import Final

from grpc_endpoint.brokers import Brokers
from grpc_endpoint.call import Call
from grpc_endpoint.handles import TransactionId
from grpc_endpoint.messaging_pb2 import (
    EndTransactionRequest,
    EndTransactionResponse,
    TransactionResolution,
    TransactionSource,
)
from grpc_endpoint.status import ok
from grpc_endpoint.validation import topic_of
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.headers.transactions import EndTransactionRequestHeader
from remoting.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK

END_S: Final = 5.0
_UNKNOWN: Final = 0
_ENDINGS: Final = {
    TransactionResolution.COMMIT: TRANSACTION_COMMIT,
    TransactionResolution.ROLLBACK: TRANSACTION_ROLLBACK,
}


class Transactions:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

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
        await self._brokers.ask(transaction.broker_name, command, call.limit_s(END_S), topic=topic)
        return EndTransactionResponse(status=ok())
