"""An admin service on loopback that answers what a test says, and remembers what it was asked."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    method: str
    target: str
    headers: dict[str, str]
    body: Any


Answer = tuple[int, bytes] | tuple[int, bytes, dict[str, str]]
"""Status and content, and further headers."""


@dataclass(slots=True)
class FakeAdmin:
    """`answer` answers each request."""

    answer: Callable[[Asked], Answer]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)


def as_json(status: int, value: object) -> tuple[int, bytes]:
    return status, orjson.dumps(value)


@contextmanager
def serving(answer: Callable[[Asked], Answer]) -> Iterator[FakeAdmin]:
    admin = FakeAdmin(answer)

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            content = self.rfile.read(size)
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers, orjson.loads(content) if content else None)
            admin.asked.append(asked)
            status, body, *further = admin.answer(asked)
            self.send_response(status)
            for name, value in further[0].items() if further else ():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Says nothing: tests look at stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    admin.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield admin
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
