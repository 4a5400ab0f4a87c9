"""Whole nodes that die and come back, and what is asked of their indexes by key."""

from __future__ import annotations

import asyncio

import pytest

from commitlog.record import decode_record
from remoting.codes import RequestCode, ResponseCode
from remoting.headers.consume import QueryMessageRequestHeader
from remoting.headers.send import SendMessageRequestHeader
from remoting.route import DEFAULT_TOPIC
from tests.node_simulation.machine import Machine
from tests.node_simulation.script import PAUSE_S, Client, Script

KEYED = "Keyed"
FOREVER_MS = 2**62
SENT_EACH = 15


def send_header(number: int) -> SendMessageRequestHeader:
    return SendMessageRequestHeader(
        producer_group="producers",
        topic=KEYED,
        default_topic=DEFAULT_TOPIC,
        default_topic_queue_nums=2,
        queue_id=number % 2,
        sys_flag=0,
        born_timestamp_ms=0,
        properties=f"KEYS\x01all k{number}\x02UNIQ_KEY\x01ID{number}\x02",
    )


async def send_keyed_on_and_on(client: Client) -> None:
    """Messages with keys of their own, each once; `acknowledged` has the numbers of those that were."""
    for number in range(1_000_000):
        answer = await client.ask(RequestCode.SEND_MESSAGE, send_header(number))
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            client.acknowledged.append(str(number))
        await asyncio.sleep(PAUSE_S / 2)


def missing_at(script: Script, node: Machine, acknowledged: list[str]) -> list[str]:
    """What a node does not find of these by key or id."""

    async def look(client: Client) -> list[str]:
        missing = []
        for number in acknowledged:
            for key, is_unique_key in ((f"k{number}", False), (f"ID{number}", True)):
                header = QueryMessageRequestHeader(KEYED, key, 8, 0, FOREVER_MS, is_unique_key)
                answer = await client.ask(RequestCode.QUERY_MESSAGE, header, script.address(node))
                assert answer is not None
                if answer.code != ResponseCode.SUCCESS:
                    missing.append(key)
                    continue
                assert f"UNIQ_KEY\x01ID{number}\x02".encode() in decode_record(answer.body).properties
        return missing

    found: list[str] = script.client(f"asker{len(script.clients)}", look)
    return found


@pytest.mark.parametrize("is_power_lost", [pytest.param(False, marks=pytest.mark.long), True])
def test_what_was_acknowledged_is_found_by_key_on_every_node_whoever_died(is_power_lost: bool) -> None:
    with Script() as script:
        sender = script.start_client("sender", send_keyed_on_and_on)
        for _ in range(3):
            before = len(sender.acknowledged)
            script.until(lambda before=before: len(sender.acknowledged) > before + SENT_EACH, "more sends")  # type: ignore[misc]
            dead = script.leader()
            script.kill(dead, is_power_lost=is_power_lost)
            script.until_writable()
            known = list(sender.acknowledged)
            assert missing_at(script, script.leader(), known) == []
            dead.start()
            script.run(2_000)
        script.run(15_000)  # the longest pause of an index that has something to read again
        known = list(sender.acknowledged)
        assert len(known) > 3 * SENT_EACH
        for node in script.world.nodes.values():
            assert missing_at(script, node, known[-60:] + known[:60]) == []
        script.finish()
