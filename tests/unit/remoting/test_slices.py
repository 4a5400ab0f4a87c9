"""Long work in slices: order, turns of owners, errors, cancelled work; handlers whose answer it is."""

import asyncio
from functools import partial

import pytest

from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.router import Router
from remoting.slices import SlicedWork, Steps, finish, one_step
from tests.unit.remoting.fakes import arrived, connect


def _counting(name: str, steps: int, done: list[str]) -> Steps[str]:
    for number in range(steps):
        done.append(f"{name}{number}")
        yield
    return name


def _one_step_at_a_time(running_max: int = 4) -> SlicedWork:
    """Every slice has one step."""
    return SlicedWork(slice_s=-1, running_max=running_max)


async def test_short_work_is_done_at_once() -> None:
    done: list[str] = []
    result = SlicedWork().start(_counting("a", 3, done), "host")
    assert result.done()
    assert (result.result(), done) == ("a", ["a0", "a1", "a2"])
    assert finish(_counting("b", 1, done)) == "b"


async def test_each_turn_of_the_loop_has_one_slice() -> None:
    done: list[str] = []
    result = _one_step_at_a_time().start(_counting("a", 3, done), "host")
    assert done == ["a0"]
    await asyncio.sleep(0)
    assert done == ["a0", "a1"]
    assert await result == "a"


async def test_short_work_that_is_much_together_shares_the_slices() -> None:
    """As when many handlers have waited for the same thing."""
    done: list[str] = []
    work = _one_step_at_a_time()
    results = [work.start(one_step(partial(done.append, name)), name) for name in "abcd"]
    assert done == ["a"]
    await asyncio.sleep(0)
    assert done == ["a", "b"]
    await asyncio.gather(*results)
    assert done == ["a", "b", "c", "d"]
    assert work.start(one_step(lambda: "at once"), "e").done()


async def test_owners_take_turns_and_the_work_of_one_stays_in_order() -> None:
    done: list[str] = []
    work = _one_step_at_a_time()
    results = [work.start(_counting(name, 2, done), name[0]) for name in ("ax", "ay", "bx")]
    assert await asyncio.gather(*results) == ["ax", "ay", "bx"]
    assert done == ["ax0", "ax1", "bx0", "bx1", "ay0", "ay1"]


async def test_work_beyond_the_bound_is_not_begun() -> None:
    done: list[str] = []
    work = _one_step_at_a_time(running_max=1)
    first = work.start(_counting("a", 3, done), "a")
    second = work.start(_counting("b", 1, done), "b")
    await first
    assert done == ["a0", "a1", "a2"]
    assert await second == "b"


async def test_error_ends_only_its_work() -> None:
    def failing() -> Steps[None]:
        yield
        raise ValueError("no")

    work = _one_step_at_a_time()
    failed = work.start(failing(), "a")
    other = work.start(_counting("b", 2, []), "b")
    with pytest.raises(ValueError, match="no"):
        await failed
    assert await other == "b"


async def test_cancelled_work_is_not_continued() -> None:
    done: list[str] = []
    work = _one_step_at_a_time()
    result = work.start(_counting("a", 3, done), "a")
    result.cancel()
    assert await work.start(_counting("b", 1, done), "b") == "b"
    assert done == ["a0", "b0"]


async def test_handler_of_steps_is_answered_when_they_end() -> None:
    def handler(request: RemotingCommand, _: Connection) -> Steps[RemotingCommand]:
        yield
        return success_response(request, remark="after a step")

    router = Router()
    router.register(34, handler)
    connection, transport, _ = connect()
    router.dispatch([arrived(connection, RemotingCommand(34, 7))])
    await asyncio.sleep(0)
    assert [(answer.opaque, answer.remark) for answer in transport.sent()] == [(7, "after a step")]


async def test_steps_beyond_the_bound_of_tasks_are_refused_before_they_begin() -> None:
    def handler(request: RemotingCommand, _: Connection) -> Steps[RemotingCommand]:
        raise AssertionError("begun")
        yield

    router = Router(tasks_max=0)
    router.register(34, handler)
    connection, transport, _ = connect()
    router.dispatch([arrived(connection, RemotingCommand(34, 7))])
    await asyncio.sleep(0)
    assert [answer.code for answer in transport.sent()] == [2]
