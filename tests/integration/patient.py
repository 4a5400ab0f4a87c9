"""A client of the admin service that keeps to its rate: expensive queries are answered 429 beyond it."""

from __future__ import annotations

import time

import httpx


class Patient(httpx.HTTPTransport):
    """Asks again when it is told that it asks too much: who waits for something does."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        while answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
            answer.read()
            time.sleep(int(answer.headers["Retry-After"]))
            answer = super().handle_request(request)
        return answer
