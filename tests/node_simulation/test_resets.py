"""Offset resets that meet, while a consumer runs that stores where it is every few milliseconds and goes
elsewhere only when it is sent there: the last acknowledged reset counts, whichever node leads.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from remoting.headers.admin import ResetOffsetRequestHeader
from remoting.headers.consume import UpdateConsumerOffsetRequestHeader
from tests.histories.operations import Queue
from tests.node_simulation.deleting import context_of, is_serving
from tests.node_simulation.script import TOPIC, Client, Script
from tests.node_simulation.topic_client import HAS_SUBSCRIPTION, pull_header

SEEDS = int(os.environ.get("LEDGERMQ_RESET_SEEDS", "1"))
GROUP = "G"
MESSAGES = 12
MAY_BE_HELD = 2
PAUSE_S = 0.003
QUIET_MS = 1_500


@dataclass(slots=True)
class Place:
    """Where the consumer is in queue 0, and what became of an operator's resets."""

    offset: int = MESSAGES
    stored: int = 0
    acknowledged: list[int] = field(default_factory=list)


def consumer(place: Place) -> Callable[[Client], asyncio.Future[None]]:
    async def run(client: Client) -> None:
        remoting = RemotingClient()
        while True:
            address = await client.leader()
            if address is not None:
                await _pull(remoting, address, place)
                await _store(remoting, address, place)
            await asyncio.sleep(PAUSE_S)

    return run  # type: ignore[return-value]


async def _pull(remoting: RemotingClient, address: str, place: Place) -> None:
    header = replace(
        pull_header(Queue(TOPIC, 0), place.offset),
        consumer_group=GROUP,
        sys_flag=HAS_SUBSCRIPTION | MAY_BE_HELD,
        suspend_timeout_ms=20,
    )
    answer = await _ask(
        remoting, address, RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=header.ext_fields())
    )
    if answer is not None and answer.code == ResponseCode.PULL_OFFSET_MOVED:
        place.offset = int(answer.ext_fields["nextBeginOffset"])


async def _store(remoting: RemotingClient, address: str, place: Place) -> None:
    header = UpdateConsumerOffsetRequestHeader(GROUP, TOPIC, 0, place.offset)
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    answer = await _ask(remoting, address, RemotingCommand(code, ext_fields=header.ext_fields()))
    place.stored += answer is not None and answer.code == ResponseCode.SUCCESS


async def _ask(remoting: RemotingClient, address: str, command: RemotingCommand) -> RemotingCommand | None:
    try:
        return await remoting.invoke(address, command, 1.0)
    except RemotingError:
        return None


def resets(place: Place, targets: list[int], apart_s: float) -> Callable[[Client], asyncio.Future[None]]:
    """One operator after the other, who do not wait for each other's answer."""

    async def reset(client: Client, address: str, number: int) -> None:
        await asyncio.sleep(number * apart_s)
        header = ResetOffsetRequestHeader(TOPIC, GROUP, -1, True, 0, targets[number])
        answer = await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, address)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            place.acknowledged.append(targets[number])

    async def run(client: Client) -> None:
        address = await client.leader()
        assert address is not None
        await asyncio.gather(*(reset(client, address, number) for number in range(len(targets))))

    return run  # type: ignore[return-value]


async def _fill(client: Client) -> None:
    for _ in range(4 * MESSAGES):
        await client.send(tries_max=4)


def begin(script: Script, place: Place) -> None:
    script.client("fill", _fill)
    queue = context_of(script.leader()).log.queues.get(TOPIC, 0)
    assert queue is not None
    assert queue.max_offset >= MESSAGES, "each queue gets its half, more or less"
    script.start_client("consumer", consumer(place))
    script.until(lambda: place.stored > 3, "the consumer runs")


def stored_on(script: Script) -> set[int | None]:
    nodes = [machine for machine in script.world.nodes.values() if is_serving(machine)]
    return {context_of(machine).state.offsets.get(GROUP, TOPIC, 0) for machine in nodes}


def settle(script: Script, place: Place, allowed: set[int]) -> None:
    """The consumer is at one of these, all nodes know that, and so it stays."""

    def is_there() -> bool:
        return place.offset in allowed and stored_on(script) == {place.offset}

    script.until(is_there, f"one of {allowed}, not {place.offset}: {stored_on(script)}")
    script.run(QUIET_MS)
    assert is_there(), (allowed, place.offset, stored_on(script))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_consumer_ends_where_the_last_of_resets_that_meet_sent_it(seed: int) -> None:
    place, rng = Place(), random.Random(seed)
    with Script(seed=seed) as script:
        begin(script, place)
        for number in range(5):
            targets = rng.sample([offset for offset in range(MESSAGES) if offset != place.offset], 3)
            place.acknowledged.clear()
            script.client(f"operator{number}", resets(place, targets, rng.choice((0, 0.001, 0.002, 0.005))))
            assert sorted(place.acknowledged) == sorted(targets)
            settle(script, place, {place.acknowledged[-1]})
        script.finish()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_resets_that_meet_hold_when_their_leader_dies(seed: int) -> None:
    """Of those that were not acknowledged each may be in the log or not; one that was is passed over only for
    a later one.
    """
    place, rng = Place(), random.Random(seed)
    with Script(seed=seed) as script:
        begin(script, place)
        for number in range(5):
            before = place.offset
            targets = rng.sample([offset for offset in range(MESSAGES) if offset != before], 3)
            place.acknowledged.clear()
            operator = script.start_client(f"operator{number}", resets(place, targets, 0.002))
            script.run(rng.randint(1, 25))
            dead = script.leader()
            script.kill(dead)
            script.until(lambda operator=operator: operator.is_done, "the operators have their answers")  # type: ignore[misc]
            script.until_writable()
            dead.start()
            script.until(lambda: all(map(is_serving, script.world.nodes.values())), "all nodes serve")
            last = targets.index(place.acknowledged[-1]) if place.acknowledged else 0
            settle(script, place, set(targets[last:]) | ({before} if not place.acknowledged else set()))
        script.finish()
