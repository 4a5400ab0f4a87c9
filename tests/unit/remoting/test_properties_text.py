"""Lines of Java's properties, and what ends one."""

import pytest

from remoting.properties_text import (
    PROPERTIES_BYTES_MAX,
    PropertiesTextError,
    format_properties_text,
    parse_properties_text,
)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_where_java_ends_them(end: str) -> None:
    body = end.join(("a=1", "# b=2", "", "c = 3=4")).encode()
    assert parse_properties_text(body) == {"a": "1", "c": "3=4"}


@pytest.mark.parametrize("sign", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_no_other_sign_makes_a_key_of_a_part_of_a_value(sign: str) -> None:
    values = {"known": f"one{sign}fileReservedTime=1"}
    assert parse_properties_text(format_properties_text(values)) == values


@pytest.mark.parametrize("body", [b"no key", b"=1", b"a=\xff"])
def test_what_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(PropertiesTextError):
        parse_properties_text(body)


def test_too_many_bytes_are_refused_before_they_are_read() -> None:
    with pytest.raises(PropertiesTextError, match="are possible"):
        parse_properties_text(b"#" * (PROPERTIES_BYTES_MAX + 1))
