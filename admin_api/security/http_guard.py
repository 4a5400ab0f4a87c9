"""Checks every request before a route sees it: host name, origin, size, and the token.

A plain ASGI middleware, so that streams and cancellation pass through unchanged.
"""

import ipaddress
import logging
import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from admin_api.audit.log import Refusal
from admin_api.schema import Problem
from admin_api.security.policy import LOOPBACK_NAMES, Actor, Policy, Role
from admin_api.security.rates import RateLimit

FAILURES_BURST: Final = 10
FAILURES_PER_S: Final = 0.2
"""Wrong tokens of one address: ten at once, then one in five seconds."""
SMALL_BODY_BYTES_MAX: Final = 1024 * 1024
"""Of every request but a message to send: the longest list of queues fits."""
VALUES_MAX: Final = 65_536
"""Of such a body: a megabyte of empty lists takes 50 ms to read."""
OWN_HEADER: Final = "x-ledgermq-request"
"""With it a request without a body shows that a script of ours or a program sent it, not a form elsewhere."""

_MESSAGES: Final = "/messages"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_YES: Final = frozenset({"true", "1", "yes", "on", "y", "t"})
"""As the routes read a bool."""
_OWN_SITES: Final = frozenset({"same-origin", "none"})
_REFUSED: Final = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.UNSUPPORTED_MEDIA_TYPE}
)
_REFUSED_KNOWN: Final = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}
)
"""Answers to what was to change something that are audited; the latter when it is known who wanted it."""
_PROTECTED: Final = ("/api/", "/metrics", "/readyz")
"""The page itself, its files and the description reveal nothing about the cluster."""
_WATCHED: Final = frozenset({"/metrics", "/readyz"})
"""Read without a token by what runs on this machine."""
_PROXIES: Final = frozenset({"forwarded", "via", "x-real-ip"})
_PROXIES_PREFIX: Final = "x-forwarded-"
"""Headers by which a proxy reports that another machine may have sent what comes from this one."""
_BEHIND_PROXY: Final = (
    "This came through a proxy, behind which every client would be an administrator: tokens are needed there "
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
    """Lets through what the policy allows, with `scope["state"]["actor"]` set where the sender is known.

    What was to change something and came to nothing is given to `record`, unless `scope["state"]["audited"]`
    says that the change sees to that; `scope["state"]["problem"]` is the text sent to the client.
    """

    def __init__(
        self, app: ASGIApp, policy: Policy, record: Callable[[Refusal], Awaitable[None]] | None = None
    ) -> None:
        self._app = app
        self._policy = policy
        self._record = record
        self._failures = RateLimit(FAILURES_BURST, FAILURES_PER_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        scope.setdefault("state", {})
        body_max = self._body_max(scope["path"])

        async def audit(status: int) -> None:
            await self._audit(scope, status)

        answer = _Answer(send, scope["path"], audit)
        try:
            self._check_host(headers)
            self._check_origin(scope, headers)
            self._check_length(headers, body_max)
            actor = self._identify(scope, headers)
            if actor is not None:
                scope["state"]["actor"] = actor
            self._require_least(scope, actor)
            await self._app(scope, self._bounded(receive, body_max, scope["path"]), answer.send)
        except _RefusedError as error:
            _log.info("%s %s refused: %s", scope["method"], scope["path"], error)
            scope["state"]["problem"] = str(error)
            await answer.refuse(error)

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host", "")
        if not self._policy.is_called_by(host):
            detail = (
                f"This is not {host[:100]!r}. Call the address it listens on, or allow it: --allowed-host."
            )
            raise _RefusedError(HTTPStatus.MISDIRECTED_REQUEST, detail)

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """A page of another origin cannot change anything, nor have a form or an image do so, nor have an
        image ask for what is expensive or audited; a link there may lead here.
        """
        is_own_site = headers.get("sec-fetch-site", "none") in _OWN_SITES
        if scope["method"] in _SAFE:
            is_link = headers.get("sec-fetch-mode") == "navigate"
            if scope["path"].startswith("/api/") and not is_own_site and not is_link:
                raise _RefusedError(HTTPStatus.FORBIDDEN, "Pages of other origins are not answered.")
            return
        origin = headers.get("origin")
        is_foreign = origin is not None and origin.partition("://")[2] != headers["host"]
        if is_foreign or not is_own_site:
            raise _RefusedError(HTTPStatus.FORBIDDEN, "Changes are taken from this service's own page only.")
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        # A form elsewhere can have a browser send a password (http://a:b@host/), but no token.
        has_token = headers.get("authorization", "").lower().startswith("bearer ")
        if media_type != "application/json" and OWN_HEADER not in headers and not has_token:
            detail = "A change is sent as application/json, or with the header X-LedgerMQ-Request: 1."
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)

    def _body_max(self, path: str) -> int:
        most = self._policy.body_bytes_max
        return most if path.endswith(_MESSAGES) else min(most, SMALL_BODY_BYTES_MAX)

    def _check_length(self, headers: Headers, body_max: int) -> None:
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "Content-Length is no number.")
        if len(length) > 18 or int(length) > body_max:
            raise self._too_long(body_max)

    def _too_long(self, body_max: int) -> _RefusedError:
        detail = f"The body may have {body_max} bytes."
        return _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail, {"Connection": "close"})

    def _identify(self, scope: Scope, headers: Headers) -> Actor | None:
        remote = _remote(scope)
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
        """What holds for a route whatever it declares itself (admin_api/routing.py)."""
        if not scope["path"].startswith(_PROTECTED):
            return
        if actor is None:
            detail = "A token is needed: send `Authorization: Bearer <token>`."
            raise _RefusedError(HTTPStatus.UNAUTHORIZED, detail, {"WWW-Authenticate": "Bearer"})
        if actor.role is Role.READ and scope["method"] not in _SAFE:
            raise _RefusedError(HTTPStatus.FORBIDDEN, f"The token {actor.name} may only read.")

    def _known(self, presented: str, remote: str) -> Actor:
        guesser = _network(remote)
        wait_s = self._failures.wait_s(guesser)
        if wait_s > 0:
            seconds = str(math.ceil(wait_s))
            detail = f"Too many wrong tokens from {remote}; try again in {seconds} s."
            raise _RefusedError(HTTPStatus.TOO_MANY_REQUESTS, detail, {"Retry-After": seconds})
        token = self._policy.tokens.find(presented)
        if token is None:
            self._failures.acquire(guesser)
            detail = "This token is not known."
            raise _RefusedError(HTTPStatus.UNAUTHORIZED, detail, {"WWW-Authenticate": "Bearer"})
        return Actor(token.name, token.role, remote)

    async def _audit(self, scope: Scope, status: int) -> None:
        if self._record is None or scope["method"] in _SAFE or not scope["path"].startswith("/api/"):
            return
        state = scope["state"]
        actor = state.get("actor")
        asked = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        is_dry = asked.get("dryRun", [""])[-1].lower() in _YES
        is_mistake = status in _REFUSED_KNOWN and actor is not None and not is_dry
        if status in _REFUSED or (is_mistake and not state.get("audited")):
            path = quote(scope["path"], safe="/%:")
            detail, remote = state.get("problem", ""), _remote(scope)
            await self._record(Refusal(scope["method"], path, status, detail, actor, remote))

    def _bounded(self, receive: Receive, body_max: int, path: str) -> Receive:
        """Counts a body that is sent without its length, and the values of one that is not a message's."""
        taken = values = 0

        async def counted() -> Message:
            nonlocal taken, values
            message = await receive()
            body = message.get("body", b"")
            taken += len(body)
            if taken > body_max:
                error = self._too_long(body_max)
                raise HTTPException(error.status, str(error), error.headers)
            if not path.endswith(_MESSAGES):
                # At most one value begins after each of these signs.
                values += sum(map(body.count, (b",", b":", b"[", b"{")))
                if values > VALUES_MAX:
                    detail = f"The body may have {VALUES_MAX} values."
                    raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail, {"Connection": "close"})
            return message

        return counted


class _Answer:
    """Puts the headers on whatever is answered, and can answer by itself while nothing else has."""

    def __init__(self, send: Send, path: str, audit: Callable[[int], Awaitable[None]]) -> None:
        self._send = send
        self._path = path
        self._audit = audit
        self._has_begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._has_begun = True
            await self._audit(message["status"])
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


def _remote(scope: Scope) -> str:
    return str(scope["client"][0]) if scope.get("client") else "unknown"


def _network(remote: str) -> str:
    """What one guesser has: an address, of IPv6 a whole /64."""
    try:
        address = ipaddress.ip_address(remote.partition("%")[0])
    except ValueError:
        return remote
    return remote if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))
