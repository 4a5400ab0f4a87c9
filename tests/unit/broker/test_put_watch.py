"""What is measured of a put, and which puts are told in the log."""

import logging
from time import perf_counter
from typing import Any, cast

import pytest

from broker.monitoring.put_metrics import LINES_PER_S_MAX, REQUESTS_NAMED_MAX, PutMetrics
from broker.send.turn import PlainRun, Turn
from commitlog.log import PutResult, PutStatus
from commitlog.record import Message
from remoting.command import RemotingCommand
from remoting.connection import Connection


class Peer:
    connection_id = 12


def turn_of(count: int, begun_s: float = 0.0) -> Turn:
    """A turn that was begun at that moment, and laid out 1 ms later."""
    requests = [RemotingCommand(310, opaque=70 + n) for n in range(count)]
    messages = [Message("t", 0, b"body") for _ in requests]
    result = PutResult(PutStatus.PUT_OK, [0] * count, [0] * count, 0, 41, 3)
    run = PlainRun(cast("Connection", Peer()), requests, 0, count)
    return Turn([run], messages, 4 * count, result, begun_s=begun_s, laid_out_s=begun_s + 0.001)


def lines(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.name == "broker.monitoring.put_metrics"]


def test_each_step_of_a_put_is_measured_once_however_many_messages_it_has() -> None:
    watch = PutMetrics(slow_ms=0)
    turn = turn_of(300, perf_counter())
    watch.done(turn, turn.laid_out_s + 0.004)
    steps = (watch.append, watch.replicate, watch.ack, watch.messages, watch.size_bytes)
    assert [step.count for step in steps] == [1] * 5
    assert watch.append.sum == pytest.approx(0.001)
    assert watch.replicate.sum == pytest.approx(0.004)
    assert (watch.messages.sum, watch.size_bytes.sum) == (300, 1200)


def test_a_slow_put_is_told_with_its_steps_its_entries_and_its_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = PutMetrics(slow_ms=500)
    watch.done(turn_of(1, perf_counter()), perf_counter())
    turn = turn_of(20, perf_counter() - 2.0)
    watch.done(turn, turn.laid_out_s + 1.5)
    (line,) = lines(caplog)
    assert line.levelno == logging.WARNING
    assert line.getMessage().startswith("slow put: 20 messages from entry 41 of term 3 on: 1.0 ms till laid")
    assert (line.batch, line.batch_term, line.messages, line.unlogged) == (41, 3, 20, 0)
    assert line.requests == [f"12-{70 + n}" for n in range(REQUESTS_NAMED_MAX)]
    assert (line.append_ms, line.replicate_ms) == (pytest.approx(1.0), pytest.approx(1500.0))


def test_a_failed_put_is_told_and_does_not_count_as_a_quick_one(caplog: pytest.LogCaptureFixture) -> None:
    watch = PutMetrics(slow_ms=0)
    watch.failed(turn_of(1, perf_counter()), PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)
    (line,) = lines(caplog)
    assert "failed put (IN_SYNC_REPLICAS_NOT_ENOUGH)" in line.getMessage()
    assert watch.ack.count == 0


def test_a_disk_that_stalls_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.25
    monkeypatch.setattr("broker.monitoring.put_metrics.perf_counter", lambda: now_s)
    watch = PutMetrics(slow_ms=1)
    for _ in range(1_000):
        watch.done(turn_of(1), now_s)
    assert len(lines(caplog)) == LINES_PER_S_MAX
    now_s = 101.25
    watch.done(turn_of(1), now_s)
    assert lines(caplog)[-1].unlogged == 1_000 - LINES_PER_S_MAX
    assert lines(caplog)[-1].getMessage().endswith("; 995 such puts before were not logged")
