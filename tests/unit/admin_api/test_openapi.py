"""What the description says of each route."""

from typing import Any

import pytest

from admin_api.app import create_app
from admin_api.security.policy import Tokens
from admin_api.settings import Settings
from tests.unit.admin_api.fake_brokers import NAMESRV, FakeBrokers
from tests.unit.admin_api.test_guard import calling, said

OPERATIONS = [
    (path, method, operation)
    for path, operations in create_app(Settings(namesrv=NAMESRV), FakeBrokers()).openapi()["paths"].items()
    for method, operation in operations.items()
]
PLACES = {
    "address": "127.0.0.1:1",
    "brokerName": "b",
    "group": "g",
    "id": "n2",
    "key": "k",
    "message_id": "A" * 32,
    "namespace": "n",
    "topic": "t",
    "username": "u",
}
WITH_BODY = [(path, method) for path, method, operation in OPERATIONS if "requestBody" in operation]
PAGED = (
    "/audit",
    "/brokers",
    "/consumer-groups",
    "/dlq",
    "/grpc-endpoints/{address}/clients",
    "/policies",
    "/producer-groups",
    "/topics",
    "/users",
)


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


@pytest.mark.parametrize(("path", "method"), WITH_BODY)
async def test_a_field_that_there_is_not_is_named_and_nothing_is_done(path: str, method: str) -> None:
    async with calling(Tokens()) as client:
        answer = await client.request(method, path.format_map(PLACES), json={"kyes": ["a"], "dryRun": "no"})
    assert answer.status_code == 422, answer.text
    assert "kyes is not known here; there are " in said(answer)
    assert "dryRun is not known here" in said(answer)


async def test_the_fields_there_are_are_told_and_a_long_name_is_cut() -> None:
    async with calling(Tokens()) as client:
        answer = await client.post("/api/v1/topics/t/messages", json={"text": "a", "k" * 9_000: 1})
        nested = await client.post("/api/v1/topics/t/messages", json={"text": "a", "properties": {"a": 1}})
    assert "text, base64, keys, tags, properties, delayLevel, brokerName, queueId" in said(answer)
    assert len(said(answer)) < 500
    assert "properties.a must be" in said(nested)
