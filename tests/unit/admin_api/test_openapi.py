"""What the description says of each route."""

from typing import Any

import pytest

from admin_api.app import create_app
from admin_api.settings import Settings
from tests.unit.admin_api.fake_brokers import NAMESRV, FakeBrokers

OPERATIONS = [
    (path, method, operation)
    for path, operations in create_app(Settings(namesrv=NAMESRV), FakeBrokers()).openapi()["paths"].items()
    for method, operation in operations.items()
]
AREAS = ("/api/v1/topics", "/api/v1/producer-groups", "/api/v1/brokers")


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS)
def test_every_route_has_a_summary_and_a_description(
    path: str, method: str, operation: dict[str, Any]
) -> None:
    assert operation["summary"]
    assert operation["description"]


@pytest.mark.parametrize(
    ("path", "method", "operation"), [each for each in OPERATIONS if each[0].startswith(AREAS)]
)
def test_every_route_shows_an_answer_and_its_problems(
    path: str, method: str, operation: dict[str, Any]
) -> None:
    responses = operation["responses"]
    assert responses["200"]["content"]["application/json"]["example"]
    assert "503" in responses
    assert all("application/problem+json" in r["content"] for code, r in responses.items() if code >= "400")


def test_examples_keep_their_nulls() -> None:
    (operation,) = [
        op for path, method, op in OPERATIONS if (path, method) == ("/api/v1/topics/{topic}", "get")
    ]
    example = operation["responses"]["200"]["content"]["application/json"]["example"]
    assert example["configs"][0]["retentionMs"] is None
