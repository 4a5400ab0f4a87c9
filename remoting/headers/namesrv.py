"""Typed headers of the requests that brokers, clients and administrators send to a name server. Pure."""

from typing import Final

from remoting.headers.fields import Int, Long, RequestHeader, request_header, wire_name


@request_header
class RegisterBrokerRequestHeader(RequestHeader):
    """Code 103. `body_crc32` is the CRC-32 of the body as sent, without its sign bit; 0 means unchecked."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long
    ha_server_addr: str = ""
    compressed: bool = False
    body_crc32: Int = 0
    heartbeat_timeout_ms: Long | None = wire_name("heartbeatTimeoutMillis", default=None)


@request_header
class BrokerIdentityRequestHeader(RequestHeader):
    """Codes 104 (unregister) and 322 (data version)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@request_header
class BrokerHeartbeatRequestHeader(RequestHeader):
    """Code 904."""

    cluster_name: str
    broker_addr: str
    broker_name: str = ""


@request_header
class BrokerMemberGroupRequestHeader(RequestHeader):
    """Code 901."""

    cluster_name: str
    broker_name: str


@request_header
class BrokerNameRequestHeader(RequestHeader):
    """Codes 205 and 327: remove and restore the write permission of a broker's topics."""

    broker_name: str


@request_header
class ClusterRequestHeader(RequestHeader):
    """Code 224."""

    cluster: str


@request_header
class DeleteTopicRequestHeader(RequestHeader):
    """Code 216. With a cluster name, the topic is removed from that cluster's brokers only."""

    topic: str
    cluster_name: str | None = None


@request_header
class KvNamespaceRequestHeader(RequestHeader):
    """Code 219."""

    namespace: str


@request_header
class KvKeyRequestHeader(RequestHeader):
    """Codes 101 and 102."""

    namespace: str
    key: str


GRPC_ENDPOINTS: Final = "LEDGERMQ_GRPC_ENDPOINTS"
"""Namespace in which each endpoint for gRPC clients enters its `host:port`, with the Unix time in ms."""


@request_header
class KvItemRequestHeader(RequestHeader):
    """Code 100."""

    namespace: str
    key: str
    value: str
