"""Has a message come to its group again, or become a dead letter
(DefaultMQPushConsumerImpl.sendMessageBack).
"""

from typing import Final

from ledgermq.client.errors import AccessDeniedError, RefusedError, UncertainError
from ledgermq.client.messages import (
    DELAY_LEVEL,
    ORIGIN_ID,
    RETRY_TOPIC,
    ReceivedMessage,
)
from ledgermq.client.outcomes import DEAD_LETTER_LEVEL, DELAY_LEVEL_MAX
from ledgermq.client.producer import STORED
from ledgermq.client.session import Session
from remoting.client.routes import DEFAULT_QUEUES_MAX
from remoting.client.send_requests import by_letters
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.headers.consume import ConsumerSendMsgBackRequestHeader
from remoting.headers.send import SendMessageRequestHeader
from remoting.record import format_properties
from remoting.route import DEFAULT_TOPIC
from remoting.topic_names import RETRY_PREFIX

SEND_BACK_LIMIT_S: Final = 5.0
_DELAY_LEVEL_FIRST: Final = 3
_OF_EARLIER_DELIVERY: Final = frozenset(
    {
        DELAY_LEVEL,
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "TRAN_MSG",
        "REAL_TOPIC",
        "REAL_QID",
    }
)


class SendBacks:
    """Of one group. times_max: tries after the first, before the broker makes a dead letter of it."""

    def __init__(self, session: Session, group: str, times_max: int) -> None:
        self._session = session
        self._group = group
        self._times_max = times_max

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> None:
        """The broker copies the record. Where it cannot, perhaps since it does not have it any more, it gets
        the message once more; so the message may come twice.

        Raises: MessagingError.
        """
        try:
            await self._by_position(message, delay_level)
        except AccessDeniedError:
            raise
        except (RefusedError, UncertainError):
            await self._ask(message, RETRY_PREFIX + self._group, self._copy(message, delay_level))

    async def _by_position(self, message: ReceivedMessage, delay_level: int) -> None:
        header = ConsumerSendMsgBackRequestHeader(
            position=message.position,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=message.queue.topic,
            max_reconsume_times=self._times_max,
        )
        command = self._session.command(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        await self._ask(message, message.queue.topic, command)

    async def _ask(self, message: ReceivedMessage, topic: str, command: RemotingCommand) -> None:
        broker_name = message.queue.broker_name
        await self._session.ask(broker_name, topic, command, limit_s=SEND_BACK_LIMIT_S, accepted=STORED)

    def _copy(self, message: ReceivedMessage, delay_level: int) -> RemotingCommand:
        """A send to the retry topic. Brokers make a dead letter of what was tried too often."""
        is_dead = delay_level == DEAD_LETTER_LEVEL
        level = (
            delay_level if delay_level > 0 else min(_DELAY_LEVEL_FIRST + message.attempts, DELAY_LEVEL_MAX)
        )
        properties = {
            name: value for name, value in message.properties.items() if name not in _OF_EARLIER_DELIVERY
        }
        properties.setdefault(RETRY_TOPIC, message.topic)
        properties.setdefault(ORIGIN_ID, message.message_id)
        header = SendMessageRequestHeader(
            producer_group=self._group,
            topic=RETRY_PREFIX + self._group,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=DEFAULT_QUEUES_MAX,
            queue_id=0,
            sys_flag=0,
            born_timestamp_ms=message.born_at_ms,
            flag=message.flag,
            properties=format_properties(properties | {DELAY_LEVEL: str(level)}).decode(),
            reconsume_times=self._times_max + 1 if is_dead else message.attempts + 1,
            max_reconsume_times=self._times_max,
            broker_name=message.queue.broker_name,
        )
        return RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=by_letters(header), body=message.body)
