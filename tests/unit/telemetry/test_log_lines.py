"""The log: one event, one line, and JSON that a program can read."""

import json
import logging
import sys
import unicodedata
from typing import Any

import pytest

from telemetry.log_lines import MESSAGE_CHARS_MAX, JsonLines, TextLines, Whereabouts


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("broker.app", logging.WARNING, __file__, 1, message, args, None)
    for name, value in extra.items():
        setattr(made, name, value)
    return made


def read(line: str) -> dict[str, Any]:
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_json_line_has_time_level_logger_message_and_what_the_event_brings() -> None:
    lines = JsonLines(Whereabouts("broker-a/n1", lambda: 7))
    line = read(lines.format(record("slow put of %d", 3, batch=41, requests=["1-2"])))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "WARNING",
        "logger": "broker.app",
        "message": "slow put of 3",
        "node": "broker-a/n1",
        "term": 7,
        "batch": 41,
        "requests": ["1-2"],
    }


def test_what_is_not_known_is_left_out() -> None:
    assert set(read(JsonLines(Whereabouts()).format(record("started")))) == {
        "time",
        "level",
        "logger",
        "message",
    }


def test_an_event_cannot_pass_for_the_node() -> None:
    line = read(JsonLines(Whereabouts("n0")).format(record("x", node="n9", level="quiet")))
    assert (line["node"], line["node_"], line["level"], line["level_"]) == ("n0", "n9", "WARNING", "quiet")


def test_a_trace_is_part_of_the_line() -> None:
    made = record("failed")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert "ValueError: two\nlines" in read(JsonLines(Whereabouts()).format(made))["exception"]


@pytest.mark.parametrize("value", [2**70, "\ud800", object(), {1: b"x"}, {"a", "b"}])
def test_whatever_an_event_brings_the_line_is_written(value: object) -> None:
    assert "value" in read(JsonLines(Whereabouts()).format(record("x", value=value)))


def test_a_text_line_stays_one_line_whatever_it_quotes() -> None:
    line = TextLines().format(record("group %s", "a\nERROR broker: forged\r"))
    assert line.endswith("WARNING broker.app: group a\\nERROR broker: forged\\r")


def test_a_text_line_tells_a_terminal_nothing() -> None:
    line = TextLines().format(record("%s", "\tf\u00fcr\x1b[2J\x9b2J\x7f\x85ERROR\u2028x\x0by\u200e"))
    assert line.endswith(": \tf\u00fcr\\x1b[2J\\x9b2J\\x7f\\x85ERROR\\u2028x\\x0by\\u200e")
    assert line.splitlines() == [line]


def failed_with(text: str) -> logging.LogRecord:
    made = record("handler failed")
    try:
        raise ValueError(text)
    except ValueError:
        made.exc_info = sys.exc_info()
    return made


def test_an_error_that_quotes_a_client_cannot_pass_for_an_event() -> None:
    text = "bad\n2026-01-09 08:15:30,123 ERROR broker.app: the disk is lost\x1b[31m\u2028x\rERROR"
    first, *trace = TextLines().format(failed_with(text)).splitlines()
    assert first.endswith("WARNING broker.app: handler failed")
    assert len(trace) >= 4
    assert all(line.startswith("  ") for line in trace)
    assert trace[-1].endswith("the disk is lost\\x1b[31m\\u2028x\\rERROR")


def test_a_stack_cannot_either() -> None:
    made = record("slow")
    made.stack_info = "Stack:\nERROR forged"
    assert TextLines().format(made).splitlines()[1:] == ["  Stack:", "  ERROR forged"]


CONTROLS = "a\x00\n\r\x1b[2J\x7f\x85\x9b31m\u2028\u2029\u202e\u2066\u200f\u061c\u200bz"


@pytest.mark.parametrize("value", [CONTROLS, [CONTROLS], {CONTROLS: CONTROLS}, (2**70, CONTROLS)])
def test_a_json_line_stays_one_line_and_tells_a_terminal_nothing(value: object) -> None:
    lines = JsonLines(Whereabouts(CONTROLS))
    line = lines.format(record("group %s", CONTROLS, value=value))
    assert line.splitlines() == [line]
    assert not [char for char in line if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")]
    read_again = read(line)
    assert (read_again["message"], read_again["node"]) == (f"group {CONTROLS}", CONTROLS)
    trace = lines.format(failed_with(CONTROLS))
    assert trace.splitlines() == [trace]
    assert CONTROLS in read(trace)["exception"]


@pytest.mark.parametrize("form", [TextLines(), JsonLines(Whereabouts())])
def test_a_line_has_a_bound(form: logging.Formatter) -> None:
    line = form.format(record("%s", "x" * 5_000_000))
    assert len(line) < MESSAGE_CHARS_MAX + 1_000
    assert "characters more)" in line
