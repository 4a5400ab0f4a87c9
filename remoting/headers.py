"""Typed headers of the requests that producers and consumers send to a broker. Pure.

Names follow RocketMQ's header classes. `offset` is a message number in a queue; the header fields that
RocketMQ calls offset but which are byte positions in the log keep their wire names in the comments.
"""

from remoting.header_fields import Int, Long, RequestHeader, request_header, wire_name


@request_header
class PullMessageRequestHeader(RequestHeader):
    """Codes 11 and 361. `sys_flag`: 1 commit offset valid, 2 may be held, 4 subscription included, 16 lite
    pull.
    """

    consumer_group: str
    topic: str
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    commit_offset: Long
    suspend_timeout_ms: Long = wire_name("suspendTimeoutMillis")
    sub_version: Long = 0
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int | None = None


@request_header
class QueryConsumerOffsetRequestHeader(RequestHeader):
    """Code 14."""

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None


@request_header
class UpdateConsumerOffsetRequestHeader(RequestHeader):
    """Code 15."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long


@request_header
class QueueRequestHeader(RequestHeader):
    """Codes 30 (max offset), 31 (min offset) and 32 (earliest store time)."""

    topic: str
    queue_id: Int
    committed: bool = True


@request_header
class SearchOffsetRequestHeader(RequestHeader):
    """Code 29. `boundary_type` is LOWER or UPPER, from version 5 clients only."""

    topic: str
    queue_id: Int
    timestamp_ms: Long = wire_name("timestamp")
    boundary_type: str = "LOWER"


@request_header
class UnregisterClientRequestHeader(RequestHeader):
    """Code 35. The C++ client sends an empty group where it has none."""

    client_id: str = wire_name("clientID")
    producer_group: str = ""
    consumer_group: str = ""


@request_header
class ConsumerGroupRequestHeader(RequestHeader):
    """Codes 38 (client ids of a group), 40 (they changed) and 203 (their connections)."""

    consumer_group: str


@request_header
class ConsumerSendMsgBackRequestHeader(RequestHeader):
    """Code 36. `position` is the record's byte position in the log (`offset` on the wire)."""

    position: Long = wire_name("offset")
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None


@request_header
class EndTransactionRequestHeader(RequestHeader):
    """Code 37. `commit_or_rollback`: 8 commit, 12 rollback, 0 unknown. Positions and offsets of the half
    message.
    """

    producer_group: str
    queue_offset: Long = wire_name("tranStateTableOffset")
    position: Long = wire_name("commitLogOffset")
    commit_or_rollback: Int
    from_transaction_check: bool = False
    msg_id: str = ""
    transaction_id: str | None = None
    topic: str | None = None


@request_header
class CheckTransactionStateRequestHeader(RequestHeader):
    """Code 39, from broker to producer."""

    queue_offset: Long = wire_name("tranStateTableOffset")
    position: Long = wire_name("commitLogOffset")
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


@request_header
class ResumeCheckHalfMessageRequestHeader(RequestHeader):
    """Code 323. `msg_id` is an offsetMsgId."""

    msg_id: str
    topic: str | None = None


@request_header
class RecallMessageRequestHeader(RequestHeader):
    """Code 370. The handle is of a timer message's answer."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


@request_header
class QueryMessageRequestHeader(RequestHeader):
    """Code 12. With `is_unique_key` the key is a message id that its client chose."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp_ms: Long = wire_name("beginTimestamp")
    end_timestamp_ms: Long = wire_name("endTimestamp")
    is_unique_key: bool = wire_name("_UNIQUE_KEY_QUERY", default=False)
    index_type: str | None = None
    """K (or nothing): by a key, U: by its id, T: by its tag; from version 5.4 clients only."""


@request_header
class ViewMessageRequestHeader(RequestHeader):
    """Code 33. `position` is the record's byte position in the log (`offset` on the wire)."""

    position: Long = wire_name("offset")
    topic: str | None = None


@request_header
class TopicRequestHeader(RequestHeader):
    """Codes 105, 202, 215, 300 and 351: a topic and nothing else that matters to us."""

    topic: str


@request_header
class CreateTopicRequestHeader(RequestHeader):
    """Code 17. Old and C++ clients leave `order` out."""

    topic: str
    default_topic: str = ""
    read_queue_nums: Int = 8
    write_queue_nums: Int = 8
    perm: Int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int = 0
    order: bool = False
    attributes: str = ""


@request_header
class DeleteSubscriptionGroupRequestHeader(RequestHeader):
    """Code 207."""

    group_name: str
    clean_offset: bool = False
