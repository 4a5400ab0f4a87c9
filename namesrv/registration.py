"""Reads a broker's registration (`RegisterBrokerBody`, `TopicConfig`, `DataVersion`).
Pure.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from remoting.fastjson import FastjsonError, loads
from remoting.route import QueueData

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
BODY_WITH_FILTERS_VERSION = 37
"""V3_0_11: since this version of the broker, the topics are one level deeper in the body."""


class RegistrationError(ValueError):
    """A registration's body cannot be read."""


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of a broker's topics. `state_version` is the term of its leader; counter and time follow
    it.
    """

    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0

    def to_json(self) -> bytes:
        """As sent on the wire."""
        return orjson.dumps(
            {
                "counter": self.counter,
                "stateVersion": self.state_version,
                "timestamp": self.timestamp_ms,
            }
        )


@dataclass(frozen=True, slots=True)
class Registration:
    """One broker node as it presents itself. `topics` are ignored unless `broker_id` is 0."""

    cluster: str
    broker_name: str
    broker_id: int
    addr: str
    ha_server_addr: str
    timeout_ms: int
    data_version: DataVersion
    topics: Mapping[str, QueueData]


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
    table = _object(wrapper.get("topicConfigTable") or {})
    return version, {topic: _queue_data(broker_name, _object(config)) for topic, config in table.items()}


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


def _queue_data(broker_name: str, config: Mapping[str, Any]) -> QueueData:
    get = config.get
    usual: tuple[Any, ...] = get("readQueueNums"), get("writeQueueNums"), get("perm"), get("topicSysFlag")
    # A registration has thousands of topics: the ordinary form is checked without a call for each number.
    if all(type(number) is int and 0 <= number <= _INT32_MAX for number in usual):
        return QueueData(broker_name, *usual)
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
