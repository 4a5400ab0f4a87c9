"""Properties of many messages at once, held against the parser that takes one message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commitlog.record import Message, get_property, parse_properties
from rocketmq_spark.records.columns import find_properties, property_column, property_maps
from rocketmq_spark.records.fields import find_records
from tests.unit.spark.record_makers import messages, properties_bytes, stored


def with_properties(*texts: bytes) -> bytes:
    return stored([Message("T", 0, b"body", text) for text in texts])


@given(st.lists(properties_bytes(), max_size=8))
def test_maps_are_those_of_the_slow_parser(texts: list[bytes]) -> None:
    maps = property_maps(find_properties(find_records(with_properties(*texts))))
    maps.validate(full=True)
    found = maps.to_pylist()
    assert [dict(pairs) for pairs in found] == [parse_properties(text) for text in texts]
    assert [len(pairs) for pairs in found] == [len(dict(pairs)) for pairs in found]


@given(st.lists(messages(), min_size=1, max_size=8), st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"a"]))
def test_columns_are_those_of_the_slow_parser(found: list[Message], name: bytes) -> None:
    column = property_column(find_properties(find_records(stored(found))), name)
    column.validate(full=True)
    expected = [parse_properties(message.properties).get(name.decode()) for message in found]
    assert column.to_pylist() == expected


def test_last_of_repeated_names_counts() -> None:
    text = b"TAGS\x01first\x02KEYS\x01k\x02TAGS\x01last\x02TAGS\x01\x02"
    properties = find_properties(find_records(with_properties(text, b"")))
    assert property_column(properties, b"TAGS").to_pylist() == ["last", None]
    assert property_maps(properties).to_pylist() == [[("KEYS", "k"), ("TAGS", "last")], []]
    assert get_property(text, b"TAGS") == b"last"


def test_value_keeps_what_looks_like_a_name_end() -> None:
    properties = find_properties(find_records(with_properties(b"a\x01b\x01c\x02")))
    assert property_column(properties, b"a").to_pylist() == ["b\x01c"]
