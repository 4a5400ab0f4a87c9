"""Transactions: a message that consumers see once the producer's own work is done.

The message is prepared first (a half message, which no consumer sees); then the work is done; then the
message is committed or rolled back. A broker that hears nothing asks a member of the producer group (39).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import IntEnum
from types import TracebackType
from typing import Final, Protocol, Self

from ledgermq.client.errors import MessagingError, UncertainError
from ledgermq.client.messages import Message, ReceivedMessage, SendResult, received_messages
from ledgermq.client.session import Session
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import HeaderError
from remoting.headers.transactions import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)

TRANSACTION: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
PREPARED: Final = 0x4
"""In sysFlag."""
CHECKS_MAX: Final = 64
"""Checks under way; the broker asks again for those that are dropped."""

logger = logging.getLogger(__name__)


class TransactionOutcome(IntEnum):
    """What becomes of the message. UNKNOWN: the broker asks later."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class TransactionListener(Protocol):
    """The producer's own work, and what is known of it later."""

    async def execute(self, message: Message, result: SendResult) -> TransactionOutcome:
        """Do the work. An error is UNKNOWN, and raised to the sender."""
        ...

    async def check(self, message: ReceivedMessage) -> TransactionOutcome:
        """What became of the work; perhaps that of another member of the group, or of an earlier process."""
        ...


class Transaction:
    """A prepared message. `async with` commits it at the end of the block; an error rolls it back."""

    def __init__(self, transactions: "Transactions", message: Message, result: SendResult) -> None:
        self.message = message
        self.result = result
        self._transactions = transactions
        self._is_ended = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_ended:
            await self.end(TransactionOutcome.COMMIT if error is None else TransactionOutcome.ROLLBACK)

    async def commit(self) -> None:
        """Consumers get the message. Raises: as `end`."""
        await self.end(TransactionOutcome.COMMIT)

    async def rollback(self) -> None:
        """No consumer gets the message. Raises: as `end`."""
        await self.end(TransactionOutcome.ROLLBACK)

    async def end(self, outcome: TransactionOutcome) -> None:
        """Raises: MessagingError; the broker will ask the group's check what became of it."""
        self._is_ended = True
        await self._transactions.end(self.result, outcome)


class Transactions:
    """Ends transactions, and answers the brokers' checks.

    check: what became of a transaction; None leaves the broker without an answer.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        check: Callable[[ReceivedMessage], Awaitable[TransactionOutcome]] | None,
        timeout_s: float,
    ) -> None:
        self._session = session
        self._group = group
        self._check = check
        self._timeout_s = timeout_s
        self._checks: set[asyncio.Task[None]] = set()
        session.answer(RequestCode.CHECK_TRANSACTION_STATE, self._asked)

    async def end(self, result: SendResult, outcome: TransactionOutcome) -> None:
        """Raises MessagingError."""
        header = EndTransactionRequestHeader(
            producer_group=self._group,
            queue_offset=result.queue_offset or 0,
            position=_position_of(result.offset_message_id),
            commit_or_rollback=int(outcome),
            msg_id=result.message_id,
            transaction_id=result.transaction_id or result.message_id,
            topic=result.queue.topic,
        )
        await self._end(result.queue.broker_name, result.queue.topic, header)

    async def _end(self, broker_name: str, topic: str, header: EndTransactionRequestHeader) -> None:
        command = self._session.command(RequestCode.END_TRANSACTION, header)
        await self._session.ask(broker_name, topic, command, limit_s=self._timeout_s)

    def _asked(self, request: RemotingCommand, connection: Connection) -> None:
        """39, without an answer: the outcome goes to the leader in a request of its own."""
        if self._check is not None and len(self._checks) < CHECKS_MAX:
            task = self._session.spawn(self._answer(request, connection.remote_address))
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)

    async def _answer(self, request: RemotingCommand, address: str) -> None:
        assert self._check is not None, "no check was given"
        broker_name = self._session.name_at(address)
        try:
            header = CheckTransactionStateRequestHeader.parse(request.ext_fields)
            (message,) = received_messages(request.body, broker_name or address)
        except (HeaderError, MessagingError, ValueError) as error:
            logger.warning("a check of a transaction from %s cannot be read: %s", address, error)
            return
        if broker_name is None:
            logger.info("%s asks about a transaction, and is in no known route", address)
            return
        outcome = await self._outcome(message)
        ending = EndTransactionRequestHeader(
            producer_group=self._group,
            queue_offset=header.queue_offset,
            position=header.position,
            commit_or_rollback=int(outcome),
            from_transaction_check=True,
            msg_id=header.msg_id or message.message_id,
            transaction_id=header.transaction_id,
            topic=message.topic,
        )
        try:
            await self._end(broker_name, message.topic, ending)
        except MessagingError as error:
            logger.info("the broker will ask again about %s: %s", message.message_id, error)

    async def _outcome(self, message: ReceivedMessage) -> TransactionOutcome:
        assert self._check is not None, "no check was given"
        try:
            return await self._check(message)
        except Exception:
            logger.exception("the check of the transaction %s failed", message.message_id)
            return TransactionOutcome.UNKNOWN


def _position_of(offset_message_id: str) -> int:
    """Raises UncertainError: the message is prepared, and cannot be named to the broker."""
    try:
        return int(offset_message_id[-16:], 16)
    except ValueError as error:
        raise UncertainError(
            f"the broker gave the id {offset_message_id[:60]!r} to a half message"
        ) from error
