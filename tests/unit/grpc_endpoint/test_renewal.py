"""Messages are kept invisible until they end, their client has gone, or time is up."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

from grpc_endpoint import renewal
from grpc_endpoint.messaging_pb2 import Code
from grpc_endpoint.renewal import Renewals
from grpc_endpoint.status import StatusError
from remoting.pop_receipts import ReceiptHandle
from tests.support.polling import until


def due_handle(offset: int = 7) -> ReceiptHandle:
    """Of a message that is visible again in less than AHEAD_MS."""
    now_ms = time.time_ns() // 1_000_000
    return ReceiptHandle(5, now_ms, renewal.AHEAD_MS - 1, 0, "0", "broker-a", 3, offset, 4_711)


class Broker:
    """Changes invisible times, or refuses."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str, int, int]] = []
        self.refuses = False
        self.is_soon_due = False
        """Each renewal is followed by the next at once."""

    async def change(self, group: str, topic: str, handle: ReceiptHandle, time_ms: int) -> ReceiptHandle:
        self.changes.append((group, topic, handle.offset, time_ms))
        if self.refuses:
            raise StatusError(Code.INVALID_RECEIPT_HANDLE, "not valid")
        if self.is_soon_due:
            return due_handle(handle.offset)
        return handle._replace(pop_time_ms=time.time_ns() // 1_000_000, invisible_ms=time_ms)

    async def pause(self, group: str, attempts: int) -> int:
        return 30_000 + attempts


async def run_until(renewals: Renewals, broker: Broker, count: int) -> None:
    running = asyncio.ensure_future(renewals.run())
    await until(lambda: len(broker.changes) >= count)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_a_message_is_renewed_and_ends_by_the_handle_that_its_client_has() -> None:
    broker = Broker()
    renewals = Renewals(broker.change, broker.pause)
    first = due_handle()
    renewals.add("client", "billing", "orders", first, 0)
    await run_until(renewals, broker, 1)
    assert broker.changes == [("billing", "orders", 7, renewal.INVISIBLE_MS)]
    newest = renewals.take("client", "billing", first)
    assert newest.invisible_ms == renewal.INVISIBLE_MS
    assert len(renewals) == 0
    assert renewals.take("client", "billing", first) == first, "it is not renewed any more"


async def test_who_ends_a_message_waits_for_its_renewal() -> None:
    """The older handle means nothing to the broker any more."""
    broker, may_go = Broker(), asyncio.Event()

    async def slow(group: str, topic: str, handle: ReceiptHandle, time_ms: int) -> ReceiptHandle:
        changed = await broker.change(group, topic, handle, time_ms)
        await may_go.wait()
        return changed

    renewals = Renewals(slow, broker.pause)
    first = due_handle()
    renewals.add("client", "billing", "orders", first, 0)
    running = asyncio.ensure_future(renewals.run())
    await until(lambda: len(broker.changes) == 1)
    ending = asyncio.ensure_future(ended(renewals, first))
    await asyncio.sleep(0)
    may_go.set()
    assert (await ending).invisible_ms == renewal.INVISIBLE_MS
    assert len(renewals) == 0
    running.cancel()


async def ended(renewals: Renewals, handle: ReceiptHandle, error: Exception | None = None) -> ReceiptHandle:
    async with renewals.ending("client", "billing", handle) as newest:
        if error is not None:
            raise error
        return newest


async def test_what_could_not_be_ended_is_known_until_it_is_visible_again() -> None:
    """The client tries again with the handle that it has; one that does not loses no message."""
    broker = Broker()
    renewals = Renewals(broker.change, broker.pause)
    first = due_handle()
    renewals.add("client", "billing", "orders", first, 0)
    await run_until(renewals, broker, 1)
    with pytest.raises(StatusError, match="no leader"):
        await ended(renewals, first, StatusError(Code.PROXY_TIMEOUT, "no leader"))
    assert (await ended(renewals, first)).invisible_ms == renewal.INVISIBLE_MS
    assert len(renewals) == 0


async def test_what_could_not_be_ended_is_renewed_no_more() -> None:
    broker = Broker()
    renewals = Renewals(broker.change, broker.pause)
    handle = due_handle()._replace(invisible_ms=0)
    renewals.add("client", "billing", "orders", handle, 0)
    with pytest.raises(StatusError):
        await ended(renewals, handle, StatusError(Code.PROXY_TIMEOUT, "no leader"))
    running = asyncio.ensure_future(renewals.run())
    await until(lambda: len(renewals) == 0)
    assert broker.changes == []
    running.cancel()


async def test_no_renewal_outlives_a_dead_endpoint_by_more_than_a_minute() -> None:
    broker = Broker()
    broker.is_soon_due = True
    renewals = Renewals(broker.change, broker.pause)
    renewals.add("client", "billing", "orders", due_handle(), 0)
    await run_until(renewals, broker, 10)
    assert {invisible_ms for _, _, _, invisible_ms in broker.changes} == {60_000}


async def test_what_is_not_due_is_left_alone() -> None:
    broker = Broker()
    renewals = Renewals(broker.change, broker.pause)
    renewals.add("client", "billing", "orders", due_handle()._replace(invisible_ms=3_600_000), 0)
    renewals.add("client", "billing", "orders", due_handle(8), 0)
    await run_until(renewals, broker, 1)
    assert [offset for _, _, offset, _ in broker.changes] == [8]


async def test_a_handle_that_the_broker_refuses_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "_FAILED_PAUSE_MS", 0)
    broker = Broker()
    broker.refuses = True
    renewals = Renewals(broker.change, broker.pause)
    renewals.add("client", "billing", "orders", due_handle(), 0)
    await run_until(renewals, broker, renewal.FAILURES_MAX)
    assert len(broker.changes) == renewal.FAILURES_MAX
    assert len(renewals) == 0


async def test_a_message_that_takes_too_long_waits_for_its_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "TOTAL_MAX_MS", 0)
    broker = Broker()
    renewals = Renewals(broker.change, broker.pause)
    renewals.add("client", "billing", "orders", due_handle(), 2)
    await run_until(renewals, broker, 1)
    assert broker.changes == [("billing", "orders", 7, 30_002)]
    assert len(renewals) == 0


async def test_what_a_client_had_is_dropped_with_it() -> None:
    broker = Broker()
    renewals = Renewals(broker.change, broker.pause)
    renewals.add("one", "billing", "orders", due_handle(1), 0)
    renewals.add("two", "billing", "orders", due_handle(2), 0)
    assert [handle.offset for _, _, handle in renewals.drop_client("one")] == [1]
    assert len(renewals) == 1
