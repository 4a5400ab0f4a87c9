"""Offsets as JSON: stable, and refused with the option's name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.client.routes import MessageQueue
from rocketmq_spark.errors import OptionError
from rocketmq_spark.source.offsets import (
    Offsets,
    from_json,
    parse_assign_option,
    parse_offsets_option,
    parse_times_option,
    require_same_queues,
    start_time_ms,
    to_json,
)

NAMES = st.sampled_from(["a", "broker-a", "with:colon", "%RETRY%g"])
QUEUES = st.builds(MessageQueue, NAMES, NAMES, st.integers(0, 20))
A0, A1 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


@given(st.dictionaries(QUEUES, st.integers(0, 2**62)))
def test_checkpoint_form_is_read_back_and_sorted(offsets: Offsets) -> None:
    value = to_json(offsets)
    assert from_json(json.loads(json.dumps(value))) == offsets
    backwards = dict(reversed(offsets.items()))
    assert json.dumps(to_json(backwards)) == json.dumps(value)


def test_checkpoint_form() -> None:
    """What is in checkpoints of users: this text must be read, and written, for ever."""
    text = '{"Orders": {"broker-a:0": 17, "broker-a:2": 4}, "Sales": {"broker-b:10": 0}}'
    offsets = {
        MessageQueue("Sales", "broker-b", 10): 0,
        MessageQueue("Orders", "broker-a", 2): 4,
        MessageQueue("Orders", "broker-a", 0): 17,
    }
    assert json.dumps(to_json(offsets)) == text
    assert from_json(json.loads(text)) == offsets


def test_offsets_option() -> None:
    assert parse_offsets_option("startingOffsets", '{"T":{"a:0":-2,"a:1":7}}') == {A0: -2, A1: 7}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object by topic"),
        ('{"T":[0]}', "topic T must have an object such as"),
        ('{"T":{"a":0}}', "'a' is not brokerName:queueId"),
        ('{"T":{"a:x":0}}', "'a:x' is not brokerName:queueId"),
        ('{"T":{"a:0":-3}}', "T a:0 is -3, must be a number >= -2"),
        ('{"T":{"a:0":"7"}}', "T a:0 is '7', must be a number"),
        ('{"T":{"a:0":true}}', "T a:0 is True, must be a number"),
        ('{"T":{"a:0":1.5}}', "T a:0 is 1.5, must be a number"),
    ],
)
def test_unreadable_offsets_are_refused(text: str, problem: str) -> None:
    with pytest.raises(OptionError, match="startingOffsets") as caught:
        parse_offsets_option("startingOffsets", text)
    assert problem in str(caught.value)


def test_times_are_not_negative() -> None:
    assert parse_times_option("x", '{"T":{"a:0":0}}') == {A0: 0}
    with pytest.raises(OptionError, match="must be a number >= 0"):
        parse_times_option("x", '{"T":{"a:0":-1}}')


def test_assign_option() -> None:
    assert parse_assign_option("assign", '{"T":["a:1","a:0","a:1"]}') == [A0, A1]
    for text in ('{"T":{"a:0":1}}', '{"T":[0]}', '{"T":["x"]}', "{}"):
        with pytest.raises(OptionError, match="option assign"):
            parse_assign_option("assign", text)


def test_queues_must_be_those_subscribed() -> None:
    require_same_queues("x", [A0, A1], [A1, A0])
    with pytest.raises(OptionError, match="does not define where to begin or end in T/a:1"):
        require_same_queues("x", [A0], [A0, A1])
    with pytest.raises(OptionError, match="names T/a:1, which is not subscribed"):
        require_same_queues("x", [A0, A1], [A0])


def test_the_time_of_a_streams_start_stands_beside_its_offsets() -> None:
    text = '{"@start": {"storeTimestamp": 1500}, "T": {"a:0": 17}}'
    assert json.dumps(to_json({A0: 17}, 1_500)) == text
    assert (from_json(json.loads(text)), start_time_ms(json.loads(text))) == ({A0: 17}, 1_500)
    assert start_time_ms(to_json({A0: 17})) is None
    assert parse_offsets_option("startingOffsets", text) == {A0: 17}
