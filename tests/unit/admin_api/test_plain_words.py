"""What is wrong with a request is said in words for people, whatever it is."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import ValidationError
from pydantic_core.core_schema import ErrorType

from admin_api.app import create_app
from admin_api.errors import OTHER, PATTERNS, words_of
from admin_api.messages.sending import NewMessage
from admin_api.settings import Settings
from admin_api.topics.changes import TopicSpec


def patterns_in(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("pattern"), str):
            yield part["pattern"]
        for each in part.values():
            yield from patterns_in(each)
    elif isinstance(part, list):
        for each in part:
            yield from patterns_in(each)


def test_every_pattern_of_the_interface_has_words() -> None:
    used = set(patterns_in(create_app(Settings(namesrv="127.0.0.1:1")).openapi()))
    assert used <= PATTERNS.keys()
    assert len(used) >= 4


def test_every_error_has_words_without_the_value() -> None:
    context = {"pattern": "^$", "error": ValueError("as it is"), "expected": "'a' or 'b'"}
    context |= dict.fromkeys(("gt", "ge", "lt", "le", "min_length", "max_length"), 7)
    kinds = get_args(ErrorType)
    assert len(kinds) > 50
    for kind in kinds:
        said = words_of(
            {"type": kind, "loc": ("body", "settings", "key"), "ctx": context, "input": "hunter2"}
        )
        assert said.startswith("settings.key "), kind
        assert "hunter2" not in said


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (TopicSpec, {"readQueues": 0}, "readQueues must be 1 or more"),
        (TopicSpec, {"readQueues": 4_097}, "readQueues must be 4096 or less"),
        (TopicSpec, {"readQueues": "many"}, "readQueues must be a whole number"),
        (TopicSpec, {"readQueues": 1.5}, "readQueues must be a whole number"),
        (TopicSpec, {"canRead": "perhaps"}, "canRead must be true or false"),
        (TopicSpec, {"brokers": []}, "brokers must not be empty"),
        (TopicSpec, {"brokers": ["b"] * 257}, "brokers may have 256 entries at most"),
        (TopicSpec, {"attributes": 1}, "attributes must be an object"),
        (
            TopicSpec,
            {"attributes": {"a": "1,2"}},
            "attributes.a may have no comma, no = and no control character",
        ),
        (
            NewMessage,
            {"text": "x", "keys": ["a b"]},
            "keys does not fit: a key is one word: spaces divide them",
        ),
        (NewMessage, [], "what is asked for must be an object"),
    ],
)
def test_words(model: Any, given: Any, said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        model.model_validate(given)
    assert words_of(raised.value.errors()[0]) == said
    assert OTHER not in said
