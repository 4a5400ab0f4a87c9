"""A clock that only moves when somebody sleeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from rocketmq_spark.client import cluster as backoff
from tests.unit.spark.client.server import Answer, Server


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time as `Backoff` sees it."""
    fake = Clock()
    monkeypatch.setattr(backoff, "time", SimpleNamespace(monotonic=lambda: fake.now_s, sleep=fake.sleep))
    return fake


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Server]]:
    """Starts servers; all are closed at the end."""
    servers: list[Server] = []

    def start(answer: Answer) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
