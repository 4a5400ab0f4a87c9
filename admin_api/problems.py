"""Maps every error to application/problem+json (RFC 9457); the only place that does."""

import logging
from collections.abc import Sequence
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from admin_api.audit.log import AuditError
from admin_api.changes import ChangeRefusedError
from admin_api.cluster.feed import TooManyWatchersError
from admin_api.errors import InvalidError, NotFoundError, ServiceError, UnavailableError, words_of
from admin_api.gateway import AskError
from admin_api.schema import Problem

MEDIA_TYPE = "application/problem+json"
_SERVICE_STATUS = {
    ChangeRefusedError: HTTPStatus.CONFLICT,
    NotFoundError: HTTPStatus.NOT_FOUND,
    UnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    InvalidError: HTTPStatus.BAD_REQUEST,
    ServiceError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
RETRY_AFTER_S = 2
"""What a 503 advises: a silent broker is probed again after one to eight seconds."""
_ERRORS_MAX = 20
"""Faults of one body or its parameters that are reported."""
_SENTENCE_CHARS_MAX = 500
"""Characters of one: it contains the invalid key."""
_log = logging.getLogger(__name__)


class ProblemError(Exception):
    """Raised by a route that cannot answer; `detail` is a sentence for people."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def problem_response(request: Request, status: int, detail: str) -> Response:
    """It is also what the audit log has of it (security/http_guard.py)."""
    request.state.problem = detail
    problem = Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        instance=request.url.path[:_SENTENCE_CHARS_MAX],
    )
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    return Response(problem.model_dump_json(), status_code=status, headers=headers, media_type=MEDIA_TYPE)


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return problem_response(request, error.status, error.detail)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = problem_response(request, error.status_code, str(error.detail))
    response.headers.update(error.headers or {})
    return response


async def _on_bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    fields = _fields_of_body(request)
    sentences = [words_of(item, fields)[:_SENTENCE_CHARS_MAX] for item in errors[:_ERRORS_MAX]]
    if len(errors) > _ERRORS_MAX:
        sentences.append(f"and {len(errors) - _ERRORS_MAX} more")
    # A key of the body may be no text at all: half of a surrogate pair cannot be sent.
    detail = f"{'; '.join(sentences)}.".encode(errors="replace").decode()
    return problem_response(request, HTTPStatus.UNPROCESSABLE_ENTITY, detail)


def _fields_of_body(request: Request) -> Sequence[str]:
    """As they are written in JSON."""
    body = getattr(request.scope.get("route"), "body_field", None)
    model = body.field_info.annotation if body is not None else None
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return ()
    return [field.alias or name for name, field in model.model_fields.items()]


async def _on_too_many(request: Request, error: Exception) -> Response:
    return problem_response(request, HTTPStatus.SERVICE_UNAVAILABLE, str(error))


async def _on_unasked(request: Request, error: Exception) -> Response:
    return problem_response(request, HTTPStatus.SERVICE_UNAVAILABLE, str(error))


async def _on_unserved(request: Request, error: Exception) -> Response:
    status = next(status for kind, status in _SERVICE_STATUS.items() if isinstance(error, kind))
    return problem_response(request, status, str(error))


async def _on_fault(request: Request, error: Exception) -> Response:
    _log.error("fault while answering %s", request.url.path, exc_info=error)
    return problem_response(request, HTTPStatus.INTERNAL_SERVER_ERROR, "a fault of ours; the log has it")


def add_problem_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(TooManyWatchersError, _on_too_many)
    app.add_exception_handler(AskError, _on_unasked)
    app.add_exception_handler(AuditError, _on_unasked)
    app.add_exception_handler(ServiceError, _on_unserved)
    app.add_exception_handler(Exception, _on_fault)
