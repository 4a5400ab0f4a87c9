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
PAGED = ("/audit", "/brokers", "/consumer-groups", "/dlq", "/producer-groups", "/topics")


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS)
def test_every_route_has_a_summary_and_a_description(
    path: str, method: str, operation: dict[str, Any]
) -> None:
    assert operation["summary"]
    assert operation["description"]
    assert all(each.get("description") for each in operation.get("parameters", ()))


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS)
def test_every_route_shows_an_answer_and_its_problems(
    path: str, method: str, operation: dict[str, Any]
) -> None:
    responses = dict(operation["responses"])
    (answer,) = [responses.pop(code) for code in list(responses) if code < "400"]
    assert all(content.get("example") for content in answer["content"].values())
    for code, problem in responses.items():
        shown = problem["content"]["application/problem+json"]["example"]
        assert (str(shown["status"]), bool(shown["detail"])) == (code, True), shown
    if path.startswith("/api/"):
        assert {"400", "401", "403", "421", "429"} <= responses.keys()


@pytest.mark.parametrize("path", PAGED)
def test_every_list_has_the_same_pages(path: str) -> None:
    (operation,) = [op for at, method, op in OPERATIONS if (at, method) == (f"/api/v1{path}", "get")]
    told = {each["name"]: each["schema"] for each in operation["parameters"] if "age" in each["name"]}
    assert told.keys() == {"page", "pageSize"}
    assert {name: schema["default"] for name, schema in told.items()} == {"page": 1, "pageSize": 100}
    assert told["pageSize"]["maximum"] == 1000
    example = operation["responses"]["200"]["content"]["application/json"]["example"]
    assert {"items", "page", "pageSize", "total", "isPartial", "problems"} <= example.keys()


def test_examples_keep_their_nulls() -> None:
    (operation,) = [
        op for path, method, op in OPERATIONS if (path, method) == ("/api/v1/topics/{topic}", "get")
    ]
    example = operation["responses"]["200"]["content"]["application/json"]["example"]
    assert example["configs"][0]["retentionMs"] is None
