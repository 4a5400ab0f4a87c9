"""The deletion workload under each seed's faults; and that it sees what it is there to see."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from commitlog.consume_queues import ConsumeQueues
from commitlog.indexed_log import QueueOffsets
from remoting.codes import RequestCode
from remoting.headers.admin import CreateTopicRequestHeader
from remoting.headers.topics import TopicRequestHeader
from tests.node_simulation.deleting import context_of, flush_queues, send
from tests.node_simulation.machine import Machine
from tests.node_simulation.options import FaultOptions, Options, draw_options
from tests.node_simulation.programs import ROOT
from tests.node_simulation.script import FILES, Client, Script
from tests.node_simulation.workloads_deletions import (
    DeletionWorkload,
    deletion_options,
    deletion_workload,
)
from tests.node_simulation.world import World
from tests.simulation.invariants import InvariantError
from tests.support.long_runs import is_long_run

SEEDS = range(9_000, 9_000 + int(os.environ.get("LEDGERMQ_DELETION_SEEDS", "4" if is_long_run() else "2")))
CALM = deletion_options(Options(seed=1, safety_ms=5_000, config=FILES))
KILLS = replace(CALM, faults=FaultOptions(crash_ms=1_000, leader_bias=0.9, down_max_ms=500))
POWER = replace(CALM, faults=replace(KILLS.faults, power_probability=0.5, crash_majority_probability=0.3))


def run(options: Options) -> DeletionWorkload:
    world = World(options, workload=deletion_workload)
    world.run()
    assert isinstance(world.workload, DeletionWorkload)
    return world.workload


@pytest.mark.parametrize("seed", SEEDS)
def test_deletion_workload_under_faults(seed: int) -> None:
    run(deletion_options(draw_options(seed)))


@pytest.mark.parametrize("options", [KILLS, POWER, replace(KILLS, faults=FaultOptions(transfer_ms=500))])
def test_topics_are_deleted_and_messages_stored(options: Options) -> None:
    """Otherwise the runs above would show less than they say."""
    workload = run(options)
    assert workload.deleted > 3
    assert len(workload.acknowledged) > 50


def run_seeds(options: Options) -> None:
    for seed in range(4):
        run(replace(options, seed=seed))


def test_queues_that_keep_what_was_deleted_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumeQueues, "delete", lambda *_: None)
    with pytest.raises(InvariantError):
        run_seeds(CALM)


def test_a_leader_that_goes_on_at_the_old_offsets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assign = QueueOffsets.assign
    monkeypatch.setattr(QueueOffsets, "assign", lambda self, batch, deleted=(): assign(self, batch))
    with pytest.raises(InvariantError, match="has offset"):
        run_seeds(CALM)


TOPICS = [f"D{number}" for number in range(40)]


async def make_topics(client: Client) -> None:
    for topic in TOPICS:
        header = CreateTopicRequestHeader(topic, "TBW102", 1, 1)
        await client.ask_until_done(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        assert await offset_of(client, topic, topic) == 0


async def delete_topics(client: Client) -> None:
    for topic in TOPICS:
        await client.ask_until_done(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic))


async def offset_of(client: Client, topic: str, value: str) -> int:
    answer = await send(client, topic, value)
    assert answer is not None
    return int(answer.ext_fields["queueOffset"])


def directories(machine: Machine) -> set[str]:
    """Of the topics above."""
    root = ROOT / "consumequeue"
    paths = (path for path in machine.fs.paths() if root in path.parents)
    return {path.relative_to(root).parts[0] for path in paths} & set(TOPICS)


def test_deleted_topics_leave_no_file_on_any_node() -> None:
    with Script() as script:
        script.client("maker", make_topics)
        nodes = list(script.world.nodes.values())

        def have_files(topics: set[str]) -> bool:
            flush_queues(script)
            return all(directories(machine) == topics for machine in nodes)

        script.until(lambda: have_files(set(TOPICS)), "files of all topics")
        late = script.followers()[0]
        script.kill(late)
        script.client("operator", delete_topics)
        late.start()
        script.until(lambda: have_files(set()), "no file of them")
        script.finish()


async def send_first(client: Client) -> int:
    header = CreateTopicRequestHeader("D0", "TBW102", 1, 1)
    await client.ask_until_done(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    for number in range(3):
        assert await offset_of(client, "D0", f"old-{number}") == number
    await client.ask_until_done(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader("D0"))
    await client.ask_until_done(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    return await offset_of(client, "D0", "new")


def test_queues_that_are_built_again_do_not_bring_deleted_messages_back() -> None:
    with Script() as script:
        assert script.client("operator", send_first) == 0
        for machine in script.world.nodes.values():
            script.until(script.world.is_converged, "all nodes at one end")
            script.kill(machine)
            for path in machine.fs.paths():
                if ROOT / "consumequeue" in path.parents:
                    machine.fs.remove(path)
            machine.start()
            script.until_writable()
        script.until(script.world.is_converged, "all nodes at one end")
        script.run(500)
        for machine in script.world.nodes.values():
            assert context_of(machine).log.queues.next_offset("D0", 0) == 1
        assert script.client("after", lambda client: offset_of(client, "D0", "newer")) == 1
        script.finish()
