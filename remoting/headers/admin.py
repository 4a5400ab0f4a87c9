"""Typed headers of administrators' requests to a broker: its leader and statistics, topics, subscription
groups, and the offsets of groups. Pure.
"""

from remoting.headers.fields import Int, Long, RequestHeader, request_header, wire_name


@request_header
class TransferLeaderRequestHeader(RequestHeader):
    """Code 65002: the id of the member that is to lead."""

    transferee: str


@request_header
class GrpcEndpointRequestHeader(RequestHeader):
    """Code 65006: the `host:port` to which gRPC clients connect."""

    address: str


@request_header
class GrpcClientsRequestHeader(RequestHeader):
    """Code 65007: so many of the clients of the endpoint there, after the first `skipped`."""

    address: str
    skipped: Int = 0
    count: Int = 20


@request_header
class ElectMasterRequestHeader(RequestHeader):
    """Code 1002."""

    cluster_name: str
    broker_name: str
    broker_id: Long


@request_header
class ViewBrokerStatsRequestHeader(RequestHeader):
    """Code 315."""

    stats_name: str
    stats_key: str


@request_header
class QueryConsumeQueueRequestHeader(RequestHeader):
    """Code 321."""

    topic: str
    queue_id: Int
    index: Long
    count: Int
    consumer_group: str = ""


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
class GroupRequestHeader(RequestHeader):
    """Codes 343 and 352."""

    group: str


@request_header
class DeleteSubscriptionGroupRequestHeader(RequestHeader):
    """Code 207."""

    group_name: str
    clean_offset: bool = False


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
