"""One pull by long polling, for consumers that read queue by queue (PullAPIWrapper)."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import orjson

from ledgermq.client.errors import ClosedError, MessagingError
from ledgermq.client.messages import ReceivedMessage, received_messages
from ledgermq.client.offsets import offset_in
from ledgermq.client.progress import was_trimmed
from ledgermq.client.session import Session, refusal_of
from ledgermq.client.subscriptions import Subscription
from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.consume import PullMessageRequestHeader
from remoting.tag_filters import EXPRESSION_TYPE_TAG

HELD_S: Final = 15.0
"""How long a broker may hold a pull until a message arrives."""
HELD_EXTRA_S: Final = 5.0
PULL_LIMIT_S: Final = 120.0
"""So long that the last try of a pull is not cut off while the broker holds it."""
CHECK_LIMIT_S: Final = 5.0
PAUSE_FIRST_S: Final = 0.1
PAUSE_MAX_S: Final = 3.0
_MAY_BE_HELD: Final = 2
_HAS_SUBSCRIPTION: Final = 4
"""With it a pull does not depend on the heartbeat, which a new leader may not have had yet."""
_ANSWERED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
_CHECKED: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR})
"""The latter where a broker evaluates no such expressions."""
_T = TypeVar("_T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pulled:
    """messages: those that are wanted. next_offset: of the next pull.

    is_reset: the offset was set, by an operator or because the topic was made again: what was pulled before
    is not to be consumed any more.
    """

    messages: list[ReceivedMessage]
    next_offset: int
    is_reset: bool = False


class Puller:
    """Pulls for one group. batch_messages: of one answer, at most; brokers give 32."""

    def __init__(self, session: Session, group: str, batch_messages: int = 32) -> None:
        self._session = session
        self._group = group
        self._batch_messages = batch_messages

    async def pull(
        self, queue: MessageQueue, offset: int, subscription: Subscription, *, held_s: float = HELD_S
    ) -> Pulled:
        """The next messages, once there are any, or after `held_s`. Raises: MessagingError."""
        header = PullMessageRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=self._batch_messages,
            sys_flag=_MAY_BE_HELD | _HAS_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_ms=round(held_s * 1000),
            sub_version=subscription.version_ms,
            subscription=subscription.expression,
            expression_type=subscription.expression_type,
        )
        # A pull may go on at a node that has become a follower; what is outdated is asked for again here.
        await self._session.route(queue.topic)
        answer = await self._session.ask(
            queue.broker_name,
            queue.topic,
            self._session.command(RequestCode.PULL_MESSAGE, header),
            limit_s=PULL_LIMIT_S,
            try_s=held_s + HELD_EXTRA_S,
            accepted=_ANSWERED,
            may_follow=True,
        )
        command = answer.command
        next_offset = offset_in(command, queue, "nextBeginOffset")
        if command.code == ResponseCode.PULL_OFFSET_MOVED:
            min_offset = offset_in(command, queue, "minOffset")
            return Pulled([], next_offset, not was_trimmed(next_offset, min_offset, offset))
        if command.code != ResponseCode.SUCCESS:
            return Pulled([], next_offset)
        found = received_messages(command.body, queue.broker_name)
        return Pulled([each for each in found if subscription.wants(each)], next_offset)


async def check_expression(session: Session, group: str, topic: str, subscription: Subscription) -> None:
    """Brokers that cannot evaluate an SQL92 expression say so (46). The topic's route is asked for before.

    Raises: RefusedError, MessagingError.
    """
    route = session.known_route(topic)
    if subscription.expression_type == EXPRESSION_TYPE_TAG or route is None or not route.queue_datas:
        return
    body = {"clientId": session.client_id, "group": group, "subscriptionData": subscription.to_json()}
    command = RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, body=orjson.dumps(body))
    name = route.queue_datas[0].broker_name
    answer = await session.ask(name, topic, command, limit_s=CHECK_LIMIT_S, accepted=_CHECKED)
    if answer.command.code != ResponseCode.SUCCESS:
        raise refusal_of(answer.command, f"the expression for {topic}", name)


async def until_done(
    work: Callable[[], Coroutine[Any, Any, _T]],
    what: str,
    is_final: Callable[[MessagingError], bool] = lambda _: False,
) -> _T:
    """Its result; after a failure it is tried again, with pauses up to 3 s.

    Raises: ClosedError, and errors that are final.
    """
    pause_s = PAUSE_FIRST_S
    while True:
        try:
            return await work()
        except ClosedError:
            raise
        except MessagingError as error:
            if is_final(error):
                raise
            logger.warning("%s fails and is tried again: %s", what, error)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, PAUSE_MAX_S)
