"""Nodes that delete the begin of their log: what a script does with them, and what must hold of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.admin import CreateTopicRequestHeader
from remoting.headers.consume import UpdateConsumerOffsetRequestHeader
from remoting.headers.send import SendMessageRequestHeader
from tests.node_simulation.clients import body_of
from tests.node_simulation.invariants import node_of
from tests.node_simulation.retentions import RetentionOptions, tables_of
from tests.node_simulation.script import FILES, TOPIC, Client, Script

if TYPE_CHECKING:
    from broker.feature import Core
    from tests.node_simulation.machine import Machine

QUIET = "QUIET"
"""A topic that gets its messages first: they go with the begin of the log."""
QUIET_MESSAGES = 5
PATIENT: dict[str, Any] = FILES | RetentionOptions(kept_ms=0, waits=True).config()
"""Everything is old immediately; deletion waits for a follower that is away."""
EAGER: dict[str, Any] = FILES | RetentionOptions(kept_ms=0, waits=False).config()
"""Files are deleted without waiting for followers."""


def context_of(machine: Machine) -> Core:
    assert machine.process is not None, f"{machine.name} is down"
    assert machine.process.broker is not None, f"{machine.name} is starting"
    return machine.process.broker.core


def is_serving(machine: Machine) -> bool:
    return machine.process is not None and machine.process.broker is not None


def begin_of(machine: Machine) -> int:
    assert machine.process is not None
    assert machine.process.broker is not None
    return node_of(machine.process.broker).begin_index


def end_of(machine: Machine) -> int:
    assert machine.process is not None
    assert machine.process.broker is not None
    return node_of(machine.process.broker).end_index


def flush_queues(script: Script) -> None:
    """Otherwise they go to the disk each ten seconds."""
    for machine in script.world.nodes.values():
        if is_serving(machine):
            context_of(machine).log._flusher.flush_soon()  # type: ignore[attr-defined]


async def send(client: Client, topic: str, value: str, size_bytes: int = 40) -> RemotingCommand | None:
    header = SendMessageRequestHeader(
        producer_group="producers", topic=topic, default_topic="", default_topic_queue_nums=0, queue_id=0,
        sys_flag=0, born_timestamp_ms=client.history.now // 1_000, properties="",
    )  # fmt: skip
    address = await client.leader()
    if address is None:
        return None
    request = RemotingCommand(
        RequestCode.SEND_MESSAGE, ext_fields=header.ext_fields(), body=body_of(value, size_bytes)
    )
    try:
        return await client.remoting.invoke(address, request)
    except Exception:  # noqa: BLE001 (the node it went to died: another one is asked next)
        return None


async def fill(client: Client) -> None:
    """About two data files a second."""
    for number in range(1_000_000):
        await send(client, TOPIC, f"{client.name}-{number}", 700)
        await asyncio.sleep(0.015)


async def prepare(client: Client) -> None:
    """What is written first, and must be known for ever."""
    header = CreateTopicRequestHeader(QUIET, "TBW102", 1, 1)
    await client.ask_until_done(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    for number in range(QUIET_MESSAGES):
        answer = await send(client, QUIET, f"quiet-{number}")
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
    await client.make_group("G")
    commit = UpdateConsumerOffsetRequestHeader("G", QUIET, 0, 3)
    await client.ask_until_done(RequestCode.UPDATE_CONSUMER_OFFSET, commit)


def begun(script: Script) -> None:
    """The log has lost its first files on every node that runs."""
    script.client("prepare", prepare)
    script.start_client("filler", fill)
    script.run(3_000)
    until_begin(script, QUIET_MESSAGES + 20)


def until_begin(script: Script, index: int) -> None:
    def has_begun() -> bool:
        flush_queues(script)
        return all(
            begin_of(machine) > index for machine in script.world.nodes.values() if is_serving(machine)
        )

    script.until(has_begun, f"logs begin behind {index}")


def check_nodes(script: Script) -> None:
    """All nodes know the same, and how far every queue is, and show what their logs hold."""
    script.until(script.world.is_converged, "all nodes at one end")
    script.run(500)
    machines = list(script.world.nodes.values())
    assert all(tables_of(context_of(machine)) == tables_of(context_of(machines[0])) for machine in machines)
    assert tables_of(context_of(machines[0]))[2] == [(QUIET, "G", [(0, 3)])]
    checker = script.world.checker
    for machine in machines:
        queues = context_of(machine).log.queues
        for (topic, queue_id), expected in checker._next_offsets.items():
            assert queues.next_offset(topic, queue_id) == expected, (machine.name, topic, queue_id)
        queue = queues.get(TOPIC, 0)
        assert queue is not None
        units = queue.units(queue.min_offset, 1_000_000)
        assert len(units) == queue.max_offset - queue.min_offset > 0
        assert len(context_of(machine).log.read_many([unit[:2] for unit in units])) > 0
        quiet = queues.get(QUIET, 0)
        assert quiet is not None
        assert quiet.min_offset == quiet.max_offset == QUIET_MESSAGES
    checker.check_logs()


def finish(script: Script) -> None:
    end_clients(script)
    script.until_writable()
    check_nodes(script)


def end_clients(script: Script) -> None:
    for machine in script.clients:
        if machine.is_up:
            machine.stop_by_force(is_power_lost=False)
    script.run(2_000)


def make_leader(script: Script, machine: Machine) -> None:
    """The leader hands over to this node."""
    for _ in range(10):
        other = script.leader()
        if other is machine:
            return
        engine, process = context_of(other).engine, other.process
        assert engine is not None
        assert process is not None
        process.loop.call_soon(engine.transfer_leadership, machine.name)
        script.run(1_500)
        script.until_writable()
    pytest.fail(f"{machine.name} does not take leadership over: {script.world.describe()}")
