"""The bodies of registrations (`RegisterBrokerBody`, `TopicConfig`, `DataVersion`), plain and compressed.

A broker may have thousands of topics, and any client may send a body of any form. So bodies are read in steps
(`remoting.slices`): each reads a bounded number of rows, and sizes and counts are checked before they cost
anything.
"""

import re
import zlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from namesrv.route_info import COUNTER_MAX, STATE_VERSION_MAX, DataVersion
from remoting.route import QueueData
from remoting.slices import Steps

BODY_WITH_FILTERS_VERSION = 37
"""V3_0_11: since this version of the broker, the topics are one level deeper in the body."""
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of a body after it was decompressed: a plain one has no more, since no frame has more."""
TOPICS_MAX: Final = 100_000
"""Of one registration."""
ROW_BYTES_MAX: Final = 32 * 1024
"""Of one topic's configuration, or a data version."""
_BYTES_PER_STEP: Final = 8 * 1024
_ROWS_PER_STEP: Final = 100
_INFLATED_PER_STEP: Final = 128 * 1024
_INT32_MAX: Final = 2**31 - 1

_Topics = dict[str, QueueData]


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
    while (topic := json.next_key()) is not None:
        topics[topic] = _queue_data(broker_name, _load_object((yield from json.take_value())))
        if len(topics) > TOPICS_MAX:
            raise RegistrationError(f"more than {TOPICS_MAX} topics")


_begin = re.compile(rb"\s*+\{")
_key = re.compile(rb'\s*+(,?)\s*+(?:"((?:[^"\\]++|\\.)*+)"|(-?\d++))\s*+:\s*+', re.DOTALL)
_end = re.compile(rb"\s*+\}")
_scalar = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\w.+-]++', re.DOTALL)
_sign = re.compile(rb'[^"{}\[\]]*+(?:"(?:[^"\\]++|\\.)*+"|([{\[])|([}\]]))', re.DOTALL)
_flat_row = re.compile(rb'\{(?:[^{}"\[\]]++|"[^"\\]*+"|\{\})*+\}')
"""The ordinary form of a topic's row."""


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
    usual: tuple[Any, ...] = get("readQueueNums"), get("writeQueueNums"), get("perm"), get("topicSysFlag")
    if all(type(number) is int and 0 <= number <= _INT32_MAX for number in usual):
        return QueueData(broker_name, *usual)
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
