"""A client for LedgerMQ and RocketMQ 4.9 and 5 brokers: asyncio here, the same names for threads in
`ledgermq.client.blocking`. It imports nothing of the broker.

    async with Producer("127.0.0.1:9876") as producer:
        await producer.send(Message("orders", b"..."))
"""

from ledgermq.client.errors import (
    AccessDeniedError,
    ClosedError,
    MessagingError,
    NotSentError,
    RefusedError,
    TopicNotFoundError,
    UncertainError,
    UnreadableError,
    WrongMessageError,
)
from ledgermq.client.messages import Compression, Message, ReceivedMessage, SendResult
from ledgermq.client.producer import Producer
from ledgermq.client.transactions import Transaction, TransactionListener, TransactionOutcome
from remoting.client.routes import MessageQueue
from remoting.client.tls import ClientTls

__all__ = [
    "AccessDeniedError",
    "ClientTls",
    "ClosedError",
    "Compression",
    "Message",
    "MessageQueue",
    "MessagingError",
    "NotSentError",
    "Producer",
    "ReceivedMessage",
    "RefusedError",
    "SendResult",
    "TopicNotFoundError",
    "Transaction",
    "TransactionListener",
    "TransactionOutcome",
    "UncertainError",
    "UnreadableError",
    "WrongMessageError",
]
