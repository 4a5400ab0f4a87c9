"""Typed headers by which clients come, go and are counted, and by which a broker notifies them. Pure."""

from remoting.headers.fields import RequestHeader, request_header, wire_name


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
