"""Access control: the dependencies that routes declare."""

import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from admin_api.security.actor import Actor, Role
from admin_api.security.rates import RateLimit, Turns
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
