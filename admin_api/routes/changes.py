"""What every route that changes something uses: the two parameters, the answers, and the way through."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Query, Request
from fastapi.responses import Response

from admin_api.changes import Change, ChangeFailedError, Changes, UnconfirmedError
from admin_api.problems import MEDIA_TYPE
from admin_api.schemas.base import Problem
from admin_api.schemas.changes import ChangeResult, EffectView
from admin_api.security.access import actor_of

DryRun = Annotated[
    bool | None,
    Query(
        alias="dryRun",
        description="Only say what would happen. Left out: true for a destructive change, false for others.",
    ),
]
Confirmation = Annotated[
    str | None,
    Query(
        max_length=128,
        description="From the dry run; destructive ones need it. The header `Confirmation` is the same.",
    ),
]


class ChangeProblem(Problem):
    """A problem with the preview of now, or with what was tried, where there is one."""

    result: ChangeResult | None = None


def _problem(description: str, model: type[Problem] = Problem) -> dict[str, Any]:
    return {"model": model, "description": description}


_RESULT_EXAMPLE: Final = ChangeResult(
    action="offset.skip",
    target="billing",
    is_dry_run=True,
    is_destructive=True,
    effects=[EffectView(subject="orders broker-a/3", before="57", after="120, 63 messages passed over")],
    warnings=[],
    confirmation="1767225900.0123456789abcdef.5d41402abc4b2a76b9719d911017c592",
)
CHANGE_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {"application/json": {"example": _RESULT_EXAMPLE.model_dump(mode="json", by_alias=True)}}
    },
    400: _problem("It makes no sense, however the cluster is."),
    403: _problem("The token's role is not enough."),
    404: _problem("It does not exist."),
    409: _problem("The situation changed since the preview, or brokers refuse the change.", ChangeProblem),
    428: _problem("It is destructive and not confirmed; `result` has the preview.", ChangeProblem),
    502: _problem("Brokers failed, nothing was done; `result` has the reasons.", ChangeProblem),
    503: _problem("Nobody who could do it gives an answer."),
}
"""For `responses=` of every route that calls run_change (which has `response_model=ChangeResult`)."""


async def run_change(
    request: Request, change: Change, dry_run: bool | None, confirmation: str | None
) -> Response:
    """The preview or the outcome as JSON, or a problem that carries it.

    Raises: what the change's preview raises (admin_api/problems.py has the words for it).
    """
    changes = request.app.state.changes
    assert isinstance(changes, Changes)
    confirmation = confirmation or request.headers.get("confirmation")
    try:
        result = await changes.apply(
            change, dry_run=dry_run, confirmation=confirmation, actor=actor_of(request)
        )
    except UnconfirmedError as error:
        status = HTTPStatus.PRECONDITION_REQUIRED if error.is_missing else HTTPStatus.CONFLICT
        return _with_result(request, status, f"Not done: {error}.", error.result)
    except ChangeFailedError as error:
        status = HTTPStatus.CONFLICT if error.is_refused else HTTPStatus.BAD_GATEWAY
        return _with_result(request, status, f"Not done: {error}", error.result)
    return Response(
        result.model_dump_json(by_alias=True),
        media_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def _with_result(request: Request, status: HTTPStatus, detail: str, result: ChangeResult) -> Response:
    problem = ChangeProblem(
        title=status.phrase, status=status, detail=detail, instance=request.url.path, result=result
    )
    return Response(problem.model_dump_json(by_alias=True), status_code=status, media_type=MEDIA_TYPE)
