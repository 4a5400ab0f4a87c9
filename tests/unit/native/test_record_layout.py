"""The one table of a record's fields, and what is made of it."""

from __future__ import annotations

import struct

import pytest

from remoting.record_layout import (
    BODY_AT,
    C_HEADER,
    FIELDS,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    c_header,
    fields_struct,
    head_struct,
)
from rocketmq_spark.records.fields import RECORD_HEAD


def test_fields_follow_each_other_and_have_the_widths_of_their_codes() -> None:
    at = 0
    for field in FIELDS:
        assert (field.offset, struct.calcsize(f">{field.code}")) == (at, field.width), field
        at += field.width
    assert at == BODY_AT == head_struct().size


def test_c_header_is_what_the_table_gives() -> None:
    """Else: `python -m remoting.record_layout`, and `python -m native`."""
    assert C_HEADER.read_text(encoding="utf-8") == c_header()


@pytest.mark.parametrize("hosts", [(HOST_V6_BYTES, HOST_V4_BYTES), (HOST_V6_BYTES, HOST_V6_BYTES)])
def test_longer_hosts_make_a_longer_head(hosts: tuple[int, int]) -> None:
    assert head_struct(*hosts).size == BODY_AT + sum(hosts) - 2 * HOST_V4_BYTES


def test_some_fields_are_read_where_all_are() -> None:
    data = bytes(range(BODY_AT))
    whole = dict(zip([field.name for field in FIELDS], head_struct().unpack(data), strict=True))
    names = ("magic", "sys_flag", "body_bytes")
    assert fields_struct(*names).unpack_from(data) == tuple(whole[name] for name in names)
    assert RECORD_HEAD.fields is not None
    places = {name: place[1] for name, place in RECORD_HEAD.fields.items()}
    assert places == {field.name: field.offset for field in FIELDS[: len(places)]}
