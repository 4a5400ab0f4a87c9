"""A deadline that passed while the event loop was held: what waits in the sockets is read first."""

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from dledger.server import LATE_MS, POLL_S, DeadlineTimer

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Held:
    """A node of which only the order of events counts: its turns, and what it reads."""

    def __init__(self, held_ms: int) -> None:
        self.now_ms = 1_000
        self.deadline_ms = 1_001
        self.order: list[str] = []
        self._held_ms = held_ms
        self._ended = asyncio.Event()
        self._timer = DeadlineTimer(lambda: self.now_ms, lambda: self.deadline_ms, self._schedule_turn)

    async def run(self) -> None:
        """Hold the loop beyond the deadline, while a heartbeat arrives; wait for the turn that is due."""
        loop = asyncio.get_running_loop()
        (reading, peer), (triggered, trigger) = socket.socketpair(), socket.socketpair()

        def read() -> None:
            reading.recv(1)
            self.order.append("heartbeat")

        def hold() -> None:
            triggered.recv(1)
            peer.send(b"h")
            self.now_ms += self._held_ms
            self._schedule_turn()  # another one's message had arrived before

        self._timer.set(self.now_ms, 0)
        loop.add_reader(reading, read)
        loop.add_reader(triggered, hold)
        trigger.send(b"t")
        await asyncio.wait_for(self._ended.wait(), 10)
        for each in (reading, triggered):
            loop.remove_reader(each)
        for each in (reading, peer, triggered, trigger):
            each.close()

    def _schedule_turn(self) -> None:
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        is_due = self.now_ms >= self._timer.due_ms and self._timer.may_act(self.now_ms)
        if is_due and not self._ended.is_set():
            self.order.append("deadline")
            self._ended.set()


def order_of(make_loop: Callable[[], asyncio.AbstractEventLoop], held_ms: int) -> list[str]:
    async def main() -> list[str]:
        held = Held(held_ms)
        await held.run()
        return held.order

    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(main())


@pytest.mark.parametrize("make_loop", LOOPS.values(), ids=LOOPS)
def test_a_loop_that_was_held_reads_before_a_deadline_counts(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    assert order_of(make_loop, LATE_MS + 2) == ["heartbeat", "deadline"]


def test_a_deadline_in_time_waits_for_nothing() -> None:
    assert order_of(uvloop.new_event_loop, 2)[0] == "deadline"


async def test_a_deadline_that_moved_while_the_sockets_were_read_is_not_due() -> None:
    woken: list[int] = []
    now_ms, deadline_ms = [1_000], [1_001]
    timer = DeadlineTimer(lambda: now_ms[0], lambda: deadline_ms[0], lambda: woken.append(now_ms[0]))
    timer.set(1_000, 0)
    now_ms[0] += 500
    assert not timer.may_act(now_ms[0])
    deadline_ms[0] = 10_000  # a heartbeat was among it
    read_again = asyncio.Event()
    asyncio.get_running_loop().call_later(3 * POLL_S, read_again.set)
    await read_again.wait()
    assert woken == []
    assert timer.due_ms == 10_000
    timer.stop()
