"""Option maps: read by type, refused by name."""

from __future__ import annotations

import pickle

import pytest

from rocketmq_spark.errors import OptionError, RequestRefusedError
from rocketmq_spark.options import ConnectionOptions, OptionReader, parse_duration_ms

KNOWN = ("namesrv", "requestTimeout", "retryTimeout", "count", "flag", "kind", "text")


def reader(**options: str) -> OptionReader:
    return OptionReader(options, KNOWN, "the test")


def test_values_are_read_by_type() -> None:
    given = reader(COUNT=" 5 ", Flag="TRUE", kind="Two", text=" a b ")
    assert given.integer("count") == 5
    assert given.boolean("flag", False) is True
    assert given.choice("kind", ("one", "two"), "one") == "two"
    assert given.text("text") == "a b"
    assert given.has("Text")


def test_defaults() -> None:
    given = reader(text="  ")
    assert given.integer("count") is None
    assert given.integer("count", 3) == 3
    assert given.boolean("flag", True) is True
    assert given.choice("kind", ("one",), "one") == "one"
    assert given.text("text", "x") == "x"
    assert given.duration_ms("requestTimeout", 5) == 5


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("250", 250), ("250ms", 250), ("1.5s", 1_500), ("2 m", 120_000), ("1H", 3_600_000), ("1d", 86_400_000)],
)
def test_times(text: str, expected_ms: int) -> None:
    assert parse_duration_ms("x", text) == expected_ms


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "-1s", "1e3"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="option delay is"):
        parse_duration_ms("delay", text)


def test_connection() -> None:
    given = reader(namesrv="a:1;b:2", requestTimeout="2s", retryTimeout="1m")
    assert given.connection() == ConnectionOptions("a:1;b:2", 2.0, 60.0)
    with pytest.raises(OptionError, match="the test needs the option namesrv"):
        reader().connection()


def test_every_unknown_option_is_named() -> None:
    with pytest.raises(OptionError) as caught:
        reader(cuont="5", namesvr="x", zzz="1")
    text = str(caught.value)
    assert "has no option cuont; nearest: count" in text
    assert "has no option namesvr; nearest: namesrv" in text
    assert "has no option zzz; known: count, flag" in text


def test_options_of_elsewhere_have_a_hint() -> None:
    with pytest.raises(OptionError, match="option endingOffsets is for batch only"):
        OptionReader({"ENDINGOFFSETS": "x"}, KNOWN, "the test", {"endingOffsets": "is for batch only"})


def test_errors_cross_processes() -> None:
    error = pickle.loads(pickle.dumps(RequestRefusedError("a pull", 16, "no")))
    assert str(error) == "a pull was refused with code 16: no"
    assert (error.code, error.remark) == (16, "no")
