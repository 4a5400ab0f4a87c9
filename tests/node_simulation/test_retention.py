"""Whole nodes that delete the begin of their log: a node that was away, died in the middle of it or lost its
derived files comes back with the state and the queue offsets of what is gone.

The world's checker holds every queue's offsets against those that were ever committed: one that is given
twice, or left out, ends the run.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from commitlog.dledger_commit_log import store_directory
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.admin import CreateTopicRequestHeader
from remoting.headers.consume import UpdateConsumerOffsetRequestHeader
from tests.histories.operations import Queue
from tests.node_simulation.deleting import (
    EAGER,
    PATIENT,
    QUIET,
    QUIET_MESSAGES,
    begin_of,
    begun,
    context_of,
    end_clients,
    end_of,
    fill,
    finish,
    flush_queues,
    is_serving,
    make_leader,
    prepare,
    send,
    until_begin,
)
from tests.node_simulation.options import FaultOptions
from tests.node_simulation.programs import ROOT
from tests.node_simulation.retentions import tables_of
from tests.node_simulation.script import FILES, TOPIC, Client, Script
from tests.node_simulation.topic_client import pull_header

if TYPE_CHECKING:
    from tests.node_simulation.machine import Machine

FAULTY_SEEDS = int(os.environ.get("LEDGERMQ_RETENTION_SEEDS", "2"))
FAULTS = FaultOptions(
    crash_ms=1_500, crash_majority_probability=0.2, crash_all_probability=0.2, power_probability=0.5,
    mid_write_probability=0.7, down_max_ms=4_000, partition_ms=4_000, partition_max_ms=3_000,
    transfer_ms=4_000,
)  # fmt: skip


async def send_quiet(client: Client) -> int:
    while True:
        answer = await send(client, QUIET, f"{client.name}-quiet")
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            return int(answer.ext_fields["queueOffset"])
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_s6_follower_down_longer_than_retention_comes_back_and_can_lead(is_power_lost: bool) -> None:
    """apache/rocketmq#1778, openmessaging/dledger#87: it never caught up, and asked for ever."""
    with Script(config=EAGER) as script:
        script.client("prepare", prepare)
        late = script.followers()[0]
        script.kill(late, is_power_lost=is_power_lost)
        missed = script.world.checker.commit_index
        script.start_client("filler", fill)
        script.run(3_000)
        until_begin(script, missed + 50)
        late.start()
        script.until(
            lambda: is_serving(late) and begin_of(late) > missed, "its log begins at the leader's begin"
        )
        script.kill(late, is_power_lost=is_power_lost)  # its state is not taken from a checkpoint yet
        script.run(1_000)
        late.start()
        script.until(script.world.is_writable, "a writable leader")
        script.run(2_000)
        check_begins = begin_of(late)
        assert check_begins > missed
        make_leader(script, late)
        assert script.client("after", send_quiet) == QUIET_MESSAGES
        end_clients(script)
        script.until_writable()
        script.until(script.world.is_converged, "all nodes at one end")
        assert len({str(tables_of(context_of(machine))) for machine in script.world.nodes.values()}) == 1


def test_leader_waits_for_a_follower_that_is_away_while_its_disk_has_room() -> None:
    with Script(config=PATIENT) as script:
        begun(script)
        late = script.followers()[0]
        end_index = end_of(late)
        script.kill(late)
        for _ in range(10):
            script.run(500)
            flush_queues(script)
        assert begin_of(script.leader()) <= end_index + 1
        resets = begin_of(script.leader())
        late.start()
        until_begin(script, end_index)
        assert begin_of(late) >= resets
        finish(script)


@pytest.mark.parametrize(
    ("who", "is_power_lost"),
    [
        ("leader", True),
        ("follower", False),
        pytest.param("leader", False, marks=pytest.mark.long),
        pytest.param("follower", True, marks=pytest.mark.long),
    ],
)
def test_node_that_dies_between_any_two_steps_of_deleting_starts_again(who: str, is_power_lost: bool) -> None:
    with Script(config=EAGER) as script:
        begun(script)
        for changes in range(12):
            victim = script.leader() if who == "leader" else script.followers()[0]
            die_while_deleting(script, victim, changes, is_power_lost)
            victim.start()
            script.until_writable()
            script.run(500)
        finish(script)


def die_while_deleting(script: Script, machine: Machine, changes: int, is_power_lost: bool) -> None:
    """The next time it deletes, it dies before the change of a file with this number."""
    process, removal = machine.process, context_of(machine).opened.removal
    assert process is not None
    assert removal is not None
    remove_before = removal._remove_before

    async def dying(index: int) -> int:
        process.changes_until_crash, process.is_power_crash = changes, is_power_lost
        return await remove_before(index)

    removal._remove_before = dying

    def is_dead() -> bool:
        flush_queues(script)
        return machine.process is not process

    script.until(is_dead, f"{machine.name} dies while it deletes")


@pytest.mark.parametrize(
    "lost", [("consumequeue",), ("state",), pytest.param(("consumequeue", "state"), marks=pytest.mark.long)]
)
def test_derived_files_that_are_lost_come_back_from_a_log_without_its_begin(lost: tuple[str, ...]) -> None:
    with Script(config=EAGER) as script:
        begun(script)
        for machine in list(script.world.nodes.values()):
            script.kill(machine)
            for name in lost:
                for path in [path for path in machine.fs.paths() if path.is_relative_to(ROOT / name)]:
                    machine.fs.remove(path)
            machine.start()
            script.until_writable()
            script.run(1_500)
        finish(script)


def test_wiped_node_takes_the_state_from_the_log() -> None:
    with Script(config=EAGER) as script:
        begun(script)
        victim = script.followers()[0]
        script.kill(victim)
        for path in list(victim.fs.paths()):
            victim.fs.remove(path)
        victim.start()
        script.run(3_000)
        end_clients(script)  # a beat between pushes tells the leader that it is healed
        make_leader(script, victim)
        finish(script)


@pytest.mark.parametrize("seed", range(FAULTY_SEEDS))
def test_logs_lose_their_begin_under_faults(seed: int) -> None:
    """Nodes die between two changes of a file, lose power, are cut off, while all delete what they can."""
    with Script(seed=seed, config=EAGER, faults=FAULTS) as script:
        begun(script)
        script.world.faults.start()
        for _ in range(24):
            script.run(500)
            flush_queues(script)
        script.world.faults.stop()
        script.until_writable()
        begin = begin_of(script.leader())
        script.run(3_000)
        until_begin(script, begin)
        finish(script)


def test_nearly_full_disk_loses_its_oldest_files_and_goes_on() -> None:
    """Nothing is old, so nothing goes before the disk is nearly full; then what is oldest does."""
    config = PATIENT | {"file_reserved_hours": 72, "clean_forcibly_enable": 1}
    with Script(config=config) as script:
        script.client("prepare", prepare)
        script.start_client("filler", fill)
        script.run(4_000)
        flush_queues(script)
        script.run(2_000)
        assert [begin_of(machine) for machine in script.world.nodes.values()] == [0, 0, 0]
        for machine in script.world.nodes.values():
            machine.fs.used = 0.87
        until_begin(script, QUIET_MESSAGES + 20)
        for machine in script.world.nodes.values():
            machine.fs.used = 0.5
        finish(script)


def test_pull_before_the_begin_is_moved_to_the_first_message() -> None:
    with Script(config=EAGER) as script:
        begun(script)

        async def pull(client: Client) -> RemotingCommand | None:
            return await client.ask(RequestCode.PULL_MESSAGE, pull_header(Queue(TOPIC, 0), 0))

        answer = script.client("reader", pull)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert int(answer.ext_fields["nextBeginOffset"]) == int(answer.ext_fields["minOffset"]) > 0
        finish(script)


def test_files_are_gone_from_the_disk() -> None:
    with Script(config=EAGER) as script:
        begun(script)
        until_begin(script, 200)
        finish(script)
        for machine in script.world.nodes.values():
            flush_queues(script)
            script.run(1_000)
            directory = store_directory(ROOT, machine.name)
            removal = context_of(machine).opened.removal
            assert removal is not None
            for name, begin in (("data", removal.begin_position), ("index", begin_of(machine) * 32)):
                kept = [int(path.name) for path in machine.fs.paths() if path.parent == directory / name]
                size = {"data": 16 << 10, "index": FILES["index_file_bytes"]}[name]
                assert min(kept) + size > begin, (machine.name, name)


def test_checkpoint_larger_than_a_data_file_brings_a_node_back() -> None:
    """Its parts stand in several files, and no further one is written for those."""
    groups = 120

    async def commit_much(client: Client) -> None:
        for number in range(groups):
            name = f"{'group':_<200}{number}"
            await client.make_group(name)
            header = UpdateConsumerOffsetRequestHeader(name, QUIET, 0, 2)
            await client.ask_until_done(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    with Script(config=EAGER) as script:
        script.client("prepare", prepare)
        script.client("committer", commit_much)
        late = script.followers()[0]
        script.kill(late)
        missed = script.world.checker.commit_index
        script.start_client("filler", fill)
        script.run(4_000)
        until_begin(script, missed + 50)
        end = context_of(script.leader()).state.base
        assert end.known_index - end.covered_index > 10
        late.start()
        script.until(
            lambda: is_serving(late) and begin_of(late) > missed, "its log begins at the leader's begin"
        )
        end_clients(script)
        script.until(script.world.is_converged, "all nodes at one end")
        script.run(500)
        assert tables_of(context_of(late)) == tables_of(context_of(script.leader()))
        assert len(context_of(late).state.offsets) == groups + 1


def test_topic_shows_its_messages_for_its_own_time_on_every_node() -> None:
    async def make_short(client: Client) -> None:
        header = CreateTopicRequestHeader("SHORT", "TBW102", 1, 1, attributes="+retention.ms=2000")
        await client.ask_until_done(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def send_some(client: Client) -> None:
        for number in range(10):
            assert await send(client, "SHORT", f"{client.name}-{number}") is not None

    def min_offsets(script: Script) -> set[int]:
        queues = [context_of(machine).log.queues.get("SHORT", 0) for machine in script.world.nodes.values()]
        return {queue.min_offset for queue in queues if queue is not None}

    with Script(config=PATIENT | {"file_reserved_hours": 72}) as script:
        script.client("maker", make_short)
        script.client("early", send_some)
        script.run(1_000)
        assert min_offsets(script) == {0}
        script.run(4_000)
        script.client("late", send_some)
        script.until(lambda: min_offsets(script) == {10}, "the early ones are hidden everywhere")
        victim = script.leader()
        script.kill(victim, is_power_lost=True)
        script.until_writable()
        victim.start()
        script.until(lambda: is_serving(victim), "it serves again")
        script.run(500)
        assert min(min_offsets(script)) >= 10
        assert [begin_of(machine) for machine in script.world.nodes.values()] == [0, 0, 0]
