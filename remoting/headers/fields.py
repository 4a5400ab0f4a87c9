"""How a typed header is read from and written to a command's ext fields (`CommandCustomHeader` of RocketMQ).
Pure.

A header class lists its fields once, with their types; the name on the wire is the camel-case form of the
field's name, unless the field names another. A field without a default is required. Fields we do not name are
ignored: clients of version 5 and their hooks add some of their own.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeVar, cast, dataclass_transform, get_args, get_type_hints

from remoting.errors import HeaderError

Int = Annotated[int, 32]
"""Java's int: a value beyond 32 bits is an error of the sender."""
Long = Annotated[int, 64]
"""Java's long."""

_NUMBER_TEXT_MAX = 20
_FITS_DIGITS = 9
"""So many digits fit into 32 bits."""
_TRUE_TEXTS = frozenset({"true", "1"})
_FALSE_TEXTS = frozenset({"false", "0"})


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    wire_name: str
    type: type
    bits: int
    default: Any


class RequestHeader:
    """Base of all typed headers. `parse` and `ext_fields` are each other's inverse."""

    __slots__ = ()
    _fields: tuple[_Field, ...] = ()

    @classmethod
    def parse(cls, ext: Mapping[str, str]) -> Self:
        """Read the header.

        Raises:
            HeaderError: names the first field that is missing or unreadable.
        """
        return cls.parse_named(ext)

    @classmethod
    def parse_named(cls, ext: Mapping[str, str]) -> Self:
        """`parse` by the names of the fields, for a class whose own `parse` knows another form too."""
        values: list[Any] = []
        for field in cls._fields:
            text = ext.get(field.wire_name)
            if text is None and field.default is not dataclasses.MISSING:
                values.append(field.default)
            elif field.type is str and text is not None:
                values.append(text)
            elif field.type is int and text and len(text) <= _FITS_DIGITS and text.isdecimal():
                values.append(int(text))
            else:
                values.append(_read(field, text))
        return cls(*values)

    def ext_fields(self) -> dict[str, str]:
        """The fields that have a value, as they go on the wire."""
        pairs = ((field.wire_name, getattr(self, field.name)) for field in self._fields)
        return {
            wire_name: value if isinstance(value, str) else _text(value)
            for wire_name, value in pairs
            if value is not None
        }


_T = TypeVar("_T", bound=RequestHeader)


def wire_name(name: str, **options: Any) -> Any:
    """A field whose name on the wire is not the camel-case form of its own."""
    return dataclasses.field(metadata={"wire_name": name}, **options)


@dataclass_transform(field_specifiers=(dataclasses.field, wire_name))
def request_header(cls: type[_T]) -> type[_T]:
    """Make a slotted dataclass of a header class and learn its fields."""
    made: Any = dataclasses.dataclass(slots=True)(cls)
    hints = get_type_hints(made, include_extras=True)
    made._fields = tuple(_describe(field, hints[field.name]) for field in dataclasses.fields(made))
    return cast("type[_T]", made)


def parse_bool(name: str, text: str) -> bool:
    """Read `true`, `false`, `1` or `0`, in any case: the C++ client sends the digits.

    Raises:
        HeaderError: any other text.
    """
    lowered = text.lower()
    if lowered in _TRUE_TEXTS:
        return True
    if lowered in _FALSE_TEXTS:
        return False
    raise HeaderError(name, f"is {text[:40]!r}, not a boolean")


def parse_int(name: str, text: str, bits: int) -> int:
    """Read a decimal number that fits into so many bits, sign included.

    Raises:
        HeaderError: it is none.
    """
    try:
        number = int(text[: _NUMBER_TEXT_MAX + 1])
    except ValueError:
        raise HeaderError(name, f"is {text[:40]!r}, not a number") from None
    if len(text) > _NUMBER_TEXT_MAX or not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise HeaderError(name, f"is {text[:40]!r}, beyond {bits} bits")
    return number


def _describe(field: "dataclasses.Field[Any]", hint: Any) -> _Field:
    alternatives = [hint] if getattr(hint, "__metadata__", None) else [*get_args(hint), hint]
    annotated = alternatives[0]
    bits = int(getattr(annotated, "__metadata__", (64,))[0])
    kind = get_args(annotated)[0] if hasattr(annotated, "__metadata__") else annotated
    name = field.metadata.get("wire_name") or _camel_case(field.name)
    return _Field(field.name, name, kind, bits, field.default)


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _read(field: _Field, text: str | None) -> Any:
    """A value that is not simply a text or a small number: those `parse_named` reads itself."""
    if text is None or (text == "" and field.default is not dataclasses.MISSING):
        if field.default is dataclasses.MISSING:
            raise HeaderError(field.wire_name, "is null")
        return field.default
    if field.type is int:
        return parse_int(field.wire_name, text, field.bits)
    assert field.type is bool
    return parse_bool(field.wire_name, text)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
