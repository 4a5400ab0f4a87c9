"""Simulated users of the admin service: open pages (event streams), and one user who opens list after list.

As sparing as can be: a browser has a machine of its own, this shares the cores of what is measured. Lines on
stdin say when they come and go, `on` and `off`; each is answered by the same line once it is done.

usage: python -m bench.admin_viewers HOST PORT [--pages 10] [--clicks-per-s 1]
"""

from __future__ import annotations

import argparse
import http.client
import selectors
import socket
import sys
import time
from itertools import cycle

ON = "on"
OFF = "off"
PATHS = (
    "/topics",
    "/topics/Bench",
    "/topics/Bench/queues",
    "/consumer-groups",
    "/brokers",
    "/dlq",
    "/audit",
    "/doctor",
    "/history",
)
_CHUNK_BYTES = 1 << 20


class Viewers:
    """They send requests while `is_on`; `run` returns at the end of stdin."""

    def __init__(self, host: str, port: int, pages: int, clicks_per_s: float) -> None:
        self._address = host, port
        self._pages = pages
        self._pause_s = 1 / clicks_per_s
        self._selector = selectors.DefaultSelector()
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        self._streams: list[socket.socket] = []
        self._lists = http.client.HTTPConnection(host, port, timeout=10)
        self._paths = cycle(PATHS)
        self._click_at_s = 0.0

    def run(self) -> None:
        while True:
            wait_s = max(self._click_at_s - time.monotonic(), 0.0) if self._streams else None
            for key, _ in self._selector.select(wait_s):
                if key.data is not None:
                    self._read(key.data)
                elif not self._obey(sys.stdin.readline().strip()):
                    return
            if self._streams and time.monotonic() >= self._click_at_s:
                self._click()

    def _obey(self, word: str) -> bool:
        """False at the end of stdin."""
        if word == ON:
            self._open()
        elif word == OFF:
            self._close()
        else:
            return False
        print(word, flush=True)
        return True

    def _open(self) -> None:
        host, port = self._address
        request = f"GET /api/v1/cluster/events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
        for _ in range(self._pages):
            stream = socket.create_connection(self._address)
            stream.sendall(request)
            self._selector.register(stream, selectors.EVENT_READ, stream)
            self._streams.append(stream)
        self._click_at_s = time.monotonic()

    def _close(self) -> None:
        for stream in self._streams:
            self._selector.unregister(stream)
            stream.close()
        self._streams.clear()

    def _read(self, stream: socket.socket) -> None:
        if not stream.recv(_CHUNK_BYTES):
            raise SystemExit("the admin process ended a stream")

    def _click(self) -> None:
        path = next(self._paths)
        self._lists.request("GET", f"/api/v1{path}")
        answer = self._lists.getresponse()
        answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise SystemExit(f"{path} was answered {answer.status}")
        self._click_at_s += self._pause_s


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--clicks-per-s", type=float, default=1.0)
    arguments = parser.parse_args()
    Viewers(arguments.host, arguments.port, arguments.pages, arguments.clicks_per_s).run()


if __name__ == "__main__":
    main()
