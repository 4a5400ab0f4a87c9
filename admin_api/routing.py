"""What routes share: access control and other dependencies, documented errors, and how a change is executed.

@router.delete("/{topic}", summary="Delete a topic", **changing(Role.ADMIN))
async def delete_topic(services: ServicesDep, make: MakeDep, topic: Topic) -> Response:
    return await make(services.topic_changes.delete(topic))
"""

import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Depends, Query, Request
from fastapi.responses import Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from admin_api.changes import Action, Change, ChangeFailedError, Changes, UnconfirmedError
from admin_api.errors import PageWanted
from admin_api.problems import MEDIA_TYPE
from admin_api.schema import PAGE_MAX, PAGE_SIZE_MAX, ChangeResult, EffectView, OutcomeView, Problem, Schema
from admin_api.security.policy import Actor, Role
from admin_api.security.rates import RateLimit, Turns
from admin_api.services import Services
from admin_api.settings import Settings

BUSY_RETRY_S: Final = 1
"""What is advised to a client that had no turn for a while."""
_bearer = HTTPBearer(
    auto_error=False, description="A token of the file given with --tokens. Not needed where none are used."
)


def actor_of(request: Request) -> Actor:
    """Who sent this request. Raises: HTTPException 401 when the sender is unknown."""
    actor = getattr(request.state, "actor", None)
    if not isinstance(actor, Actor):
        raise HTTPException(
            HTTPStatus.UNAUTHORIZED,
            "A token is needed: send `Authorization: Bearer <token>`.",
            {"WWW-Authenticate": "Bearer"},
        )
    return actor


@dataclass(frozen=True, slots=True)
class Required:
    """The dependency that requires at least this role."""

    role: Role

    async def __call__(
        self, request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> Actor:
        """Raises: HTTPException 401, 403."""
        actor = actor_of(request)
        if actor.role < self.role:
            detail = f"This needs the role {self.role.label}; the token {actor.name} has {actor.role.label}."
            raise HTTPException(HTTPStatus.FORBIDDEN, detail)
        return actor


def require(role: Role) -> Required:
    """For `dependencies=[Depends(require(Role.READ))]` of a router or route."""
    return Required(role)


async def costly(request: Request) -> AsyncIterator[None]:
    """For `dependencies=[Depends(costly)]` of queries that make brokers search or ask many of them.

    Each has its turn until its answer is sent. Raises: HTTPException 429 with Retry-After.
    """
    state = request.app.state
    limit, turns, settings = state.costly_limit, state.costly_turns, state.settings
    assert isinstance(limit, RateLimit)
    assert isinstance(turns, Turns)
    assert isinstance(settings, Settings)
    actor = actor_of(request)
    client = f"{actor.name}@{actor.remote}"
    wait_s = limit.acquire(client)
    if wait_s > 0:
        raise _too_many("Too many expensive queries", math.ceil(wait_s))
    if not await turns.acquire(client, settings.costly_wait_ms / 1000):
        raise _too_many("Too many expensive queries are under way", BUSY_RETRY_S)
    try:
        yield
    finally:
        turns.release(client)


def _too_many(words: str, seconds: int) -> HTTPException:
    detail = f"{words}; ask again in {seconds} s."
    return HTTPException(HTTPStatus.TOO_MANY_REQUESTS, detail, {"Retry-After": str(seconds)})


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


def problems(**descriptions: str) -> dict[int | str, dict[str, Any]]:
    """`problems(e404="No such topic.")` for a route's `responses=`; 503 is in all of them."""
    texts = {"e503": "The name server or the brokers that would know do not answer.", **descriptions}
    return {int(key[1:]): {"model": Problem, "description": text} for key, text in texts.items()}


def shown(example: Schema) -> dict[int | str, dict[str, Any]]:
    """An answer for a route's `responses=`, as it goes over the wire."""
    value = example.model_dump(mode="json", by_alias=True)
    return {200: {"content": {"application/json": {"example": value}}}}


CONFIRMATION_EXAMPLE: Final = "1767225900.0123456789abcdef.5d41402abc4b2a76b9719d911017c592"


def shown_preview(
    action: Action,
    target: str,
    *effects: EffectView,
    warning: str | None = None,
    confirmation: str | None = CONFIRMATION_EXAMPLE,
) -> dict[int | str, dict[str, Any]]:
    """The preview of a change for a route's `responses=`. Without a confirmation: one that needs none."""
    return shown(
        ChangeResult(
            action=action.value,
            target=target,
            is_dry_run=True,
            is_destructive=confirmation is not None,
            effects=list(effects),
            warnings=[] if warning is None else [warning],
            confirmation=confirmation,
        )
    )


def shown_outcome(
    action: Action, target: str, effect: EffectView, outcome: str, *, is_destructive: bool
) -> dict[int | str, dict[str, Any]]:
    """What became of a change with one part, for a route's `responses=`."""
    return shown(
        ChangeResult(
            action=action.value,
            target=target,
            is_dry_run=False,
            is_destructive=is_destructive,
            effects=[effect],
            outcomes=[OutcomeView(subject=outcome, ok=True)],
        )
    )


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
    confirmation=CONFIRMATION_EXAMPLE,
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
    """Arguments of the decorator of a route that takes `MakeDep`, besides its path and summary; `is_costly`
    where the preview makes brokers search, or asks them about every topic.
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
