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
    ReceiptExpiredError,
    RefusedError,
    TopicNotFoundError,
    UncertainError,
    UnreadableError,
    WrongMessageError,
    WrongSubscriptionError,
)
from ledgermq.client.messages import Compression, Message, ReceivedMessage, SendResult
from ledgermq.client.offsets import AtTime, Where
from ledgermq.client.outcomes import DeadLetter, RetryLater
from ledgermq.client.producer import Producer
from ledgermq.client.progress import PullLimits
from ledgermq.client.pull_consumer import PullConsumer
from ledgermq.client.push_consumer import PushConsumer
from ledgermq.client.simple_consumer import SimpleConsumer
from ledgermq.client.subscriptions import Sql
from ledgermq.client.transactions import Transaction, TransactionListener, TransactionOutcome
from remoting.client.routes import MessageQueue
from remoting.client.tls import ClientTls

__all__ = [
    "AccessDeniedError",
    "AtTime",
    "ClientTls",
    "ClosedError",
    "Compression",
    "DeadLetter",
    "Message",
    "MessageQueue",
    "MessagingError",
    "NotSentError",
    "Producer",
    "PullConsumer",
    "PullLimits",
    "PushConsumer",
    "ReceiptExpiredError",
    "ReceivedMessage",
    "RefusedError",
    "RetryLater",
    "SendResult",
    "SimpleConsumer",
    "Sql",
    "TopicNotFoundError",
    "Transaction",
    "TransactionListener",
    "TransactionOutcome",
    "UncertainError",
    "UnreadableError",
    "Where",
    "WrongMessageError",
    "WrongSubscriptionError",
]
