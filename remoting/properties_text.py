"""Java's Properties as RocketMQ's tools send and show them: a line `key=value` for each. Pure."""

from collections.abc import Mapping
from typing import Final

PROPERTIES_BYTES_MAX: Final = 128 * 1024


class PropertiesTextError(ValueError):
    """The text is no properties text; the message names the reason."""


def parse_properties_text(body: bytes) -> dict[str, str]:
    """Read it; empty lines and those that begin with # mean nothing. Raises PropertiesTextError."""
    if len(body) > PROPERTIES_BYTES_MAX:
        raise PropertiesTextError(f"properties of {len(body)} bytes; {PROPERTIES_BYTES_MAX} are possible")
    try:
        # Bytes end lines where Java does; str.splitlines also ends them at U+0085, U+2028 and others of text.
        lines = [line.decode() for line in body.splitlines()]
    except UnicodeDecodeError as error:
        raise PropertiesTextError(f"properties are not UTF-8: {error}") from None
    values = {}
    for line in map(str.strip, lines):
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise PropertiesTextError(f"{line[:64]!r} is not of the form key=value")
        values[key.strip()] = value.strip()
    return values


def format_properties_text(values: Mapping[str, str]) -> bytes:
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()
