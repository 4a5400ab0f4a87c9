"""dledger.core.config: values that do not fit together are refused with their numbers."""

from dataclasses import fields
from typing import Any

import pytest

from dledger.core.config import Config


def test_defaults_are_those_of_the_documentation() -> None:
    config = Config("g", "n1", ("n0", "n1", "n2"))
    assert (config.pending_pushes_max, config.pending_appends_max) == (1_000, 10_000)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"peers": ("n0", "n0")}, "named twice"),
        ({"preferred_leader_id": "n9"}, "preferred_leader_id='n9' is not one of"),
        ({"election_timeout_min_ms": 1600}, "election_timeout_min_ms=1600 > election_timeout_max_ms=1500"),
        ({"heartbeat_interval_ms": 451}, "heartbeat_interval_ms=451 leaves less than two"),
    ],
)
def test_values_that_do_not_fit(values: dict[str, Any], words: str) -> None:
    arguments = {"group": "g", "self_id": "n0", "peers": ("n0", "n1", "n2"), **values}
    with pytest.raises(ValueError, match=words):
        Config(**arguments)


@pytest.mark.parametrize(
    "name", [field.name for field in fields(Config) if field.type == "int" or field.type is int]
)
def test_no_limit_may_be_zero(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
        Config("g", "n0", ("n0",), **{name: 0})  # type: ignore[arg-type]
