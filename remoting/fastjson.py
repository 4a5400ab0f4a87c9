"""The dialect of JSON that fastjson 1.x writes and Java clients read. Pure.

Two things in it are not JSON: map keys that are integers are not quoted (`{0:"10.0.0.1:10911"}`), and map
keys that are objects are written as objects (`{{"brokerName":"b","queueId":0,"topic":"T"}:123}`).
"""

import re
from collections.abc import Generator, Iterable, Mapping
from typing import Any, Final

import orjson

DEPTH_MAX = 64

_token = re.compile(r'\s*([{}\[\]:,]|"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null)', re.DOTALL)
_rest_is_blank = re.compile(r"\s*\Z").match
_keys = re.compile(
    r'"(?:[^"\\]++|\\.)*+"?'  # a string is skipped completely, also one without an end
    r'|(\{(?:[^{}"]++|"(?:[^"\\]++|\\.)*+")*+\}(?=\s*+:))'  # an object that is a key
    r"|(?<![\w.+-])(0|-?[1-9]\d*+)(?=\s*+:)",  # a number that is one
    re.DOTALL,
)
"""What to rewrite in the dialect. It tries nothing twice, so it runs in linear time on any text."""
_REWRITTEN_FROM_CHARS = 4096
"""Shorter texts are read token by token as fast."""
_READ_BY_TOKENS_CHARS_MAX: Final = 16 * 1024
"""Longer texts that rewriting does not mend are refused: a token costs a microsecond."""
_REWRITING_US_MAX: Final = 12_000
"""What the dialect in a request may cost. One megabyte of it costs 30 to 300 ms."""

_ITEMS_PER_STEP: Final = 32
REQUEST_BYTES_MAX: Final = 2 * 1024 * 1024
REQUEST_VALUES_MAX: Final = 65_536
"""Of a request's JSON body. Each value becomes an object before any handler can refuse it: 5 million empty
lists in a frame of 15 MiB take a second of CPU time.
"""


class FastjsonError(ValueError):
    """The text is neither JSON nor fastjson's dialect of it."""


def loads(data: bytes | str) -> Any:
    """Read JSON or the dialect. Integer keys become their text, object keys their compact sorted JSON text.

    Raises:
        FastjsonError: the text is unreadable, or nested deeper than `DEPTH_MAX` where it is not plain JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _loads_dialect(data)


def _loads_dialect(data: bytes | str) -> Any:
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError as error:
        raise FastjsonError(f"not UTF-8: {error}") from None
    if len(text) >= _REWRITTEN_FROM_CHARS:
        try:
            return orjson.loads(_keys.sub(_as_text, text))
        except orjson.JSONDecodeError:
            pass
    if len(text) > _READ_BY_TOKENS_CHARS_MAX:
        raise FastjsonError(f"unreadable: neither JSON nor fastjson's form of it in {len(text)} characters")
    return _Reader(text).read_all()


def loads_request(body: bytes) -> Any:
    """`loads` for a body from outside, whose size and number of values are bounded before it is read.

    Raises:
        FastjsonError: it is too large, has too many values, or is unreadable.
    """
    if len(body) > REQUEST_BYTES_MAX:
        raise FastjsonError(f"a JSON body of {len(body)} bytes; {REQUEST_BYTES_MAX} are possible")
    # At most one value begins after each of these signs, so this is an upper bound, and costs four scans.
    values = 1 + sum(map(body.count, (b",", b":", b"[", b"{")))
    if values > REQUEST_VALUES_MAX:
        raise FastjsonError(f"a JSON body of up to {values} values; {REQUEST_VALUES_MAX} are possible")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        _check_rewriting(body)
        return _loads_dialect(body)


def _check_rewriting(body: bytes) -> None:
    """By how many characters and possible keys it has. Raises FastjsonError."""
    signs = sum(map(body.count, (b":", b"{", b'"')))
    if len(body) // 25 + 3 * signs // 10 > _REWRITING_US_MAX:
        raise FastjsonError(f"{len(body)} bytes that are not JSON: too much for fastjson's form of it")


def _as_text(found: re.Match[str]) -> str:
    """A key as JSON has it. Raises orjson.JSONDecodeError."""
    bean, number = found.groups()
    if bean is not None:
        return orjson.dumps(_key_text(orjson.loads(bean))).decode()
    return found[0] if number is None else f'"{number}"'


def object_key_map(items: Iterable[tuple[Mapping[str, Any], Any]]) -> orjson.Fragment:
    """A Java `Map<Bean, …>` as `orjson.dumps` writes it inside a larger value; Java has no other form for
    it.
    """
    pairs = (_dump_key(key) + b":" + orjson.dumps(value) for key, value in items)
    return orjson.Fragment(b"{" + b",".join(pairs) + b"}")


def object_key_map_in_steps(
    items: Iterable[tuple[Mapping[str, Any], Any]],
) -> Generator[None, None, orjson.Fragment]:
    """`object_key_map` of many items, as steps of long work (remoting/slices.py)."""
    return (yield from _joined(b"{}", (_dump_key(key) + b":" + orjson.dumps(value) for key, value in items)))


def object_in_steps(items: Iterable[tuple[str, Any]]) -> Generator[None, None, orjson.Fragment]:
    """A JSON object of many members, as steps of long work. Integer keys in a member are its texts."""
    option = orjson.OPT_NON_STR_KEYS
    members = (orjson.dumps(key) + b":" + orjson.dumps(value, option=option) for key, value in items)
    return (yield from _joined(b"{}", members))


def list_in_steps(items: Iterable[Any]) -> Generator[None, None, orjson.Fragment]:
    """A JSON list of many items, as steps of long work."""
    return (yield from _joined(b"[]", map(orjson.dumps, items)))


def _joined(around: bytes, parts: Iterable[bytes]) -> Generator[None, None, orjson.Fragment]:
    made = []
    for number, part in enumerate(parts, start=1):
        made.append(part)
        if not number % _ITEMS_PER_STEP:
            yield
    return orjson.Fragment(around[:1] + b",".join(made) + around[1:])


def _dump_key(key: Mapping[str, Any]) -> bytes:
    return orjson.dumps(dict(key), option=orjson.OPT_SORT_KEYS)


class _Reader:
    """A recursive descent over tokens, with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0
        self._next = ""
        self._advance()

    def read_all(self) -> Any:
        value = self._value()
        if self._next:
            raise self._error()
        return value

    def _advance(self) -> str:
        """Return the current token and read the next one; the empty token is the end."""
        token = self._next
        match = _token.match(self._text, self._position)
        if match is not None:
            self._next, self._position = match.group(1), match.end()
        elif _rest_is_blank(self._text, self._position):
            self._next, self._position = "", len(self._text)
        else:
            raise self._error()
        return token

    def _error(self) -> FastjsonError:
        return FastjsonError(f"unreadable at character {self._position}: {self._next[:20]!r}")

    def _expect(self, token: str) -> None:
        if self._advance() != token:
            raise self._error()

    def _value(self) -> Any:
        if self._next == "{":
            return self._nested(self._object)
        if self._next == "[":
            return self._nested(self._array)
        return self._scalar()

    def _nested(self, read: Any) -> Any:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise FastjsonError(f"nested deeper than {DEPTH_MAX}")
        value = read()
        self._depth -= 1
        return value

    def _object(self) -> dict[str, Any]:
        members: dict[str, Any] = {}
        self._expect("{")
        while self._next != "}":
            key = self._value()
            self._expect(":")
            members[key if isinstance(key, str) else _key_text(key)] = self._value()
            if self._next != "}":
                self._expect(",")
        self._advance()
        return members

    def _array(self) -> list[Any]:
        items: list[Any] = []
        self._expect("[")
        while self._next != "]":
            items.append(self._value())
            if self._next != "]":
                self._expect(",")
        self._advance()
        return items

    def _scalar(self) -> Any:
        token = self._advance()
        try:
            return orjson.loads(token)
        except orjson.JSONDecodeError:
            raise self._error() from None


def _key_text(key: Any) -> str:
    return orjson.dumps(key, option=orjson.OPT_SORT_KEYS).decode()
