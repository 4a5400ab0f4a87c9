"""Typed headers about connected clients: leaving, listing and notifying them. Pure."""

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
