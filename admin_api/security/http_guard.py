"""What every request passes before a route sees it: its name, its origin, its size, and who sends it.

A plain ASGI middleware, so that streams and cancellation go through untouched.
"""

import logging
import math
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from admin_api.schemas.base import Problem
from admin_api.security.actor import Actor, Role
from admin_api.security.policy import LOOPBACK_NAMES, Policy
from admin_api.security.rates import RateLimit

FAILURES_BURST: Final = 10
FAILURES_PER_S: Final = 0.2
"""Wrong tokens of one address: ten at once, then one in five seconds."""
OWN_HEADER: Final = "x-ledgermq-request"
"""With it a request without a body shows that a script of ours or a program sent it, not a form elsewhere."""

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PROTECTED: Final = ("/api/", "/metrics", "/readyz")
"""The page itself, its files and the description tell nothing of the cluster."""
_WATCHED: Final = frozenset({"/metrics", "/readyz"})
"""Read without a token by what runs on this machine."""
_PROXIES: Final = frozenset({"forwarded", "via", "x-real-ip"})
_PROXIES_PREFIX: Final = "x-forwarded-"
"""Headers by which a proxy tells that another machine may have sent what comes from this one."""
_BEHIND_PROXY: Final = (
    "This came through a proxy, behind which everybody would be an administrator: tokens are needed there "
    "(--tokens FILE)."
)
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_log = logging.getLogger(__name__)


class _RefusedError(Exception):
    def __init__(self, status: HTTPStatus, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers or {}


class Guard:
    """Lets through what the policy allows, with `scope["state"]["actor"]` set where the sender is known."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app = app
        self._policy = policy
        self._failures = RateLimit(FAILURES_BURST, FAILURES_PER_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        answer = _Answer(send, scope["path"])
        try:
            self._check_host(headers)
            self._check_origin(scope["method"], headers)
            self._check_length(headers)
            actor = self._identify(scope, headers)
            self._require_least(scope, actor)
            if actor is not None:
                scope.setdefault("state", {})["actor"] = actor
            await self._app(scope, self._bounded(receive), answer.send)
        except _RefusedError as error:
            _log.info("%s %s refused: %s", scope["method"], scope["path"], error)
            await answer.refuse(error)

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host", "")
        if not self._policy.is_called_by(host):
            detail = (
                f"This is not {host[:100]!r}. Call the address it listens on, or allow it: --allowed-host."
            )
            raise _RefusedError(HTTPStatus.MISDIRECTED_REQUEST, detail)

    def _check_origin(self, method: str, headers: Headers) -> None:
        """A page of another origin cannot change anything, nor have a form or an image do so."""
        if method in _SAFE:
            return
        origin = headers.get("origin")
        is_foreign = origin is not None and origin.partition("://")[2] != headers["host"]
        if is_foreign or headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "Changes are taken from this service's own page only.")
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json" and OWN_HEADER not in headers and "authorization" not in headers:
            detail = "A change is sent as application/json, or with the header X-LedgerMQ-Request: 1."
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "Content-Length is no number.")
        if len(length) > 18 or int(length) > self._policy.body_bytes_max:
            raise self._too_long()

    def _too_long(self) -> _RefusedError:
        detail = f"The body may have {self._policy.body_bytes_max} bytes."
        return _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail, {"Connection": "close"})

    def _identify(self, scope: Scope, headers: Headers) -> Actor | None:
        remote = scope["client"][0] if scope.get("client") else "unknown"
        is_forwarded = any(name in _PROXIES or name.startswith(_PROXIES_PREFIX) for name in headers)
        if self._policy.is_open:
            if is_forwarded and scope["path"].startswith(_PROTECTED):
                raise _RefusedError(HTTPStatus.FORBIDDEN, _BEHIND_PROXY)
            return None if is_forwarded else Actor("local", Role.ADMIN, remote)
        scheme, _, presented = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and presented.strip():
            return self._known(presented.strip(), remote)
        is_here = remote in LOOPBACK_NAMES and not is_forwarded
        if scope["path"] in _WATCHED and is_here and scope["method"] in _SAFE:
            return Actor("local", Role.READ, remote)
        return None

    def _require_least(self, scope: Scope, actor: Actor | None) -> None:
        """What holds for a route whatever it declares itself (security/access.py)."""
        if not scope["path"].startswith(_PROTECTED):
            return
        if actor is None:
            detail = "A token is needed: send `Authorization: Bearer <token>`."
            raise _RefusedError(HTTPStatus.UNAUTHORIZED, detail, {"WWW-Authenticate": "Bearer"})
        if actor.role is Role.READ and scope["method"] not in _SAFE:
            raise _RefusedError(HTTPStatus.FORBIDDEN, f"The token {actor.name} may only read.")

    def _known(self, presented: str, remote: str) -> Actor:
        wait_s = self._failures.wait_s(remote)
        if wait_s > 0:
            seconds = str(math.ceil(wait_s))
            detail = f"Too many wrong tokens from {remote}; try again in {seconds} s."
            raise _RefusedError(HTTPStatus.TOO_MANY_REQUESTS, detail, {"Retry-After": seconds})
        token = self._policy.tokens.find(presented)
        if token is None:
            self._failures.take(remote)
            detail = "This token is not known."
            raise _RefusedError(HTTPStatus.UNAUTHORIZED, detail, {"WWW-Authenticate": "Bearer"})
        return Actor(token.name, token.role, remote)

    def _bounded(self, receive: Receive) -> Receive:
        """Counts a body that does not say its length beforehand."""
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._policy.body_bytes_max:
                error = self._too_long()
                raise HTTPException(error.status, str(error), error.headers)
            return message

        return counted


class _Answer:
    """Puts the headers on whatever is answered, and can answer by itself while nothing else has."""

    def __init__(self, send: Send, path: str) -> None:
        self._send = send
        self._path = path
        self._has_begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._has_begun = True
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            if self._path.startswith("/api/"):
                headers.setdefault("Cache-Control", "no-store")
        await self._send(message)

    async def refuse(self, error: _RefusedError) -> None:
        if self._has_begun:
            return
        problem = Problem(
            title=error.status.phrase, status=error.status, detail=str(error), instance=self._path[:200]
        )
        headers = {"Content-Type": "application/problem+json", **error.headers}
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status.value, "headers": raw})
        await self.send({"type": "http.response.body", "body": problem.model_dump_json().encode()})
