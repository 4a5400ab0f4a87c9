"""Grows a valid request to the size limits of a frame, part by part: each field of its header, each text and
list of its JSON body, the body as a whole.
"""

import gzip
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from remoting.fastjson import REQUEST_BYTES_MAX, REQUEST_VALUES_MAX
from remoting.limits import DEFAULT_LIMITS
from tests.fuzz.held.samples import SALT, Sample, sub_message

FIELD_CHARS_MAX: Final = DEFAULT_LIMITS.header_bytes_max - 8 * 1024
BODY_BYTES_MAX: Final = DEFAULT_LIMITS.frame_bytes_max - 8 * 1024
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
NUMBERS: Final = ("0", "-1", str(2**31 - 1), str(2**63 - 1), "9" * 4_000, "9" * 100_000)
UNITS: Final = (
    *("x", "é", "0", "-", "(", " ", "%", "a,", "a;", "a b ", "a||", "a\x01b\x02", "\x01\x02", "+a=b,", "-a,"),
    *("NOT ", "a>1 OR ", "- -", "a IN ('b') AND ", '{"a":', "[", '"\\', "k=v\n", "10.0.0.1,", "a=PUB,"),
)
"""What a text is filled with."""
_TEXT_CHARS: Final = (255, 4_000, 32_000, 65_500, FIELD_CHARS_MAX)


def text_of(unit: str, chars: int) -> str:
    """So much of it, and different each time."""
    return (SALT + unit * (chars // len(unit) + 1))[:chars]


def grown(sample: Sample, draw: random.Random) -> Iterator[Sample]:
    """Without end: one change at a time, in an order drawn."""
    kinds: list[Callable[[Sample, random.Random], Sample | None]] = [_many_fields, _any_body]
    kinds += [_field] * (3 if sample.ext else 0) + [_both_ends] * (1 if sample.ext else 0)
    kinds += [_json_body] * (4 if sample.body[:1] in (b"{", b"[") else 0)
    while True:
        changed = draw.choice(kinds)(sample, draw)
        if changed is not None:
            yield changed


def _field(sample: Sample, draw: random.Random) -> Sample:
    name = draw.choice(sorted(sample.ext))
    if sample.ext[name].lstrip("-").isdecimal() and draw.random() < 0.7:
        value, how = draw.choice(NUMBERS), "a number"
    else:
        unit, chars = draw.choice(UNITS), draw.choice(_TEXT_CHARS)
        value, how = text_of(unit, chars), f"{chars} of {unit!r}"
        if draw.random() < 0.3:
            value = sample.ext[name] + value[: -len(sample.ext[name]) or None]
    return replace(sample, ext={**sample.ext, name: value}, label=f"{sample.label}, {name} of {how}")


def _both_ends(sample: Sample, draw: random.Random) -> Sample:
    """All numbers at their largest or smallest."""
    ends = {
        name: draw.choice(NUMBERS[:4]) for name, text in sample.ext.items() if text.lstrip("-").isdecimal()
    }
    return replace(sample, ext={**sample.ext, **ends}, label=f"{sample.label}, {ends}")


def _many_fields(sample: Sample, draw: random.Random) -> Sample:
    """As many ext fields as fit into a header."""
    count = draw.choice((1_000, 20_000, 40_000, 90_000))
    more = {f"{at:x}": "" if count > 40_000 else SALT for at in range(count)}
    return replace(sample, ext={**sample.ext, **more}, label=f"{sample.label}, {count} fields more")


def _any_body(sample: Sample, draw: random.Random) -> Sample:
    name = draw.choice(sorted(_BODIES))
    return replace(sample, body=_BODIES[name](), label=f"{sample.label}, a body of {name}")


def _values(item: str, around: str = "[]") -> bytes:
    count = min(
        REQUEST_VALUES_MAX // (1 + sum(map(item.count, ",:[{"))) - 2, REQUEST_BYTES_MAX // (len(item) + 1) - 2
    )
    return (around[0] + ",".join([item] * count) + around[1:]).encode()


_OTHER_VALUES: Final[tuple[Any, ...]] = (0, -1, 2**31 - 1, 2**63 - 1, 10.0**300, True, None, "x", [], {})
_BODIES: Final[Mapping[str, Callable[[], bytes]]] = {
    "nothing": lambda: b"",
    "zeros": lambda: bytes(BODY_BYTES_MAX),
    "ones": lambda: b"\xff" * MESSAGE_BYTES_MAX,
    "text": lambda: b"a" * REQUEST_BYTES_MAX,
    "lists in lists": lambda: b"[" * (REQUEST_VALUES_MAX - 10),
    "empty lists": lambda: _values("[]"),
    "numbers": lambda: _values("1"),
    "huge numbers": lambda: _values("9" * 60),
    "one number": lambda: b"9" * REQUEST_BYTES_MAX,
    "small objects": lambda: _values('{"topic":"T"}'),
    "keys": lambda: ("{" + ",".join(f'"k{at}":1' for at in range(30_000)) + "}").encode(),
    "numbers as keys": lambda: ("{" + ",".join(f"{at}:1" for at in range(30_000)) + "}").encode(),
    "objects as keys": lambda: ("{" + ",".join(f'{{"a":{at}}}:1' for at in range(16_000)) + "}").encode(),
    "an open text": lambda: b'{"a":"' + b'\\"' * (REQUEST_BYTES_MAX // 2 - 10),
    "open objects": lambda: b'{"a":' * 13_000,
    "blanks": lambda: b" " * REQUEST_BYTES_MAX,
    "lines": lambda: b"k=v\n" * 250_000,
    "other lines": lambda: b"".join(b"k%d=v\n" % at for at in range(100_000)),
    "small messages": lambda: sub_message() * (MESSAGE_BYTES_MAX // len(sub_message())),
    "messages with properties": lambda: sub_message("a\x01b\x02" * 8_000) * 120,
    "as many messages as an append takes": lambda: sub_message() * 7_999,
    "as many messages with properties": lambda: sub_message("a\x01b\x02" * 80) * 7_999,
    "a zlib bomb": lambda: zlib.compress(bytes(BODY_BYTES_MAX * 4)),
    "a gzip bomb": lambda: gzip.compress(bytes(BODY_BYTES_MAX)),
}


def _json_body(sample: Sample, draw: random.Random) -> Sample | None:
    """One list, table or text of the body grown."""
    data = orjson.loads(sample.body)
    places = list(_places(data, ()))
    path, value = draw.choice(places)
    new: Any
    if isinstance(value, list) and value:
        new, how = _longer(draw.choice(value), draw), "longer"
    elif isinstance(value, dict) and value:
        new, how = _wider(value, draw), "wider"
    elif isinstance(value, str):
        unit, chars = draw.choice(UNITS), draw.choice((*_TEXT_CHARS, REQUEST_BYTES_MAX // 2))
        new, how = text_of(unit, chars), f"{chars} of {unit!r}"
    else:
        new, how = draw.choice(_OTHER_VALUES), "other"
    body = orjson.dumps(_replaced(data, path, new))
    return replace(sample, body=body, label=f"{sample.label}, body{list(path)} {how}")


def _longer(item: Any, draw: random.Random) -> list[Any]:
    """A list of as many as a limit on the body's values allows, or fewer; the items differ if they can."""
    each = 1 + sum(map(orjson.dumps(item).count, (b",", b":", b"[", b"{")))
    limit = min(REQUEST_VALUES_MAX // each, REQUEST_BYTES_MAX // (len(orjson.dumps(item)) + 8)) - 64
    count = max(1, draw.choice((limit, limit // 4, 4_096, 1_500, 1_000)))
    count = min(count, max(limit, 1))
    if draw.random() < 0.3:
        return [item] * count
    return [_numbered(item, at) for at in range(count)]


def _numbered(item: Any, at: int) -> Any:
    if isinstance(item, str):
        return f"{item}{at}"
    if isinstance(item, dict):
        return {key: _numbered(value, at) for key, value in item.items()}
    if isinstance(item, int) and not isinstance(item, bool):
        return at
    return item


def _wider(table: Mapping[str, Any], draw: random.Random) -> dict[str, Any]:
    item = draw.choice(list(table.values()))
    count = len(_longer(item, draw)) // 2
    return {**table, **{f"k{at}": item for at in range(count)}}


def _places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    yield path, value
    items = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    )
    for key, inner in items:
        yield from _places(inner, (*path, key))


def _replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    if isinstance(value, dict):
        return {**value, path[0]: _replaced(value[path[0]], path[1:], new)}
    return [_replaced(each, path[1:], new) if at == path[0] else each for at, each in enumerate(value)]
