"""Loops that stand still at any await, and sockets that are closed without a call, stop no node."""

import asyncio
from typing import Any

import pytest

from tests.node_simulation.loop import SimLoop
from tests.node_simulation.machine import Machine
from tests.node_simulation.script import FILES, PAUSE_S, Client, Script
from tests.node_simulation.seeds import run_many
from tests.node_simulation.stalls import draw_stalls
from tests.node_simulation.test_loop import Stage
from tests.node_simulation.test_node_simulation import check

STALL_US = 1_200_000
"""Longer than a dial may take."""
STALLING_SEEDS = 5


# -- the loop


def test_what_is_due_after_a_stall_comes_before_what_was_ready() -> None:
    stage = Stage()
    said: list[str] = []

    def stall() -> None:
        said.append("stall")
        stage.loop.call_soon(said.append, "ready")
        stage.loop.stand_still(2_000_000)

    stage.loop.call_soon(stall)
    stage.loop.call_soon(said.append, "of the same turn")
    stage.loop.call_later(1.5, said.append, "timer")
    stage.loop.call_later(1.0, said.append, "timer before it")
    stage.loop.call_later(3.0, said.append, "later")
    stage.run_until(1_900)
    assert said == ["stall"]
    stage.run_until(2_100)
    assert said == ["stall", "timer before it", "timer", "of the same turn", "ready"]
    stage.run_until(4_000)
    assert said[-1] == "later"


def test_a_loop_that_is_killed_or_stopped_while_it_stands_still() -> None:
    stage = Stage()
    said: list[str] = []
    stage.loop.call_soon(lambda: stage.loop.stand_still(1_000_000))
    stage.loop.call_soon(said.append, "goes on")
    stage.run_until(500)
    stage.loop.pause()
    stage.run_until(2_000)
    assert said == []
    stage.loop.resume()
    stage.run_until(2_100)
    assert said == ["goes on"]
    stage.loop.call_soon(lambda: stage.loop.stand_still(1_000_000))
    stage.loop.call_soon(said.append, "never")
    stage.run_until(2_500)
    stage.loop.kill()
    stage.run_until(9_000)
    assert said == ["goes on"]


class Dialled(asyncio.Protocol):
    """Remembers its transport, and whether it heard that the connection is lost."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


def test_a_dial_given_up_behind_its_first_call_is_closed_as_by_uvloop() -> None:
    """See tests/unit/dledger/test_transport_stalls.py for uvloop itself."""
    with Script() as script:
        dialled = Dialled()

        async def dial(_: Client) -> bool:
            loop = asyncio.get_running_loop()
            script.world.network.after_connecting = lambda stalled: stalled.stand_still(STALL_US)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await loop.create_connection(lambda: dialled, script.leader().ip, 10911)
            script.world.network.after_connecting = lambda stalled: None
            await asyncio.sleep(1.0)
            assert not dialled.transport.is_closing()
            assert not dialled.is_lost
            for use in (lambda: dialled.transport.write(b"x"), dialled.transport.set_write_buffer_limits):
                with pytest.raises(RuntimeError, match="the handler is closed"):
                    use()
            dialled.transport.abort()
            dialled.transport.close()
            await asyncio.sleep(1.0)
            assert not dialled.is_lost
            return True

        assert script.client("dials", dial)


# -- scripts


async def send_on_and_on(client: Client) -> None:
    while True:
        await client.send()
        await asyncio.sleep(PAUSE_S)


def stall_dials(script: Script, machine: Machine, times: int) -> list[str]:
    """The machine's loop stands still in its next dials; returns what says when it did."""
    stalled: list[str] = []

    def after_connecting(loop: SimLoop) -> None:
        if machine.process is not None and loop is machine.process.loop and len(stalled) < times:
            stalled.append(loop.name)
            loop.stand_still(STALL_US)

    script.world.network.after_connecting = after_connecting
    return stalled


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_node_whose_loop_stands_still_while_it_dials_goes_on(is_leader: bool) -> None:
    """The peer comes back, the node dials it, and its loop stands still behind the first call."""
    with Script() as script:
        sender = script.start_client("sender", send_on_and_on)
        script.run(500)
        victim, dead = script.leader(), script.followers()[0]
        if not is_leader:
            victim = script.followers()[1]
        lives = {name: machine.lives for name, machine in script.world.nodes.items() if machine is not dead}
        script.kill(dead)
        stalled = stall_dials(script, victim, times=3)
        dead.start()
        script.until(lambda: len(stalled) == 3, "three dials in vain")
        before = len(sender.acknowledged)
        script.until(lambda: len(sender.acknowledged) > before + 20, "sends after it")
        assert {name: script.world.nodes[name].lives for name in lives} == lives, "no node stopped"
        script.finish()


@pytest.mark.parametrize("side", ["dialled", "accepted", "all"])
def test_sockets_closed_without_a_call_are_found_and_replaced(side: str) -> None:
    with Script(config=FILES | {"register_period_ms": 1_000}) as script:
        sender = script.start_client("sender", send_on_and_on)
        script.run(500)
        nodes = script.world.nodes.values()
        for machine in nodes:
            for endpoint in list(machine.site.endpoints):
                is_dialled = endpoint.local[1] >= 32_768
                if side == "all" or is_dialled == (side == "dialled"):
                    endpoint.close_silently()
        before = len(sender.acknowledged)
        script.until(lambda: len(sender.acknowledged) > before + 20, "sends after it")
        assert {machine.lives for machine in nodes} == {1}, "no node stopped"
        script.finish()


# -- seeds


def test_stalls_of_a_seed_are_always_the_same() -> None:
    assert draw_stalls(7) == draw_stalls(7)
    assert len({draw_stalls(seed) for seed in range(50)}) > 10


def test_base_seeds_hold_while_loops_stand_still() -> None:
    faults = check(run_many(range(STALLING_SEEDS), is_stalling=True))
    assert {"stall", "stall in a dial", "closed without a call"} <= faults.keys()
