"""The checks of requests that name a group, a topic and a queue to consume from (PopMessageProcessor's), and
what a pop wants.
"""

from broker.config import BrokerConfig
from broker.consume.filters import MessageFilter
from broker.sql92.filters import SqlFilters
from broker.state.groups import SubscriptionGroupConfig
from broker.state.state import ReplicatedState
from broker.state.topics import PERM_READ
from remoting.codes import ResponseCode
from remoting.errors import RequestError
from remoting.headers.pop import NotificationRequestHeader, PopMessageRequestHeader
from remoting.pop_receipts import pop_retry_topic
from remoting.tag_filters import FilterError, is_tag_type, parse_tag_expression
from remoting.topic_names import RETRY_PREFIX, topic_name_error

MESSAGES_MAX = 32
INVISIBLE_MAX_MS = 12 * 3_600_000
"""As RocketMQ's proxy has it; a message in flight takes memory for no longer."""
_ATTEMPT_CHARS_MAX = 256


class PopChecks:
    """For one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        state: ReplicatedState,
        sql_filters: SqlFilters,
    ) -> None:
        self._config = config
        self._sql_filters = sql_filters
        self._state = state

    def place(self, group: SubscriptionGroupConfig, topic: str, queue_id: int) -> None:
        """May the group read this queue, any if below 0? Raises RequestError."""
        config = self._state.topics.get(topic)
        if config is None:
            remark = f"topic[{topic}] not exist, apply first please!"
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not config.perm & PERM_READ:
            remark = f"the topic[{topic}] peeking message is forbidden"
            raise RequestError(ResponseCode.NO_PERMISSION, remark)
        if queue_id >= config.read_queue_nums:
            remark = (
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}]"
            )
            raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
        if not group.consume_enable:
            remark = f"subscription group no permission, {group.name}"
            raise RequestError(ResponseCode.NO_PERMISSION, remark)

    def pop(self, header: PopMessageRequestHeader) -> None:
        """The bounds of a pop. Raises RequestError."""
        if not 0 < header.max_msg_nums <= MESSAGES_MAX:
            ip = self._config.broker_ip
            limit = "greater than" if header.max_msg_nums > 0 else "less than 1, and at most"
            remark = f"the broker[{ip}] pop message's num is {limit} {MESSAGES_MAX}"
            raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
        if not 0 < header.invisible_time_ms <= INVISIBLE_MAX_MS:
            remark = f"invisibleTime {header.invisible_time_ms} is not between 1 and {INVISIBLE_MAX_MS} ms"
            raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
        attempt_id = header.attempt_id or ""
        if len(attempt_id) > _ATTEMPT_CHARS_MAX or not attempt_id.isprintable():
            remark = f"attemptId is longer than {_ATTEMPT_CHARS_MAX} characters, or cannot be printed"
            raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
        if header.order or header.topic.startswith(RETRY_PREFIX):
            return
        is_v2 = self._config.enable_retry_topic_v2
        error = topic_name_error(pop_retry_topic(header.topic, header.consumer_group, is_v2))
        if error is not None:
            remark = f"messages of {header.topic} cannot come back to {header.consumer_group}: {error}"
            raise RequestError(ResponseCode.INVALID_PARAMETER, remark)

    def filter_of(self, header: PopMessageRequestHeader | NotificationRequestHeader) -> MessageFilter:
        """Raises RequestError."""
        try:
            if not header.exp or is_tag_type(header.exp_type):
                return parse_tag_expression(header.exp)
            return self._sql_filters.filter_for(header.exp_type, header.exp)
        except FilterError as error:
            remark = f"parse the consumer's subscription failed: {error}"
            raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from error
