"""How long a request waits for this node to become the leader."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import cast

import pytest

from broker.consume.queue_locks import LockProcessor
from broker.leadership import OUTAGE_MEMORY_S, Readiness
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.errors import RequestError
from tests.support.broker_parts import FakeEngine, make_parts
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog

CLIENTS_LOCK_TIMEOUT_MS = 1_000


class Bench:
    """A node without a leader, whose clock stands still."""

    def __init__(self) -> None:
        self.log, self.engine, self.now_s = FakeLog(is_writable=False), FakeEngine(leader_id=None), 1_000.0
        self.readiness = Readiness(self.log, self.engine, "n0", now_ms=lambda: round(self.now_s * 1000))

    async def is_held(self) -> bool:
        """Whether a request that comes now waits; it is given up then."""
        waiting = asyncio.create_task(self.readiness.wait())
        await asyncio.sleep(0)
        is_held = not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return is_held


async def test_an_election_holds_requests_and_another_leader_does_not() -> None:
    bench = Bench()
    assert await bench.is_held()
    bench.engine.leader_id = "n1"
    assert not await bench.is_held()


async def test_an_outage_longer_than_an_election_holds_nobody() -> None:
    bench = Bench()
    assert await bench.is_held()
    bench.now_s += 1.9
    assert await bench.is_held()
    bench.now_s += 0.2
    assert not await bench.is_held()


async def test_the_next_election_holds_requests_again() -> None:
    bench = Bench()
    assert await bench.is_held()
    bench.now_s += 10
    assert not await bench.is_held()
    bench.engine.term += 1
    assert await bench.is_held()
    bench.now_s += 10
    bench.engine.leader_id = "n1"
    assert not await bench.is_held()
    bench.engine.leader_id = None
    assert await bench.is_held()
    bench.now_s += OUTAGE_MEMORY_S + 1
    assert await bench.is_held(), "a leader may have come and gone unseen"


async def test_a_leader_that_is_not_ready_is_waited_for_and_answers() -> None:
    bench = Bench()
    bench.engine.leader_id = "n0"
    waiting = asyncio.create_task(bench.readiness.wait())
    await asyncio.sleep(0)
    bench.log.set_writable(True)
    assert await waiting


async def test_a_lock_waits_for_less_than_its_client_does(tmp_path: Path) -> None:
    asked_ms: list[int] = []

    class Recorded(Readiness):
        async def wait(self, timeout_ms: int = 0) -> bool:
            asked_ms.append(timeout_ms)
            return False

    bench = Bench()
    core = make_parts(tmp_path, bench.log, bench.engine).core
    readiness = Recorded(bench.log, bench.engine, "n0")
    processor = LockProcessor(core.config, core.log, core.state, core.now_ms, readiness, core.forwarder)
    request = RemotingCommand(RequestCode.LOCK_BATCH_MQ)
    answer = cast("Awaitable[RemotingCommand]", processor.lock(request, FakeConnection().as_connection))
    with pytest.raises(RequestError):
        await answer
    assert 0 < asked_ms[0] < CLIENTS_LOCK_TIMEOUT_MS
