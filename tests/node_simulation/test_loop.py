"""The simulated event loop keeps asyncio's promises, in virtual time."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.node_simulation.clocks import MachineClock
from tests.node_simulation.loop import ProcessKilledError, SimLoop
from tests.simulation.clock import VirtualClock


class Stage:
    """One loop in a world of its own."""

    def __init__(self, rate_ppm: int = 1_000_000) -> None:
        self.world = VirtualClock()
        self.clock = MachineClock(1_000, rate_ppm)
        self.errors: list[BaseException] = []
        self.loop = SimLoop(self.world, self.clock, self.errors.append)  # type: ignore[abstract]

    def run(self, main: Coroutine[Any, Any, Any], until_ms: int = 1_000_000) -> "asyncio.Task[Any]":
        tasks: list[asyncio.Task[Any]] = []
        self.loop.call_soon(lambda: tasks.append(self.loop.create_task(main)))
        self.run_until(until_ms)
        return tasks[0]

    def run_until(self, at_ms: int) -> None:
        while self.world.run_next(1_000 * at_ms):
            pass


def test_timers_fire_in_order_and_sleep_costs_no_time() -> None:
    stage = Stage()
    order: list[int] = []

    async def main() -> float:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        loop.call_later(2.0, order.append, 2)
        loop.call_later(1.0, order.append, 1)
        loop.call_later(0.5, order.append, 0).cancel()
        await asyncio.sleep(3_600)
        return loop.time() - begin

    assert stage.run(main(), 10_000_000).result() == pytest.approx(3_600, abs=0.001)
    assert order == [1, 2]


@pytest.mark.parametrize(("rate_ppm", "world_ms"), [(1_000_000, 1_000), (1_100_000, 909), (900_000, 1_111)])
def test_fast_and_slow_clocks(rate_ppm: int, world_ms: int) -> None:
    stage = Stage(rate_ppm)
    ends: list[int] = []

    async def main() -> None:
        await asyncio.sleep(1.0)
        ends.append(stage.world.now_us // 1_000)

    stage.run(main())
    assert ends == [pytest.approx(world_ms, abs=1)]


def test_timeouts_cancellation_and_queues_work() -> None:
    async def main() -> list[str]:
        said: list[str] = []
        try:
            async with asyncio.timeout(0.1):
                await asyncio.sleep(1.0)
        except TimeoutError:
            said.append("late")
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        producer = asyncio.create_task(queue.put(7))
        said.append(str(await queue.get()))
        await producer
        sleeper = asyncio.create_task(asyncio.sleep(9))
        await asyncio.sleep(0)
        sleeper.cancel()
        results = await asyncio.gather(sleeper, return_exceptions=True)
        said.append(type(results[0]).__name__)
        return said

    assert Stage().run(main()).result() == ["late", "7", "CancelledError"]


def test_jobs_of_one_executor_run_one_after_the_other_between_turns() -> None:
    stage = Stage()
    order: list[tuple[int, object]] = []
    executor = object()

    async def main() -> list[int]:
        def job(number: int) -> int:
            order.append((number, asyncio._get_running_loop()))
            return number

        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(executor, job, number) for number in range(3)]  # type: ignore[arg-type]
        assert not order
        return list(await asyncio.gather(*jobs, asyncio.to_thread(job, 9)))

    assert stage.run(main()).result() == [0, 1, 2, 9]
    assert [number for number, _ in order if number != 9] == [0, 1, 2]
    assert {loop for _, loop in order} == {None}


def test_job_that_fails_raises_where_it_is_awaited() -> None:
    async def main() -> str:
        try:
            await asyncio.to_thread(int, "x")
        except ValueError:
            return "raised"
        return "not raised"

    assert Stage().run(main()).result() == "raised"


def test_killed_process_does_nothing_more_and_leaves_no_warning() -> None:
    stage = Stage()
    said: list[object] = []

    async def main() -> None:
        try:
            said.append("begins")
            await asyncio.sleep(1.0)
            said.append("goes on")
        finally:
            asyncio.get_running_loop().call_soon(said.append, "cleans up")

    task = stage.run(main(), 500)
    stage.loop.kill()
    stage.loop.bury()
    stage.run_until(5_000)
    assert said == ["begins"]
    assert not task.done()
    assert stage.errors == []


def test_kill_in_the_midst_of_a_callback_ends_the_turn() -> None:
    stage = Stage()
    said: list[object] = []

    def die() -> None:
        stage.loop.kill()
        raise ProcessKilledError

    stage.loop.call_soon(said.append, 1)
    stage.loop.call_soon(die)
    stage.loop.call_soon(said.append, 2)
    stage.run_until(10)
    assert said == [1]
    assert stage.errors == []


@pytest.mark.parametrize(("is_suspended", "seen_s"), [(False, 10.0), (True, 1.0)])
def test_stopped_process_finds_its_timers_due_and_a_suspended_machine_its_clock_late(
    is_suspended: bool, seen_s: float
) -> None:
    stage = Stage()

    async def main() -> float:
        begin = asyncio.get_running_loop().time()
        await asyncio.sleep(1.0)
        return asyncio.get_running_loop().time() - begin

    task = stage.run(main(), 500)
    if is_suspended:
        stage.clock.stall(stage.world.now_us)
    stage.loop.pause()
    stage.run_until(10_000)
    assert not task.done()
    if is_suspended:
        stage.clock.go_on(stage.world.now_us)
    stage.loop.resume()
    stage.run_until(20_000)
    assert task.result() == pytest.approx(seen_s, abs=0.01)


def test_exception_nobody_waits_for_fails_the_run() -> None:
    def broken() -> None:
        raise ValueError("broken")

    stage = Stage()
    stage.loop.call_soon(broken)
    stage.run_until(10)
    assert [type(error.__cause__) for error in stage.errors] == [ValueError]


def test_wall_clock_jumps_and_monotonic_one_does_not() -> None:
    clock = MachineClock()
    before = clock.wall_ms(5_000)
    clock.jump(-3_600_000)
    assert clock.wall_ms(5_000) == before - 3_600_000
    assert clock.monotonic_us(5_000) == 5_000
