"""Typed headers by which subscription groups are deleted and asked about. Pure."""

from remoting.headers.fields import RequestHeader, request_header


@request_header
class GroupRequestHeader(RequestHeader):
    """Codes 343 and 352."""

    group: str


@request_header
class DeleteSubscriptionGroupRequestHeader(RequestHeader):
    """Code 207."""

    group_name: str
    clean_offset: bool = False
