"""Requests of brokers: register, unregister, heartbeat, data version, members; and the bodies of
registrations (`RegisterBrokerBody`, `TopicConfig`, `DataVersion`).
"""

import logging
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from namesrv.config import ORDER_TOPIC_NAMESPACE, KvConfig, NameServerConfig, NameServerSwitches
from namesrv.route_info import DataVersion, RegisterResult, Registration, RouteInfoManager, TablesFullError
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.fastjson import FastjsonError, loads
from remoting.headers.namesrv import (
    BrokerHeartbeatRequestHeader,
    BrokerIdentityRequestHeader,
    BrokerMemberGroupRequestHeader,
    RegisterBrokerRequestHeader,
)
from remoting.route import QueueData
from remoting.router import Router

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
BODY_WITH_FILTERS_VERSION = 37
"""V3_0_11: since this version of the broker, the topics are one level deeper in the body."""
_CRC_MASK = 0x7FFFFFFF

_log = logging.getLogger(__name__)


class RegistrationError(ValueError):
    """A registration's body cannot be read."""


def parse_data_version(body: bytes) -> DataVersion:
    """Read the body of a 322.

    Raises:
        RegistrationError: it is no data version.
    """
    return _data_version(_load_object(body))


def parse_body(
    body: bytes, broker_name: str, broker_version: int
) -> tuple[DataVersion, dict[str, QueueData]]:
    """Read the plain form of a 103's body. An empty body is a broker without topics.

    Raises:
        RegistrationError: it cannot be read.
    """
    if not body:
        return DataVersion(), {}
    outer = _load_object(body)
    wrapper = outer
    if broker_version >= BODY_WITH_FILTERS_VERSION:
        wrapper = _object(outer.get("topicConfigSerializeWrapper") or {})
    version = _data_version(_object(wrapper.get("dataVersion") or {}))
    return version, _queues(broker_name, _object(wrapper.get("topicConfigTable") or {}))


def parse_compressed_body(
    body: bytes, broker_name: str, bytes_max: int
) -> tuple[DataVersion, dict[str, QueueData]]:
    """Read the compressed form of a 103's body: lengths and texts under zlib.

    What follows the topics (filter servers, mappings of static topics) is of no use to us.

    Raises:
        RegistrationError: it cannot be read, or holds more than `bytes_max`.
    """
    reader = _Reader(_inflate(body, bytes_max))
    version = parse_data_version(reader.text())
    topics: dict[str, QueueData] = {}
    for _ in range(reader.number()):
        topic, queue_data = _parse_topic_text(reader.text(), broker_name)
        topics[topic] = queue_data
    return version, topics


def _inflate(body: bytes, bytes_max: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, bytes_max)
    except zlib.error as error:
        raise RegistrationError(f"compressed body: {error}") from None
    if not stream.eof:
        raise RegistrationError(f"compressed body is cut or holds more than {bytes_max} bytes")
    return data


class _Reader:
    """Reads length-prefixed texts from a buffer; every length is checked against the bytes left."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def text(self) -> bytes:
        return self._take(self.number())

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise RegistrationError(f"compressed body: {size} bytes asked at {self._position}")
        part = self._data[self._position : end]
        self._position = end
        return part


def _parse_topic_text(text: bytes, broker_name: str) -> tuple[str, QueueData]:
    """`name readQueues writeQueues perm filterType[ attributes]`, parted by single spaces."""
    try:
        name, read_nums, write_nums, perm = text.decode().split(" ", 4)[:4]
        fields = [_checked(number, int(number), _INT32_MAX) for number in (read_nums, write_nums, perm)]
        return name, QueueData(broker_name, *fields)
    except ValueError:
        raise RegistrationError(f"topic is {text[:80]!r}") from None


def _queues(broker_name: str, table: Mapping[str, Any]) -> dict[str, QueueData]:
    """Each topic's queues. A registration has thousands of topics: the ordinary form is read without a call
    for each.
    """
    queues = {}
    for topic, config in table.items():
        row = config if isinstance(config, dict) else _object(config)
        get = row.get
        usual: tuple[Any, ...] = get("readQueueNums"), get("writeQueueNums"), get("perm"), get("topicSysFlag")
        if all(type(number) is int and 0 <= number <= _INT32_MAX for number in usual):
            queues[topic] = QueueData(broker_name, *usual)
        else:
            queues[topic] = _queue_data(broker_name, row)
    return queues


def _queue_data(broker_name: str, config: Mapping[str, Any]) -> QueueData:
    return QueueData(
        broker_name,
        _number(config, "readQueueNums", 16, _INT32_MAX),
        _number(config, "writeQueueNums", 16, _INT32_MAX),
        _number(config, "perm", 6, _INT32_MAX),
        _number(config, "topicSysFlag", 0, _INT32_MAX),
    )


def _data_version(value: Mapping[str, Any]) -> DataVersion:
    return DataVersion(
        _number(value, "stateVersion", 0), _number(value, "timestamp", 0), _number(value, "counter", 0)
    )


def _number(value: Mapping[str, Any], name: str, default: int, most: int = _INT64_MAX) -> int:
    found = value.get(name)
    try:
        return default if found is None else _checked(name, int(found), most)
    except (TypeError, ValueError, OverflowError):
        raise RegistrationError(f"{name} is {str(found)[:40]!r}, not a number") from None


def _checked(name: str, number: int, most: int) -> int:
    """A number that no Java broker can have would be one that no answer can hold."""
    if not -most - 1 <= number <= most:
        raise RegistrationError(f"{name} is beyond its {most.bit_length() + 1} bits")
    return number


def _load_object(body: bytes) -> Mapping[str, Any]:
    try:
        return _object(loads(body))
    except FastjsonError as error:
        raise RegistrationError(f"body is not JSON: {error}") from None


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RegistrationError(f"{str(value)[:40]!r} is in place of a JSON object")
    return value


class BrokerProcessor:
    """Answers 103, 104, 322, 901 and 904."""

    def __init__(
        self,
        tables: RouteInfoManager,
        kv_config: KvConfig,
        config: NameServerConfig,
        switches: NameServerSwitches,
        clock_ms: Callable[[], int],
    ) -> None:
        self._tables = tables
        self._kv_config = kv_config
        self._config = config
        self._switches = switches
        self._clock_ms = clock_ms

    def register(self, router: Router) -> None:
        """Enter the handlers."""
        router.register(RequestCode.REGISTER_BROKER, self.register_broker)
        router.register(RequestCode.UNREGISTER_BROKER, self.unregister_broker)
        router.register(RequestCode.QUERY_DATA_VERSION, self.query_data_version)
        router.register(RequestCode.BROKER_HEARTBEAT, self.heartbeat)
        router.register(RequestCode.GET_BROKER_MEMBER_GROUP, self.members)

    def register_broker(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """103 REGISTER_BROKER: add the node; answer with its master and the ordered topics."""
        registration = self._read_registration(request)
        try:
            result = self._tables.register(registration, self._clock_ms(), connection.connection_id)
        except TablesFullError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        self._log_result(registration, result)
        ext: dict[str, str] = {}
        if result.ha_server_addr is not None:
            ext["haServerAddr"] = result.ha_server_addr
        if result.master_addr is not None:
            ext["masterAddr"] = result.master_addr
        body = b""
        if self._switches.return_order_topic_config_to_broker:
            body = orjson.dumps({"table": self._kv_config.namespace(ORDER_TOPIC_NAMESPACE) or {}})
        return success_response(request, ext, body)

    def unregister_broker(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """104 UNREGISTER_BROKER."""
        header = BrokerIdentityRequestHeader.parse(request.ext_fields)
        if self._tables.unregister(header.broker_addr):
            _log.info("broker %s %s unregistered", header.broker_name, header.broker_addr)
        return success_response(request)

    def query_data_version(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """322 QUERY_DATA_VERSION: has the broker's version changed? If not, asking counts as registering."""
        header = BrokerIdentityRequestHeader.parse(request.ext_fields)
        try:
            asked = parse_data_version(request.body)
        except RegistrationError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        known = self._tables.data_version(header.broker_addr)
        if known == asked:
            self._tables.refresh(header.broker_addr, self._clock_ms())
        ext = {"changed": "false" if known == asked else "true"}
        return success_response(request, ext, known.to_json() if known is not None else b"")

    def heartbeat(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """904 BROKER_HEARTBEAT."""
        header = BrokerHeartbeatRequestHeader.parse(request.ext_fields)
        self._tables.refresh(header.broker_addr, self._clock_ms())
        return success_response(request)

    def members(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """901 GET_BROKER_MEMBER_GROUP: one broker's nodes by id; no nodes for an unknown broker."""
        header = BrokerMemberGroupRequestHeader.parse(request.ext_fields)
        broker = self._tables.members(header.broker_name)
        addrs = dict(sorted(broker.broker_addrs.items())) if broker is not None else {}
        group = {
            "brokerAddrs": addrs,
            "brokerName": header.broker_name,
            "cluster": header.cluster_name,
        }
        body = orjson.dumps({"brokerMemberGroup": group}, option=orjson.OPT_NON_STR_KEYS)
        return success_response(request, body=body)

    def _read_registration(self, request: RemotingCommand) -> Registration:
        header = RegisterBrokerRequestHeader.parse(request.ext_fields)
        if header.body_crc32 and header.body_crc32 != zlib.crc32(request.body) & _CRC_MASK:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        try:
            version, topics = self._read_body(request, header)
        except RegistrationError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return Registration(
            header.cluster_name,
            header.broker_name,
            header.broker_id,
            header.broker_addr,
            header.ha_server_addr,
            header.heartbeat_timeout_ms or self._config.broker_expiry_ms,
            version,
            topics,
        )

    def _read_body(
        self, request: RemotingCommand, header: RegisterBrokerRequestHeader
    ) -> tuple[DataVersion, dict[str, QueueData]]:
        if header.compressed:
            return parse_compressed_body(
                request.body, header.broker_name, self._config.register_body_bytes_max
            )
        return parse_body(request.body, header.broker_name, request.version)

    def _log_result(self, registration: Registration, result: RegisterResult) -> None:
        node = (registration.broker_name, registration.broker_id, registration.addr)
        if result.is_ignored:
            _log.warning("broker %s id %d %s is of an earlier term than %s", *node, result.master_addr)
        elif result.is_new:
            _log.info("broker %s id %d %s registered", *node)
