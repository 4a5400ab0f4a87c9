"""What a request and its topic say about reads."""

import pytest

from broker.consume.read_choice import (
    COMMITTED,
    MAX_AGE_FIELD,
    READ_FIELD,
    Consistency,
    ReadChoice,
    age_ext,
    read_choice,
)
from broker.state.topics import CONSISTENCY_ATTRIBUTE, TopicConfig
from remoting.errors import RequestError

PLAIN = TopicConfig("t", 1, 1)
LINEARIZABLE = TopicConfig("t", 1, 1, attributes={CONSISTENCY_ATTRIBUTE: "linearizable"})


@pytest.mark.parametrize(
    ("fields", "topic", "expected"),
    [
        ({}, None, COMMITTED),
        ({}, PLAIN, COMMITTED),
        ({}, TopicConfig("t", 1, 1, attributes={CONSISTENCY_ATTRIBUTE: "committed"}), COMMITTED),
        ({}, LINEARIZABLE, ReadChoice(Consistency.LINEARIZABLE)),
        ({READ_FIELD: "linearizable"}, PLAIN, ReadChoice(Consistency.LINEARIZABLE)),
        ({READ_FIELD: "committed"}, LINEARIZABLE, COMMITTED),
        ({READ_FIELD: "follower"}, LINEARIZABLE, ReadChoice(Consistency.FOLLOWER)),
        ({MAX_AGE_FIELD: "0"}, PLAIN, ReadChoice(Consistency.FOLLOWER, 0)),
        ({READ_FIELD: "follower", MAX_AGE_FIELD: "250"}, PLAIN, ReadChoice(Consistency.FOLLOWER, 250)),
    ],
)
def test_request_has_precedence_over_its_topic(
    fields: dict[str, str], topic: TopicConfig | None, expected: ReadChoice
) -> None:
    assert read_choice(fields, topic) == expected


def test_an_ordinary_read_is_recognized_without_a_comparison() -> None:
    assert read_choice({}, PLAIN) is COMMITTED
    assert read_choice({READ_FIELD: "committed"}, LINEARIZABLE) is COMMITTED


@pytest.mark.parametrize(
    "fields",
    [
        {READ_FIELD: "Linearizable"},
        {READ_FIELD: ""},
        {MAX_AGE_FIELD: "-1"},
        {MAX_AGE_FIELD: "1.5"},
        {MAX_AGE_FIELD: "²"},
        {MAX_AGE_FIELD: "9" * 5_000},
        {READ_FIELD: "linearizable", MAX_AGE_FIELD: "5"},
        {READ_FIELD: "committed", MAX_AGE_FIELD: "5"},
    ],
)
def test_other_values_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(RequestError):
        read_choice(fields, PLAIN)


def test_an_unknown_age_is_too_old_for_every_bound_and_is_not_named() -> None:
    bounded, unbounded = ReadChoice(Consistency.FOLLOWER, 10**6), ReadChoice(Consistency.FOLLOWER)
    assert not bounded.accepts(None)
    assert unbounded.accepts(None)
    assert bounded.accepts(10**6)
    assert not bounded.accepts(10**6 + 1)
    assert age_ext(None) == {}
    assert age_ext(7) == {"LEDGERMQ_AGE_MS": "7"}
