"""A clock that only moves when somebody sleeps, or a test moves it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rocketmq_spark.client import cluster as backoff
from rocketmq_spark.source import data_loss as losses
from rocketmq_spark.source import data_loss as removals
from rocketmq_spark.source import stream_reader
from rocketmq_spark.source import subscription as ends


class Clock:
    """Seconds since 1970, as every module sees them that plans a stream."""

    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def now_ns(self) -> int:
        return round(self.now_s * 1e9)

    @property
    def now_ms(self) -> int:
        return self.now_ns() // 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return fake_clock(monkeypatch)


def fake_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    time = SimpleNamespace(
        monotonic=lambda: fake.now_s, monotonic_ns=fake.now_ns, time_ns=fake.now_ns, sleep=fake.sleep
    )
    for module in (backoff, ends, losses, removals, stream_reader):
        monkeypatch.setattr(module, "time", time)
    return fake
