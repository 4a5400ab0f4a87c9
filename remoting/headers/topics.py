"""Typed headers by which topics are created, deleted and asked about. Pure."""

from remoting.headers.fields import Int, Long, RequestHeader, request_header


@request_header
class QueryConsumeQueueRequestHeader(RequestHeader):
    """Code 321."""

    topic: str
    queue_id: Int
    index: Long
    count: Int
    consumer_group: str = ""


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
