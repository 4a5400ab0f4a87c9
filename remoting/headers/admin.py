"""Typed headers of the requests that administrators send to a broker. Pure."""

from remoting.headers.fields import Int, RequestHeader, request_header


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
