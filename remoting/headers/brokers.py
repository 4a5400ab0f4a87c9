"""Typed headers of the requests about a broker as a whole: its leader and its statistics. Pure."""

from remoting.headers.fields import Long, RequestHeader, request_header


@request_header
class TransferLeaderRequestHeader(RequestHeader):
    """Code 65002: the id of the member that is to lead."""

    transferee: str


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
