"""What becomes of a message that was not acknowledged in time: its copy in the group's pop retry topic
(PopReviveService.reviveRetry), or among its dead letters. Pure.
"""

from broker.pop.names import origin_topic, pop_retry_topic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import RETRY_PREFIX, TopicConfig, dlq_topic
from commitlog.record import (
    PROPERTIES_BYTES_MAX,
    STORE_HOST_V6,
    Message,
    MessageIllegalError,
    Record,
    format_properties,
    offset_msg_id,
    parse_properties,
)

PROPERTY_FIRST_POP_TIME = "1ST_POP_TIME"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"


def target_topic(record: Record, group: SubscriptionGroupConfig, is_v2: bool) -> TopicConfig:
    """Where the message goes. One from a retry topic goes there again."""
    if record.reconsume_times >= group.retry_max_times:
        return dlq_topic(group.name)
    if record.topic.startswith(RETRY_PREFIX):
        return TopicConfig(record.topic, 1, 1)
    return TopicConfig(pop_retry_topic(record.topic, group.name, is_v2), 1, 1)


def retry_copy(
    record: Record, topic: TopicConfig, group: str, pop_time_ms: int, store_host: bytes
) -> Message:
    """The message as its next try: same body, birth and key, one more in reconsumeTimes."""
    return Message(
        topic=topic.name,
        queue_id=0,
        body=bytes(record.body),
        properties=_properties(record, topic, group, pop_time_ms),
        flag=record.flag,
        sys_flag=record.sys_flag & ~STORE_HOST_V6,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
        store_host=store_host,
        reconsume_times=record.reconsume_times + 1,
    )


def _properties(record: Record, topic: TopicConfig, group: str, pop_time_ms: int) -> bytes:
    """With what the copy says of its origin, as long as there is room for that."""
    properties = parse_properties(record.properties)
    if not record.reconsume_times or PROPERTY_FIRST_POP_TIME not in properties:
        properties[PROPERTY_FIRST_POP_TIME] = str(pop_time_ms)
    if not topic.name.startswith(RETRY_PREFIX):
        properties.setdefault(PROPERTY_RETRY_TOPIC, origin_topic(record.topic, group))
        origin_id = offset_msg_id(record.store_host, record.physical_offset)
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, origin_id)
    try:
        data = format_properties(properties)
    except MessageIllegalError:
        return record.properties
    return data if len(data) <= PROPERTIES_BYTES_MAX else record.properties
