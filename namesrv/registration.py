"""Requests of brokers: register, unregister, heartbeat, data version, members; and the bodies of
registrations (`RegisterBrokerBody`, `TopicConfig`, `DataVersion`), plain and compressed.

A broker may have thousands of topics, and any client may send a body of any form. So bodies are read in steps
(`remoting.slices`): each reads a bounded number of rows, and sizes and counts are checked before they cost
anything.
"""

import logging
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from namesrv.config import ORDER_TOPIC_NAMESPACE, KvConfig, NameServerConfig, NameServerSwitches
from namesrv.rights import BrokerRights
from namesrv.route_info import (
    COUNTER_MAX,
    STATE_VERSION_MAX,
    DataVersion,
    RefusedError,
    RegisterResult,
    Registrant,
    Registration,
    RouteInfoManager,
    TablesFullError,
)
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.headers.namesrv import (
    BrokerHeartbeatRequestHeader,
    BrokerIdentityRequestHeader,
    BrokerMemberGroupRequestHeader,
    RegisterBrokerRequestHeader,
)
from remoting.route import QueueData
from remoting.router import Router
from remoting.slices import Steps

_CRC_MASK = 0x7FFFFFFF
BODY_WITH_FILTERS_VERSION = 37
"""V3_0_11: since this version of the broker, the topics are one level deeper in the body."""
TOPICS_MAX: Final = 100_000
"""Of one registration."""
ROW_BYTES_MAX: Final = 32 * 1024
"""Of one topic's configuration, or a data version."""
_BYTES_PER_STEP: Final = 8 * 1024
_ROWS_PER_STEP: Final = 100
_INFLATED_PER_STEP: Final = 128 * 1024
_INT32_MAX: Final = 2**31 - 1

_Topics = dict[str, QueueData]

_log = logging.getLogger(__name__)


class RegistrationError(ValueError):
    """A registration's body cannot be read."""


def parse_data_version(body: bytes) -> DataVersion:
    """Read the body of a 322.

    Raises:
        RegistrationError: it is no data version.
    """
    return _data_version(_load_object(body))


def read_body(body: bytes, broker_name: str, broker_version: int) -> Steps[tuple[DataVersion, _Topics]]:
    """Read the plain form of a 103's body. An empty body is a broker without topics.

    Raises:
        RegistrationError: it cannot be read, or is beyond a bound.
    """
    found: tuple[DataVersion, _Topics] = DataVersion(), {}
    if not body:
        return found
    if len(body) <= _BYTES_PER_STEP and broker_version >= BODY_WITH_FILTERS_VERSION:
        small = _read_small_body(body, broker_name)
        if small is not None:
            return small
    json = _Json(body)
    if broker_version < BODY_WITH_FILTERS_VERSION:
        found = yield from _read_wrapper(json, broker_name)
    else:
        json.begin_object()
        while (key := json.next_key()) is not None:
            if key == "topicConfigSerializeWrapper" and not json.is_null():
                found = yield from _read_wrapper(json, broker_name)
            else:
                yield from json.skip_value()
    json.check_end()
    return found


def _read_small_body(body: bytes, broker_name: str) -> tuple[DataVersion, _Topics] | None:
    """The ordinary form of a body that one step may read, parsed at once; None for every other form, with or
    without a mistake: those are for the walk.
    """
    try:
        wrapper = orjson.loads(body)["topicConfigSerializeWrapper"]
        rows: dict[str, Mapping[str, Any]] = wrapper["topicConfigTable"]
        topics = {name: _queue_data(broker_name, row) for name, row in rows.items()}
        return _data_version(wrapper["dataVersion"]), topics
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _read_wrapper(json: "_Json", broker_name: str) -> Steps[tuple[DataVersion, _Topics]]:
    """`TopicConfigSerializeWrapper`."""
    version, topics = DataVersion(), _Topics()
    json.begin_object()
    while (key := json.next_key()) is not None:
        if json.is_null() or key not in ("dataVersion", "topicConfigTable"):
            yield from json.skip_value()
        elif key == "dataVersion":
            version = _data_version(_load_object((yield from json.take_value())))
        else:
            yield from _read_topics(json, broker_name, topics)
    return version, topics


def _read_topics(json: "_Json", broker_name: str, topics: _Topics) -> Steps[None]:
    """The rows of `topicConfigTable`."""
    json.begin_object()
    topic: str | None = ""
    while topic is not None:
        for name, row in json.take_plain_rows():
            topics[name] = _queue_data(broker_name, _load_object(row))
        yield
        topic = json.next_key()
        if topic is not None:
            topics[topic] = _queue_data(broker_name, _load_object((yield from json.take_value())))
        if len(topics) > TOPICS_MAX:
            raise RegistrationError(f"more than {TOPICS_MAX} topics")


_begin = re.compile(rb"\s*+\{")
_key = re.compile(rb'\s*+(,?)\s*+(?:"((?:[^"\\]++|\\.)*+)"|(-?\d++))\s*+:\s*+', re.DOTALL)
_end = re.compile(rb"\s*+\}")
_scalar = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\w.+-]++', re.DOTALL)
_sign = re.compile(rb'[^"{}\[\]]*+(?:"(?:[^"\\]++|\\.)*+"|([{\[])|([}\]]))', re.DOTALL)
_flat_row = re.compile(rb'\{(?:[^{}"\[\]]++|"[^"\\]*+"|\{\})*+\}')
_plain_row = re.compile(rb'(,?)"([\w%|-]++)":(\{(?:[^{}"\[\]]++|"[^"\\]*+"|\{\})*+\})', re.ASCII)
"""The ordinary form of a topic's row, without and with its name."""


class _Json:
    """Walks over the members of objects. A body is cut into them without being read, so that no object is
    made of a part before its size is known. Keys may be numbers, as fastjson writes them.

    No search goes further than ROW_BYTES_MAX, and `take_value` and `skip_value` yield when they have read
    _BYTES_PER_STEP since they last did.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0
        self._rested_at = 0
        self._is_first = True

    def begin_object(self) -> None:
        """Go behind the brace of an object."""
        self._at = self._match(_begin).end()
        self._is_first = True

    def next_key(self) -> str | None:
        """The next member's key, and go to its value; None at the object's end, and go behind it."""
        end = _end.match(self._body, self._at, self._at + ROW_BYTES_MAX)
        if end is not None:
            self._at = end.end()
            self._is_first = False
            return None
        key = self._match(_key)
        if bool(key[1]) == self._is_first:
            raise self._unreadable()
        self._is_first = False
        self._at = key.end()
        return _text(key[2] if key[2] is not None else key[3])

    def take_plain_rows(self) -> list[tuple[str, bytes]]:
        """Members in the ordinary form of topics, with the texts of their values; as many as one step may
        read, perhaps none.
        """
        rows = []
        at = rested_at = self._at
        while at - rested_at < _BYTES_PER_STEP:
            row = _plain_row.match(self._body, at, at + ROW_BYTES_MAX)
            if row is None or bool(row[1]) == self._is_first:
                break
            rows.append((row[2].decode(), row[3]))
            self._is_first = False
            at = row.end()
        self._at = self._rested_at = at
        return rows

    def is_null(self) -> bool:
        return self._body.startswith(b"null", self._at)

    def take_value(self) -> Steps[bytes]:
        """Go behind the value; return its text."""
        start = self._at
        yield from self.skip_value()
        return self._body[start : self._at]

    def skip_value(self) -> Steps[None]:
        """Go behind the value."""
        ends_max = self._at + ROW_BYTES_MAX
        row = _flat_row.match(self._body, self._at, ends_max) or _scalar.match(self._body, self._at, ends_max)
        if row is not None:
            self._at = row.end()
        else:
            yield from self._skip_nested()
        if self._is_step_over():
            yield

    def check_end(self) -> None:
        """Raises RegistrationError if the body goes on."""
        rest = self._body[self._at :]
        if len(rest) > ROW_BYTES_MAX or rest.strip():
            raise self._unreadable()

    def _skip_nested(self) -> Steps[None]:
        depth = 0
        while True:
            sign = self._match(_sign)
            self._at = sign.end()
            depth += (sign[1] is not None) - (sign[2] is not None)
            if depth <= 0:
                return
            if self._is_step_over():
                yield

    def _is_step_over(self) -> bool:
        if self._at - self._rested_at < _BYTES_PER_STEP:
            return False
        self._rested_at = self._at
        return True

    def _match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        found = pattern.match(self._body, self._at, self._at + ROW_BYTES_MAX)
        if found is None:
            raise self._unreadable()
        return found

    def _unreadable(self) -> RegistrationError:
        part = self._body[self._at : self._at + 40]
        return RegistrationError(f"body is not JSON with topics: {part!r} at {self._at}")


def _text(quoted: bytes) -> str:
    try:
        return str(orjson.loads(b'"%s"' % quoted)) if b"\\" in quoted else quoted.decode()
    except ValueError:
        raise RegistrationError(f"name {quoted[:40]!r} is unreadable") from None


def read_compressed_body(body: bytes, broker_name: str, bytes_max: int) -> Steps[tuple[DataVersion, _Topics]]:
    """Read the compressed form of a 103's body: lengths and texts under zlib.

    What follows the topics (filter servers, mappings of static topics) is of no use to us.

    Raises:
        RegistrationError: it cannot be read, or holds more than `bytes_max`.
    """
    reader = _Reader((yield from _inflate(body, bytes_max)))
    version = parse_data_version(reader.text())
    topics = _Topics()
    count = reader.number()
    if count > TOPICS_MAX:
        raise RegistrationError(f"more than {TOPICS_MAX} topics")
    for number in range(count):
        topic, queue_data = _parse_topic_text(reader.text(), broker_name)
        topics[topic] = queue_data
        if not number % _ROWS_PER_STEP:
            yield
    return version, topics


def _inflate(body: bytes, bytes_max: int) -> Steps[bytes]:
    stream = zlib.decompressobj()
    data = bytearray()
    while not stream.eof:
        try:
            part = stream.decompress(body, _INFLATED_PER_STEP)
        except zlib.error as error:
            raise RegistrationError(f"compressed body: {error}") from None
        body = stream.unconsumed_tail
        data += part
        if len(data) > bytes_max or not (part or body or stream.eof):
            raise RegistrationError(f"compressed body is cut or holds more than {bytes_max} bytes")
        yield
    return bytes(data)


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
        if not 0 <= size <= ROW_BYTES_MAX or end > len(self._data):
            raise RegistrationError(f"compressed body: {size} bytes asked at {self._position}")
        part = self._data[self._position : end]
        self._position = end
        return part


def _parse_topic_text(text: bytes, broker_name: str) -> tuple[str, QueueData]:
    """`name readQueues writeQueues perm filterType[ attributes]`, parted by single spaces."""
    try:
        name, read_nums, write_nums, perm = text.decode().split(" ", 4)[:4]
        fields = [_checked(number, int(number)) for number in (read_nums, write_nums, perm)]
        return name, QueueData(broker_name, *fields)
    except ValueError:
        raise RegistrationError(f"topic is {text[:80]!r}") from None


def _queue_data(broker_name: str, row: Mapping[str, Any]) -> QueueData:
    """A topic's queues. A registration has thousands: the ordinary form is read without a call for each
    number.
    """
    get = row.get
    read, write, perm, flag = get("readQueueNums"), get("writeQueueNums"), get("perm"), get("topicSysFlag")
    are_numbers = type(read) is type(write) is type(perm) is type(flag) is int
    if are_numbers and 0 <= read | write | perm | flag <= _INT32_MAX:  # type: ignore[operator]
        return QueueData(broker_name, read, write, perm, flag)  # type: ignore[arg-type]
    return QueueData(
        broker_name,
        _number(row, "readQueueNums", 16),
        _number(row, "writeQueueNums", 16),
        _number(row, "perm", 6),
        _number(row, "topicSysFlag", 0),
    )


def _data_version(value: Mapping[str, Any]) -> DataVersion:
    return DataVersion(
        _number(value, "stateVersion", 0, STATE_VERSION_MAX, least=0),
        _number(value, "timestamp", 0, COUNTER_MAX, least=0),
        _number(value, "counter", 0, COUNTER_MAX, least=0),
    )


def _number(
    value: Mapping[str, Any], name: str, default: int, most: int = _INT32_MAX, least: int = -_INT32_MAX - 1
) -> int:
    found = value.get(name)
    try:
        return default if found is None else _checked(name, int(found), most, least)
    except (TypeError, ValueError, OverflowError):
        raise RegistrationError(f"{name} is {str(found)[:40]!r}, not a number up to {most}") from None


def _checked(name: str, number: int, most: int = _INT32_MAX, least: int = -_INT32_MAX - 1) -> int:
    """A number that no broker has would be one that no answer can hold, or no later version exceed."""
    if not least <= number <= most:
        raise RegistrationError(f"{name} is not between {least} and {most}")
    return number


def _load_object(text: bytes) -> Mapping[str, Any]:
    if len(text) > ROW_BYTES_MAX:
        raise RegistrationError(f"a row of {len(text)} bytes; {ROW_BYTES_MAX} are possible")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RegistrationError(f"body is not JSON: {error}") from None
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
        rights: BrokerRights | None,
        clock_ms: Callable[[], int],
    ) -> None:
        self._tables = tables
        self._kv_config = kv_config
        self._config = config
        self._switches = switches
        self._rights = rights
        self._clock_ms = clock_ms

    def register(self, router: Router) -> None:
        """Enter the handlers."""
        router.register(RequestCode.REGISTER_BROKER, self.register_broker)
        router.register(RequestCode.UNREGISTER_BROKER, self.unregister_broker)
        router.register(RequestCode.QUERY_DATA_VERSION, self.query_data_version)
        router.register(RequestCode.BROKER_HEARTBEAT, self.heartbeat)
        router.register(RequestCode.GET_BROKER_MEMBER_GROUP, self.members)

    def register_broker(
        self, request: RemotingCommand, connection: Connection
    ) -> Steps[RemotingCommand | None]:
        """103 REGISTER_BROKER: add the node; answer with its master and the ordered topics."""
        header = RegisterBrokerRequestHeader.parse(request.ext_fields)
        registrant = self._registrant(header.broker_name, request, connection)
        registration = yield from self._read_registration(request, header)
        # The node would stay without a connection whose end removes it.
        if not connection.is_open:
            return None
        try:
            result = yield from self._tables.registering(registration, self._clock_ms(), registrant)
        except TablesFullError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        except RefusedError as error:
            connection.warn_once(f"registration {registration.addr}", str(error))
            raise RequestError(ResponseCode.NO_PERMISSION, str(error)) from None
        self._log_result(registration, result)
        ext: dict[str, str] = {}
        if result.ha_server_addr is not None:
            ext["haServerAddr"] = result.ha_server_addr
        if result.master_addr is not None:
            ext["masterAddr"] = result.master_addr
        body = b""
        if self._switches.return_order_topic_config_to_broker:
            body = orjson.dumps({"table": self._kv_config.table.get(ORDER_TOPIC_NAMESPACE, {})})
        return success_response(request, ext, body)

    def unregister_broker(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """104 UNREGISTER_BROKER."""
        header = BrokerIdentityRequestHeader.parse(request.ext_fields)
        registrant = self._registrant(header.broker_name, request, connection)
        try:
            is_known = self._tables.unregister(header.broker_name, header.broker_addr, registrant)
        except RefusedError as error:
            raise RequestError(ResponseCode.NO_PERMISSION, str(error)) from None
        if is_known:
            _log.info("broker %s %s unregistered", header.broker_name, header.broker_addr)
        return success_response(request)

    def query_data_version(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """322 QUERY_DATA_VERSION: has the broker's version changed? If not, asking counts as registering."""
        header = BrokerIdentityRequestHeader.parse(request.ext_fields)
        registrant = self._registrant(header.broker_name, request, connection)
        try:
            asked = parse_data_version(request.body)
        except RegistrationError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        known = self._tables.data_version(header.broker_addr)
        if known == asked:
            self._tables.refresh(header.broker_name, header.broker_addr, self._clock_ms(), registrant)
        ext = {"changed": "false" if known == asked else "true"}
        return success_response(request, ext, known.to_json() if known is not None else b"")

    def heartbeat(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """904 BROKER_HEARTBEAT."""
        header = BrokerHeartbeatRequestHeader.parse(request.ext_fields)
        registrant = self._registrant(header.broker_name, request, connection)
        self._tables.refresh(header.broker_name, header.broker_addr, self._clock_ms(), registrant)
        return success_response(request)

    def _registrant(self, broker_name: str, request: RemotingCommand, connection: Connection) -> Registrant:
        """Who sent a request that concerns a node of this name. Raises RequestError: the sender may not."""
        if self._rights is None:
            return Registrant(connection.connection_id, connection.remote_host)
        return self._rights.registrant(broker_name, request, connection)

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

    def _read_registration(
        self, request: RemotingCommand, header: RegisterBrokerRequestHeader
    ) -> Steps[Registration]:
        if header.body_crc32 and header.body_crc32 != zlib.crc32(request.body) & _CRC_MASK:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        try:
            version, topics = yield from self._read_body(request, header)
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
    ) -> Steps[tuple[DataVersion, dict[str, QueueData]]]:
        if header.compressed:
            return read_compressed_body(
                request.body, header.broker_name, self._config.register_body_bytes_max
            )
        return read_body(request.body, header.broker_name, request.version)

    def _log_result(self, registration: Registration, result: RegisterResult) -> None:
        node = (registration.broker_name, registration.broker_id, registration.addr)
        if result.is_ignored:
            _log.warning("broker %s id %d %s is of an earlier term than %s", *node, result.master_addr)
        elif result.is_new:
            _log.info("broker %s id %d %s registered", *node)
