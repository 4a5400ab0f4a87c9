"""Queue locks through failovers: at no moment do two consumers both trust a lock of the same queue.

A consumer here does what the stock ones do: it asks every 20 s, waits 1 s for the answer, and trusts it for
30 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson
import pytest

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from tests.node_simulation.script import QUEUES, TOPIC, Client, Script

SECOND_US = 1_000_000
RENEWAL_S = 20.0
ANSWER_LIMIT_S = 1.0
TRUST_US = 30 * SECOND_US
EXPIRY_US = 60 * SECOND_US
Address = Callable[[Client], "asyncio.Future[str | None]"]


@dataclass(slots=True)
class Trust:
    """From when to when (world µs) a consumer trusted its lock of a queue."""

    name: str
    queue_id: int
    begin_us: int
    end_us: int


@dataclass(slots=True)
class Beliefs:
    """What all consumers of a script trusted."""

    spans: list[Trust] = field(default_factory=list)
    asked: int = 0

    def answered(self, name: str, queue_ids: set[int], now_us: int) -> None:
        for queue_id in range(QUEUES):
            last = next(
                (each for each in reversed(self.spans) if (each.name, each.queue_id) == (name, queue_id)),
                None,
            )
            is_on = last is not None and last.end_us >= now_us
            if queue_id in queue_ids and last is not None and is_on:
                last.end_us = now_us + TRUST_US
            elif queue_id in queue_ids:
                self.spans.append(Trust(name, queue_id, now_us, now_us + TRUST_US))
            elif last is not None and is_on:
                last.end_us = now_us

    def of(self, name: str) -> list[Trust]:
        return [each for each in self.spans if each.name == name]

    def check(self) -> None:
        for one in self.spans:
            for other in self.spans:
                if one.name < other.name and one.queue_id == other.queue_id:
                    assert one.end_us < other.begin_us or other.end_us < one.begin_us, (one, other)


def consumer(
    beliefs: Beliefs, client_id: str, *, address: str | None = None, interval_s: float = RENEWAL_S
) -> Callable[[Client], asyncio.Future[None]]:
    """A program that locks all queues for ever, at the node at `address` or at the current leader."""

    async def run(client: Client) -> None:
        while True:
            await ask_for_locks(client, beliefs, client_id, address)
            await asyncio.sleep(interval_s)

    return run  # type: ignore[return-value]


async def ask_for_locks(client: Client, beliefs: Beliefs, client_id: str, address: str | None) -> None:
    target = address or await client.leader()
    if target is None:
        return
    queues = [{"brokerName": "broker-a", "queueId": number, "topic": TOPIC} for number in range(QUEUES)]
    body = orjson.dumps({"clientId": client_id, "consumerGroup": "G", "mqSet": queues})
    request = RemotingCommand(RequestCode.LOCK_BATCH_MQ, body=body)
    try:
        answer = await client.remoting.invoke(target, request, ANSWER_LIMIT_S)
    except RemotingError:
        return
    beliefs.asked += 1
    if answer.code == ResponseCode.SUCCESS:
        held = {row["queueId"] for row in orjson.loads(answer.body)["lockOKMQSet"]}
        beliefs.answered(client_id, held, client.history.now)


def test_holder_keeps_its_locks_when_the_leader_dies_and_nobody_else_gets_one() -> None:
    beliefs = Beliefs()
    with Script() as script:
        script.start_client("a", consumer(beliefs, "a"))
        script.until(lambda: len(beliefs.of("a")) == QUEUES, "the locks")
        script.start_client("b", consumer(beliefs, "b", interval_s=2.0))
        for _ in range(2):
            script.run(5_000)
            dead = script.leader()
            script.kill(dead)
            script.until_writable()
            script.run(20_000)
            dead.start()
        script.run(3_000)
        now_us = script.world.history.now
        script.finish()
    beliefs.check()
    assert beliefs.of("b") == []
    assert len(beliefs.of("a")) == QUEUES, "a's trust was never broken"
    assert all(each.end_us > now_us for each in beliefs.of("a"))


def test_locks_of_a_dead_holder_are_free_when_it_can_trust_them_no_more() -> None:
    beliefs = Beliefs()
    with Script() as script:
        script.start_client("a", consumer(beliefs, "a", interval_s=1_000.0))
        script.until(lambda: len(beliefs.of("a")) == QUEUES, "the locks")
        granted_us = script.world.history.now
        script.kill(script.leader())
        script.until_writable()
        script.start_client("b", consumer(beliefs, "b", interval_s=1.0))
        script.until(lambda: len(beliefs.of("b")) == QUEUES, "the locks for another", 90_000)
        waited_us = script.world.history.now - granted_us
        for machine in script.world.nodes.values():
            if not machine.is_up:
                machine.start()
        script.finish()
    beliefs.check()
    assert EXPIRY_US <= waited_us <= EXPIRY_US + 10 * SECOND_US


@pytest.mark.parametrize("direction", ["both", "to the leader", "from the leader"])
def test_old_leader_behind_a_cut_renews_no_lock(direction: str) -> None:
    """Its holder goes on asking it; the majority gives the queues to another when that is safe."""
    beliefs = Beliefs()
    with Script() as script:
        old = script.leader()
        others = [machine.ip for machine in script.followers()]
        script.start_client("a", consumer(beliefs, "a", address=script.address(old), interval_s=0.2))
        script.until(lambda: len(beliefs.of("a")) == QUEUES, "the locks")
        script.run(2_000)
        if direction != "from the leader":
            script.world.network.cut(others, [old.ip])
        if direction != "to the leader":
            script.world.network.cut([old.ip], others)
        script.until(lambda: script.world.is_writable() and script.leader() is not old, "a new leader")
        script.start_client("b", consumer(beliefs, "b", interval_s=2.0))
        asked = beliefs.asked
        script.until(lambda: len(beliefs.of("b")) == QUEUES, "the locks for another", 120_000)
        assert beliefs.asked > asked
        script.world.network.heal()
        script.until(script.world.is_converged, "the old leader follows", 300_000)  # TCP tries again seldom
        script.finish()
    beliefs.check()
