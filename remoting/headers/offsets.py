"""Typed headers by which administrators show and change the offsets of consumer groups. Pure."""

from remoting.headers.fields import Int, Long, RequestHeader, request_header, wire_name


@request_header
class ConsumeStatsRequestHeader(RequestHeader):
    """Code 208; without a topic all that the group consumes. A list of topics is separated by semicolons."""

    consumer_group: str
    topic: str = ""
    topic_list: str = ""


@request_header
class ResetOffsetRequestHeader(RequestHeader):
    """Code 222. Without `is_force` no offset moves forward."""

    topic: str
    group: str
    timestamp_ms: Long = wire_name("timestamp")
    is_force: bool = True
    queue_id: Int = -1
    offset: Long = -1


@request_header
class CloneGroupOffsetRequestHeader(RequestHeader):
    """Code 314; without a topic all that the source has consumed."""

    src_group: str
    dest_group: str
    topic: str = ""
    offline: bool = False


@request_header
class GroupTopicRequestHeader(RequestHeader):
    """Codes 303 and 345."""

    topic: str
    group: str


@request_header
class CorrectionOffsetRequestHeader(RequestHeader):
    """Code 308; `filter_groups` are separated by commas and left out of the comparison."""

    topic: str
    compare_group: str
    filter_groups: str = ""


@request_header
class BrokerConsumeStatsRequestHeader(RequestHeader):
    """Code 317."""

    is_order: bool = False
