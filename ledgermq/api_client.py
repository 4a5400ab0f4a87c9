"""Calls to the admin service over HTTP, for `--admin URL`. Standard library only, for a fast import."""

import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import sleep
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import orjson

from ledgermq.errors import NOT_DONE, WRONG_USAGE, UserError
from sockets.dialled import is_usable, nothing_listens

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
TIMEOUT_S: Final = 60.0
PREFIX: Final = "/api/v1"
WAIT_S_MAX: Final = 5
"""The longest time (s) in one Retry-After header that a command waits without being asked."""
WAITS_S_MAX: Final = 15.0
"""The longest time (s) that all such waits of one command may take together."""
_USAGE_STATUSES: Final = frozenset({400, 422})
_TOO_MANY: Final = 429
_SECONDS_CHARS_MAX: Final = 9


class ProblemAnswerError(UserError):
    """The service refused the request; `result` is the preview or outcome in its answer."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        detail = str(problem.get("detail") or problem.get("title") or f"the admin service answered {status}")
        super().__init__(detail, WRONG_USAGE if status in _USAGE_STATUSES else NOT_DONE)
        self.status = status
        result = problem.get("result")
        self.result: dict[str, Any] | None = result if isinstance(result, dict) else None


@dataclass(slots=True)
class Patience:
    """The time that all calls of one command together may still wait for an overloaded service."""

    left_s: float = WAITS_S_MAX

    def wait(self, seconds: int | None) -> bool:
        """Wait and return True; return False if the time is too long, or None (the service named no time)."""
        if seconds is None or seconds > min(WAIT_S_MAX, self.left_s):
            return False
        self.left_s -= seconds
        sleep(seconds)
        return True


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    content: bytes
    retry_after: str | None

    @property
    def retry_after_s(self) -> int | None:
        """The seconds in the Retry-After header. None for a date, which our service never sends."""
        text = (self.retry_after or "").strip()
        is_number = text.isascii() and text.isdigit() and len(text) <= _SECONDS_CHARS_MAX
        return max(1, int(text)) if is_number else None


class _Connection(http.client.HTTPConnection):
    """A connection that is refused if its socket is connected to itself (see `sockets.dialled`)."""

    def connect(self) -> None:
        super().connect()
        if not is_usable(self.sock):
            self.close()
            raise nothing_listens()


class _SecureConnection(http.client.HTTPSConnection, _Connection):
    """In this order of base classes `_Connection` checks the TCP connection before the TLS handshake."""


@dataclass(frozen=True, slots=True)
class ApiClient:
    """A client of one service; `token` is never printed. A request that is answered with 429 was not
    executed, so it is sent again after the time in Retry-After.
    """

    url: str
    token: str | None = None
    patience: Patience = field(default_factory=Patience)

    def call(
        self, method: str, path: str, query: Mapping[str, object] | None = None, body: object | None = None
    ) -> Any:
        """Return the answer's JSON. `path` is relative to `/api/v1`; a None in the query is left out.

        Raises: UserError; ProblemAnswerError where the service gives the reason.
        """
        return self._value(self._exchange(method, path, query, body))

    def text(self, path: str, query: Mapping[str, object] | None = None) -> str:
        """GET an answer that is text, not JSON. Raises: as `call`."""
        answer = self._exchange("GET", path, query, None)
        if not 200 <= answer.status < 300:
            self._value(answer)
        return answer.content.decode("utf-8", "replace")

    def _exchange(
        self, method: str, path: str, query: Mapping[str, object] | None, body: object | None
    ) -> _Answer:
        """Return the answer, after retries the last one. Raises: UserError."""
        answer = self._ask(method, path, query, body)
        while answer.status == _TOO_MANY and self.patience.wait(answer.retry_after_s):
            answer = self._ask(method, path, query, body)
        return answer

    def _ask(
        self, method: str, path: str, query: Mapping[str, object] | None, body: object | None
    ) -> _Answer:
        headers = {"Accept": "application/json", "User-Agent": "ledgermq"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        data = None if body is None else orjson.dumps(body)
        if data is not None:
            headers["Content-Type"] = "application/json"
        if method != "GET":
            headers["X-LedgerMQ-Request"] = "1"
        connection, base = self._connection()
        try:
            connection.request(method, f"{base}{PREFIX}{path}{_query(query)}", data, headers)
            answer = connection.getresponse()
            content = answer.read(ANSWER_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UserError(f"the admin service {self._shown()} gives no answer: {_words(error)}.") from error
        finally:
            connection.close()
        if len(content) > ANSWER_BYTES_MAX:
            raise UserError(f"the admin service answered more than {ANSWER_BYTES_MAX} bytes.")
        return _Answer(answer.status, content, answer.getheader("Retry-After"))

    def _value(self, answer: _Answer) -> Any:
        try:
            value = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            if answer.status != _TOO_MANY:
                raise UserError(
                    f"{self._shown()} answered {answer.status} without JSON: is it a LedgerMQ admin service?"
                ) from None
            value = {}
        if 200 <= answer.status < 300:
            return value
        if answer.status == _TOO_MANY:
            raise self._too_many(answer, value)
        raise ProblemAnswerError(answer.status, value if isinstance(value, dict) else {})

    def _too_many(self, answer: _Answer, value: object) -> ProblemAnswerError:
        """The error when the wait was too long already, or would become too long."""
        problem = value if isinstance(value, dict) else {}
        said = str(problem.get("detail") or "Too many requests.")
        seconds = answer.retry_after_s
        if seconds is None:
            rest = "Try again later."
        elif seconds > WAIT_S_MAX:
            rest = f"Try again in {seconds} s: a command waits {WAIT_S_MAX} s at most by itself."
        else:
            waited_s = WAITS_S_MAX - self.patience.left_s
            rest = f"It was still busy after {waited_s:g} s of waiting: try again later."
        return ProblemAnswerError(_TOO_MANY, {**problem, "detail": f"{said} {rest}"})

    def _connection(self) -> tuple[http.client.HTTPConnection, str]:
        """Raises: UserError when `--admin` is not a URL."""
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port, parts = None, None, urlsplit("")
        if parts.scheme not in ("http", "https") or not host:
            raise UserError("--admin must be a URL such as http://127.0.0.1:8080.", WRONG_USAGE)
        base = parts.path.rstrip("/")
        if parts.scheme == "http":
            return _Connection(host, port, timeout=TIMEOUT_S), base
        context = ssl.create_default_context()
        return _SecureConnection(host, port, timeout=TIMEOUT_S, context=context), base

    def _shown(self) -> str:
        """The URL without credentials (before an @)."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _query(query: Mapping[str, object] | None) -> str:
    """A list becomes the same name several times, once for each value."""
    given = [
        (name, _text(each))
        for name, value in (query or {}).items()
        if value is not None
        for each in (value if isinstance(value, list) else [value])
    ]
    return f"?{urlencode(given)}" if given else ""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
