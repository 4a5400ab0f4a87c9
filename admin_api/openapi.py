"""Completes FastAPI's description: problem documents, the errors common to all routes, examples."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from admin_api.cluster.examples import CLUSTER_EXAMPLE
from admin_api.schema import Problem

_PROBLEM_MEDIA_TYPE: Final = "application/problem+json"
_PROBLEM: Final = {"$ref": "#/components/schemas/Problem"}
_ANY: Final = {
    "400": "What is asked for makes no sense, however the cluster is.",
    "401": "A token is needed, or the one given is not known.",
    "403": "The token's role is not enough, the page is another's, or a proxy sent it where there are none.",
    "421": "It was called by a name that is not its own.",
    "429": "Too many wrong tokens, or too many expensive queries; `Retry-After` has the seconds.",
}
_CHANGING: Final = {
    "413": "The body is too long.",
    "415": "Neither `application/json` nor the header `X-LedgerMQ-Request`.",
}
_OWN_HEADER: Final = {
    "name": "X-LedgerMQ-Request",
    "in": "header",
    "required": False,
    "description": "Needed where there is neither a JSON body nor a token, against forged requests.",
    "schema": {"type": "string", "enum": ["1"]},
}


def completed(described: dict[str, Any], routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """The description, with the above put in."""
    _restore_examples(described, routes)
    schemas = described.setdefault("components", {}).setdefault("schemas", {})
    schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            _complete(operation, path, is_changing=method not in ("get", "head"))
    cluster = described["paths"]["/api/v1/cluster"]["get"]["responses"]
    cluster["200"]["content"]["application/json"]["example"] = CLUSTER_EXAMPLE
    return described


def _restore_examples(described: dict[str, Any], routes: Iterable[BaseRoute]) -> None:
    """FastAPI drops nulls everywhere, also from what the answers of routes show."""
    for route in routes:
        if isinstance(route, APIRoute) and route.include_in_schema and route.methods:
            shown = route.responses.get(200, {}).get("content", {}).get("application/json", {})
            if "example" in shown:
                operation = described["paths"][route.path_format][min(route.methods).lower()]
                content = operation["responses"]["200"]["content"]["application/json"]
                content["example"] = shown["example"]


def _complete(operation: dict[str, Any], path: str, *, is_changing: bool) -> None:
    responses = operation["responses"]
    common = _ANY if path.startswith("/api/") else {"421": _ANY["421"]}
    for status, description in {**common, **(_CHANGING if is_changing else {})}.items():
        responses.setdefault(status, {"description": description})
    if is_changing:
        operation.setdefault("parameters", []).append(_OWN_HEADER)
    for status, response in responses.items():
        if status[0] in "45":
            if status == "422":
                response["description"] = "A parameter or the body is not as described."
            content = _problem_content(status, response)
            content.setdefault("example", _example(status, response["description"], path))
            response["content"] = {_PROBLEM_MEDIA_TYPE: content}


def _example(status: str, detail: str, path: str) -> dict[str, Any]:
    """The description of the status, as the problem that a call gets."""
    problem = Problem(title=HTTPStatus(int(status)).phrase, status=int(status), detail=detail, instance=path)
    return problem.model_dump(mode="json")


def _problem_content(status: str, response: dict[str, Any]) -> dict[str, Any]:
    """A route's own description of its problem stays: schema (a problem with more fields) and example."""
    merged: dict[str, Any] = {}
    for content in response.get("content", {}).values():
        merged.update(content)
    if status == "422" or "schema" not in merged:
        merged["schema"] = _PROBLEM
    return merged
