"""Typed headers of pulls and queries, of a group's offsets, of messages sent back for a retry, and of the
clients of groups. Pure.

Names follow RocketMQ's header classes. `offset` is a message number in a queue; the header fields that
RocketMQ calls offset but which are byte positions in the log keep their wire names in the comments.
"""

from remoting.headers.fields import Int, Long, RequestHeader, request_header, wire_name


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
class ReadIndexRequestHeader(RequestHeader):
    """Code 65010. A follower that serves consumers near it names its broker id and its zone."""

    broker_id: Int = -1
    zone: str = ""


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
class ConsumerStatusRequestHeader(RequestHeader):
    """Code 223; `client_addr` is a client id."""

    topic: str
    group: str
    client_addr: str = ""


@request_header
class CallConsumerRequestHeader(RequestHeader):
    """Codes 307 and 309; the latter with an offsetMsgId."""

    consumer_group: str
    client_id: str = ""
    msg_id: str = ""
    topic: str = ""


@request_header
class ProducerGroupRequestHeader(RequestHeader):
    """Code 204."""

    producer_group: str
