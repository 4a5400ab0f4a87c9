"""What routes share: dependencies, documented errors, and how a change is executed.

@router.delete("/{topic}", summary="Delete a topic", **changing(Role.ADMIN))
async def delete_topic(services: ServicesDep, make: MakeDep, topic: Topic) -> Response:
    return await make(services.topic_changes.delete(topic))
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Depends, Query, Request
from fastapi.responses import Response

from admin_api.changes import Change, ChangeFailedError, Changes, UnconfirmedError
from admin_api.errors import PageWanted
from admin_api.problems import MEDIA_TYPE
from admin_api.schema import PAGE_MAX, PAGE_SIZE_MAX, ChangeResult, EffectView, Problem, Schema
from admin_api.security.access import actor_of, costly, require
from admin_api.security.actor import Role
from admin_api.services import Services


async def services_of(request: Request) -> Services:
    """A coroutine, as all dependencies here: FastAPI calls plain functions in a thread."""
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


async def page_wanted(
    page: Annotated[int, Query(ge=1, le=PAGE_MAX, description="counted from 1")] = 1,
    page_size: Annotated[
        int, Query(alias="pageSize", ge=1, le=PAGE_SIZE_MAX, description="items of one page")
    ] = 100,
) -> PageWanted:
    return PageWanted(page, page_size)


ServicesDep = Annotated[Services, Depends(services_of)]
PageDep = Annotated[PageWanted, Depends(page_wanted)]


def answer(view: Schema) -> Response:
    """Not validated a second time: a page may have a thousand groups."""
    return Response(
        view.model_dump_json(by_alias=True),
        media_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def problems(**said: str) -> dict[int | str, dict[str, Any]]:
    """`problems(e404="No such topic.")` for a route's `responses=`; 503 is in all of them."""
    descriptions = {"e503": "The name server or the brokers that would know do not answer.", **said}
    return {int(key[1:]): {"model": Problem, "description": text} for key, text in descriptions.items()}


def shown(example: Schema) -> dict[int | str, dict[str, Any]]:
    """An answer for a route's `responses=`, as it goes over the wire."""
    value = example.model_dump(mode="json", by_alias=True)
    return {200: {"content": {"application/json": {"example": value}}}}


Responses = Mapping[int | str, dict[str, Any]]


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
    400: _problem("The request is invalid in any state of the cluster."),
    403: _problem("The token's role is not enough."),
    404: _problem("It does not exist."),
    409: _problem("The situation changed since the preview, or brokers refuse the change.", ChangeProblem),
    428: _problem("It is destructive and not confirmed; `result` has the preview.", ChangeProblem),
    502: _problem("Brokers failed, nothing was done; `result` has the reasons.", ChangeProblem),
    503: _problem("The brokers that could do it do not answer."),
}


def changing(role: Role, responses: Responses | None = None, *, is_costly: bool = False) -> dict[str, Any]:
    """What the decorator of a route that takes `MakeDep` says besides its path and summary; `is_costly` where
    the preview makes brokers search, or asks them about every topic.
    """
    needed = [Depends(require(role)), *([Depends(costly)] if is_costly else [])]
    return {
        "dependencies": needed,
        "response_model": ChangeResult,
        "responses": {**CHANGE_RESPONSES, **(responses or {})},
    }


@dataclass(frozen=True, slots=True)
class Make:
    """Previews a change or makes it, as the request wants it."""

    request: Request
    dry_run: bool | None
    confirmation: str | None

    async def __call__(self, change: Change) -> Response:
        """The preview or the outcome as JSON, or a problem that carries it.

        Raises: what the change's preview raises (admin_api/problems.py has the words for it).
        """
        request = self.request
        changes, actor = request.app.state.changes, actor_of(request)
        assert isinstance(changes, Changes)
        request.state.audited = True
        confirmation = self.confirmation or request.headers.get("confirmation")
        try:
            result = await changes.apply(change, dry_run=self.dry_run, confirmation=confirmation, actor=actor)
        except UnconfirmedError as error:
            status = HTTPStatus.PRECONDITION_REQUIRED if error.is_missing else HTTPStatus.CONFLICT
            return _with_result(request, status, f"Not done: {error}.", error.result)
        except ChangeFailedError as error:
            status = HTTPStatus.CONFLICT if error.is_refused else HTTPStatus.BAD_GATEWAY
            return _with_result(request, status, f"Not done: {error}", error.result)
        return answer(result)


async def _make(
    request: Request,
    dry_run: Annotated[
        bool | None,
        Query(
            alias="dryRun",
            description="Only say what would happen. Left out: true for a destructive change, false for "
            "others.",
        ),
    ] = None,
    confirmation: Annotated[
        str | None,
        Query(
            max_length=128,
            description="From the dry run; destructive ones need it. The header `Confirmation` is the same.",
        ),
    ] = None,
) -> Make:
    return Make(request, dry_run, confirmation)


MakeDep = Annotated[Make, Depends(_make)]


def _with_result(request: Request, status: HTTPStatus, detail: str, result: ChangeResult) -> Response:
    problem = ChangeProblem(
        title=status.phrase, status=status, detail=detail, instance=request.url.path, result=result
    )
    return Response(problem.model_dump_json(by_alias=True), status_code=status, media_type=MEDIA_TYPE)
