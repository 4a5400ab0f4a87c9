"""Which queues of a topic are this client's: asks for the route and the group's members, and locks the queues
of ordered consumers (RebalanceImpl, RebalancePushImpl).
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from ledgermq.client.errors import MessagingError, UnreadableError
from ledgermq.client.queue_locks import lock_command, locked_queues
from ledgermq.client.session import Session
from remoting.allocation import averagely, in_java_order
from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.fastjson import FastjsonError, loads
from remoting.headers.consume import ConsumerGroupRequestHeader
from remoting.route import PERM_READ, TopicRoute

ASK_LIMIT_S: Final = 3.0
_MEMBERS: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR})
"""The latter says that the broker knows no member."""

logger = logging.getLogger(__name__)


def readable_queues(route: TopicRoute, topic: str) -> list[MessageQueue]:
    """The route's queues with messages to read, in the order of Java's clients."""
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & PERM_READ
        for queue_id in range(data.read_queue_nums)
    )


class Shares:
    """Of one member. is_broadcast: each member has all queues."""

    def __init__(self, session: Session, group: str, *, is_broadcast: bool) -> None:
        self._session = session
        self._group = group
        self._is_broadcast = is_broadcast

    async def of_topic(self, topic: str) -> set[MessageQueue] | None:
        """This client's queues. None: not known now, since the topic has no route, or no broker that answers
        lists this client yet; the client keeps what it has. Raises: MessagingError.
        """
        route = await self._session.route(topic)
        if route is None:
            return None
        queues = readable_queues(route, topic)
        if self._is_broadcast:
            return set(queues)
        members = await self._members(topic, sorted({data.broker_name for data in route.queue_datas}))
        if members is None:
            await self._session.beat()
            return None
        return set(averagely(self._session.client_id, queues, in_java_order(members)))

    async def _members(self, topic: str, broker_names: Iterable[str]) -> list[str] | None:
        """As the first broker lists them that has this client among them."""
        header = ConsumerGroupRequestHeader(self._group)
        command = self._session.command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        for name in broker_names:
            try:
                answer = await self._session.ask(name, topic, command, limit_s=ASK_LIMIT_S, accepted=_MEMBERS)
                members = _member_ids(answer.command)
            except MessagingError as error:
                logger.debug("%s does not list the members of %s: %s", name, self._group, error)
                continue
            if self._session.client_id in members:
                return members
        return None


class Locks:
    """The queue locks of one client. The requests of one call are sent in one turn of the loop, so that none
    of them overtakes another call's.
    """

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._held: set[MessageQueue] = set()
        """Asked for, and neither refused nor freed."""

    async def lock(self, queues: Iterable[MessageQueue]) -> tuple[set[MessageQueue], set[MessageQueue]]:
        """Acquire or renew them: those that are granted, and those whose broker does not answer."""
        parts = _by_broker(queues)
        for part in parts.values():
            self._held.update(part)
        answers = await asyncio.gather(*(self._lock(name, part) for name, part in parts.items()))
        granted: set[MessageQueue] = set()
        unknown: set[MessageQueue] = set()
        for part, answer in zip(parts.values(), answers, strict=True):
            if answer is None:
                unknown.update(part)
            else:
                granted |= answer
                self._held.difference_update(set(part) - answer)
        return granted, unknown

    async def _lock(self, broker_name: str, queues: list[MessageQueue]) -> set[MessageQueue] | None:
        try:
            answer = await self._ask(RequestCode.LOCK_BATCH_MQ, broker_name, queues)
            return locked_queues(answer) & set(queues)
        except MessagingError as error:
            logger.warning("%s does not lock queues for %s: %s", broker_name, self._group, error)
            return None

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """A lock that cannot be given back ends after 60 s."""
        parts = _by_broker(queues)
        for part in parts.values():
            self._held.difference_update(part)
        await asyncio.gather(*(self._unlock(name, part) for name, part in parts.items()))

    async def _unlock(self, broker_name: str, queues: list[MessageQueue]) -> None:
        try:
            await self._ask(RequestCode.UNLOCK_BATCH_MQ, broker_name, queues)
        except MessagingError as error:
            logger.warning("%s does not free the queues of %s: %s", broker_name, self._group, error)

    async def unlock_all(self) -> None:
        """Also those whose request was cancelled before its answer came."""
        await self.unlock(set(self._held))

    async def _ask(self, code: RequestCode, broker_name: str, queues: list[MessageQueue]) -> RemotingCommand:
        command = lock_command(code, self._group, self._session.client_id, queues)
        answer = await self._session.ask(broker_name, queues[0].topic, command, limit_s=ASK_LIMIT_S)
        return answer.command


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in sorted(queues):
        found[queue.broker_name].append(queue)
    return found


def _member_ids(answer: RemotingCommand) -> list[str]:
    """Raises UnreadableError."""
    if answer.code != ResponseCode.SUCCESS:
        return []
    try:
        return [str(each) for each in loads(answer.body).get("consumerIdList") or ()]
    except (FastjsonError, AttributeError, TypeError) as error:
        raise UnreadableError(f"the list of a group's members cannot be read: {error!r}") from error
