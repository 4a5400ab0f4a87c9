"""Who may call what: the dependencies that routes declare.

`security/http_guard.py` has found out who asks before a route is reached; here it is held against what the
route asks for.
"""

import math
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from admin_api.security.actor import Actor, Role
from admin_api.security.rates import RateLimit

_bearer = HTTPBearer(
    auto_error=False, description="A token of the file given with --tokens. Not needed where none are used."
)


def actor_of(request: Request) -> Actor:
    """Who sent this request. Raises: HTTPException 401 when nobody was found out."""
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
    """The dependency that lets nobody with a lesser role through."""

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


async def costly(request: Request) -> None:
    """For `dependencies=[Depends(costly)]` of queries that make brokers search or ask many of them.

    Raises: HTTPException 429 with Retry-After.
    """
    limit = request.app.state.costly_limit
    assert isinstance(limit, RateLimit)
    actor = actor_of(request)
    wait_s = limit.take(f"{actor.name}@{actor.remote}")
    if wait_s > 0:
        seconds = math.ceil(wait_s)
        detail = f"Too many expensive queries; ask again in {seconds} s."
        raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, detail, {"Retry-After": str(seconds)})
