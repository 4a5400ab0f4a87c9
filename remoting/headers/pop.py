"""Typed headers of POP consumption (RocketMQ 5: PopMessageRequestHeader and others). Pure."""

from remoting.headers.fields import Int, Long, RequestHeader, request_header, wire_name


@request_header
class PopMessageRequestHeader(RequestHeader):
    """Code 200050. `queue_id` below 0: any queue of the topic.

    init_mode: where a group that is new to a queue begins, 0 at its first message, 1 at its last.
    poll_time_ms: how long the request may be held while there is nothing.
    """

    consumer_group: str
    topic: str
    queue_id: Int
    max_msg_nums: Int
    invisible_time_ms: Long = wire_name("invisibleTime")
    poll_time_ms: Long = wire_name("pollTime", default=0)
    init_mode: Int = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


@request_header
class AckMessageRequestHeader(RequestHeader):
    """Code 200051. `topic` is the one that the message is in: its retry topic, if it was revived."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long


@request_header
class ChangeInvisibleTimeRequestHeader(RequestHeader):
    """Code 200053."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    invisible_time_ms: Long = wire_name("invisibleTime")


@request_header
class PeekMessageRequestHeader(RequestHeader):
    """Code 200052."""

    consumer_group: str
    topic: str
    queue_id: Int
    max_msg_nums: Int


@request_header
class NotificationRequestHeader(RequestHeader):
    """Code 200054. RocketMQ 5.5 also sends what the pop will want."""

    consumer_group: str
    topic: str
    queue_id: Int
    poll_time_ms: Long = wire_name("pollTime", default=0)
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


@request_header
class PollingInfoRequestHeader(RequestHeader):
    """Code 200055."""

    consumer_group: str
    topic: str
    queue_id: Int
