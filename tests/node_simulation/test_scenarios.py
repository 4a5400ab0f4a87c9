"""Named scenarios with whole nodes and their clients: what the clients saw is checked as one history."""

from __future__ import annotations

import asyncio

import pytest

from broker.responses import put_error
from broker.send.processor import LEADER_REFUSES
from commitlog.log import PutStatus
from commitlog.record import decode_record
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.consume import (
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from remoting.headers.send import SendMessageRequestHeader
from tests.histories.operations import Commit, Fetch, Outcome, Poll, Queue, Send
from tests.histories.words import Word
from tests.node_simulation.clients import body_of, value_of
from tests.node_simulation.faults import FULL
from tests.node_simulation.script import PAUSE_S, TOPIC, Client, Script
from tests.node_simulation.topic_client import pull_header

GROUP = "G"
REFUSALS = {
    "leader": (ResponseCode.SERVICE_NOT_AVAILABLE, LEADER_REFUSES),
    "majority": put_error(PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH),
}
"""Code and last words of the answers to sends."""


def commit_header(offset: int) -> UpdateConsumerOffsetRequestHeader:
    return UpdateConsumerOffsetRequestHeader(GROUP, TOPIC, 0, offset)


def fetch_header() -> QueryConsumerOffsetRequestHeader:
    return QueryConsumerOffsetRequestHeader(GROUP, TOPIC, 0, set_zero_if_not_found=False)


async def commit_higher_and_higher(client: Client) -> None:
    await client.make_group(GROUP)
    for offset in range(1, 1_000_000):
        await client.ask_until_done(RequestCode.UPDATE_CONSUMER_OFFSET, commit_header(offset))
        await asyncio.sleep(PAUSE_S / 4)


async def fetch_on_and_on(client: Client) -> None:
    while True:
        await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, fetch_header())
        await asyncio.sleep(PAUSE_S)


async def send_on_and_on(client: Client) -> None:
    while True:
        await client.send()
        await asyncio.sleep(PAUSE_S / 2)


def acknowledged(script: Script, kind: type[Commit | Fetch | Send]) -> int:
    return sum(
        isinstance(operation, kind) and operation.outcome is Outcome.OK
        for operation in script.world.history.operations
    )


@pytest.mark.parametrize(
    ("moment_us", "is_power_lost"),
    [
        (0, True),
        (900, False),
        (5_300, True),
        pytest.param(0, False, marks=pytest.mark.long),
        pytest.param(900, True, marks=pytest.mark.long),
        pytest.param(5_300, False, marks=pytest.mark.long),
    ],
)
def test_s11_offsets_never_go_back_when_the_leader_dies_during_commits(
    moment_us: int, is_power_lost: bool
) -> None:
    """RocketMQ's followers learn offsets by a poll every 10 s; here an acknowledged one is in the log."""
    with Script() as script:
        script.start_client("committer", commit_higher_and_higher)
        script.start_client("fetcher", fetch_on_and_on)
        for _ in range(3):
            before = acknowledged(script, Commit)
            script.until(lambda before=before: acknowledged(script, Commit) > before + 10, "ten more commits")  # type: ignore[misc]
            script.world.clock.run_next(script.world.clock.now_us + moment_us)
            dead = script.leader()
            script.kill(dead, is_power_lost=is_power_lost)
            script.until_writable()
            script.run(1_000)
            dead.start()
            script.run(2_000)
        script.finish()
        assert acknowledged(script, Fetch) > 30


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_s12_no_two_messages_share_a_queue_offset_after_all_nodes_died_at_once(is_power_lost: bool) -> None:
    """apache/rocketmq#7689: a broker that forgets its last queue offsets gives them again."""
    with Script() as script:
        for name in ("a", "b"):
            script.start_client(name, send_on_and_on)
        for _ in range(3):
            before = acknowledged(script, Send)
            script.until(lambda before=before: acknowledged(script, Send) > before + 20, "twenty more sends")  # type: ignore[misc]
            machines = list(script.world.nodes.values())
            script.kill(*machines, is_power_lost=is_power_lost)
            script.run(200)
            for machine in machines:
                machine.start()
        report = script.finish()
    assert report.operations["values acknowledged"] > 60
    assert report.counts[Word.INCONSISTENT_OFFSETS] == 0


@pytest.mark.parametrize("direction", ["both", "to the leader", "from the leader"])
def test_s13_clients_on_both_sides_of_a_cut_see_no_stale_offset(direction: str) -> None:
    """apache/rocketmq#6662, #4800: the old leader acknowledges nothing, and tells nothing that is old."""
    with Script() as script:
        old = script.leader()
        address = script.address(old)
        others = [machine.ip for machine in script.followers()]

        async def work_at_the_old_leader(client: Client) -> None:
            while True:
                await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, fetch_header(), address)
                await asyncio.sleep(PAUSE_S / 10)

        script.start_client("majority side", commit_higher_and_higher)
        script.start_client("minority side", work_at_the_old_leader)
        script.start_client("sender", send_on_and_on)
        script.run(2_000)
        if direction != "from the leader":
            script.world.network.cut(others, [old.ip])
        if direction != "to the leader":
            script.world.network.cut([old.ip], others)
        script.until(lambda: script.world.is_writable() and script.leader() is not old, "a new leader")
        before = acknowledged(script, Commit)
        script.until(lambda: acknowledged(script, Commit) > before + 20, "commits at the new leader")
        script.world.network.heal()
        script.run(3_000)
        script.finish()


@pytest.mark.parametrize("full", ["leader", "follower", "majority"])
def test_s16_full_disks_refuse_with_a_clear_code_and_take_messages_when_there_is_room(full: str) -> None:
    """A leader with a full disk refuses; one whose followers can take nothing says that no quorum did."""
    with Script() as script:
        leader, followers = script.leader(), script.followers()
        victims = {"leader": [leader], "follower": followers[:1], "majority": followers}[full]
        script.start_client("sender", send_on_and_on)
        script.run(1_000)
        for machine in victims:
            machine.fs.used = FULL
        script.run(4_000)

        async def try_to_send(client: Client) -> bool:
            return any([await client.send() for _ in range(5)])

        if full == "follower":
            assert script.client("during", try_to_send), "one full disk of three must not stop the group"
        else:
            code, words = REFUSALS[full]
            for answer in script.client("during", answers_to_sends):
                assert answer.code == code
                assert answer.remark.endswith(words)
        read = acknowledged_polls(script)
        script.client("reader", read_something)
        assert acknowledged_polls(script) > read, "what is stored can be read"
        for machine in victims:
            machine.fs.used = 0.0
        before = acknowledged(script, Send)
        script.until(lambda: acknowledged(script, Send) > before + 20, "sends after there is room")
        script.finish()


async def answers_to_sends(client: Client) -> list[RemotingCommand]:
    """What a few sends are answered; whatever that is, they may be stored."""
    answers = []
    for number in range(3):
        value, invoked = f"refused-{number}", client.history.now
        answer = await request_send(client, value)
        answers.append(answer)
        client.history.add(Send(f"c{number}", invoked, None, Outcome.INFO, (value,), None, (), 1))
    return answers


def acknowledged_polls(script: Script) -> int:
    return sum(isinstance(operation, Poll) for operation in script.world.history.operations)


async def read_something(client: Client) -> None:
    await client.ask_until_done(RequestCode.PULL_MESSAGE, pull_header(Queue(TOPIC, 0), 0))


def test_s18_send_tried_again_across_a_failover_is_there_once_for_each_try_at_most() -> None:
    """Delivery is at least once: only the answers are lost here, so each try that arrived is a copy."""
    with Script() as script:
        sender = script.start_client("a", lambda client: client.send(tries_max=20))
        script.until(lambda: sender.is_done, "the first send")
        old = script.leader()
        second = script.start_client("b", lambda client: send_when_cut(script, client))
        script.until(lambda: bool(script.world.network._cuts), "the cut")
        script.run(2_500)
        script.kill(old)
        script.world.network.heal()
        script.until(lambda: second.is_done, "the send that was tried again")
        old.start()
        report = script.finish()
        (send,) = [
            operation
            for operation in script.world.history.operations
            if isinstance(operation, Send) and operation.process.startswith("b/")
        ]
        assert send.outcome is Outcome.OK
        assert send.tries is not None
        assert send.tries > 1
        assert report.counts[Word.REPEATED] == 1
        assert report.counts[Word.DUPLICATE] == 0


async def send_when_cut(script: Script, client: Client) -> bool:
    """From now on the leader hears this client, and its answers are lost."""
    await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, fetch_header())
    script.world.network.cut([script.leader().ip], [script.ip_of("b")])
    return await client.send(tries_max=30)


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_s18_acknowledged_in_one_try_is_exactly_one_copy(is_power_lost: bool) -> None:
    with Script() as script:
        for name in ("a", "b", "c"):
            script.start_client(name, send_on_and_on)
        for _ in range(4):
            script.run(1_000)
            dead = script.leader()
            script.kill(dead, is_power_lost=is_power_lost)
            script.until_writable()
            dead.start()
        report = script.finish()
    assert report.operations["values acknowledged"] > 100
    assert report.counts[Word.REPEATED] == report.counts[Word.DUPLICATE] == 0


async def request_send(client: Client, value: str, properties: str = "") -> RemotingCommand:
    """One message by one request; where it is going to stand is the caller's to tell."""
    header = SendMessageRequestHeader(
        producer_group="producers", topic=TOPIC, default_topic="", default_topic_queue_nums=0, queue_id=0,
        sys_flag=0, born_timestamp_ms=client.history.now // 1_000, properties=properties,
    )  # fmt: skip
    leader = await client.leader()
    assert leader is not None
    request = RemotingCommand(
        RequestCode.SEND_MESSAGE, ext_fields=header.ext_fields(), body=body_of(value, 40)
    )
    return await client.remoting.invoke(leader, request)


async def send_by_hand(client: Client, value: str, properties: str = "") -> RemotingCommand:
    """As `request_send`, and it must succeed."""
    answer = await request_send(client, value, properties)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


def test_rmq7477_every_acknowledged_message_is_found_by_its_id_after_a_full_restart() -> None:
    """apache/rocketmq#7477: after a restart of all nodes, messages were not found by their ids any more."""
    positions: dict[str, int] = {}

    async def send_some(client: Client) -> None:
        for number in range(40):
            value, invoked = f"m-{number}", client.history.now
            answer = await send_by_hand(client, value)
            positions[value] = int(answer.ext_fields["msgId"][-16:], 16)
            place = (Queue(TOPIC, 0), (int(answer.ext_fields["queueOffset"]),))
            client.history.add(Send("a", invoked, client.history.now, Outcome.OK, (value,), *place, 1))

    async def view_all(client: Client) -> dict[str, int]:
        found = {}
        for address in addresses:
            for position in positions.values():
                header = ViewMessageRequestHeader(position)
                answer = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, header, address)
                assert answer is not None
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                record = decode_record(answer.body)
                found[value_of(record.body)] = record.physical_offset
            assert found == positions, address
        return found

    with Script() as script:
        script.client("sender", send_some)
        machines = list(script.world.nodes.values())
        addresses = [script.address(machine) for machine in machines]
        script.kill(*machines, is_power_lost=True)
        for machine in machines:
            machine.start()
        script.until_writable()
        script.until(script.world.is_converged, "all nodes at one end")
        assert len(script.client("viewer", view_all)) == 40
        script.finish()


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_rmq5883_delayed_messages_come_though_the_leader_dies_while_they_wait(is_power_lost: bool) -> None:
    """apache/rocketmq#5883: messages with a delay never came where DLedger kept the log."""

    async def send_delayed(client: Client) -> None:
        for number in range(6):
            value, invoked = f"late-{number}", client.history.now
            await send_by_hand(client, value, properties="DELAY\x011\x02")
            tries = 2  # what is delivered just before a failover may be delivered again
            client.history.add(Send("a", invoked, client.history.now, Outcome.OK, (value,), None, (), tries))
            await asyncio.sleep(0.1)

    with Script() as script:
        script.client("sender", send_delayed)
        dead = script.leader()
        script.kill(dead, is_power_lost=is_power_lost)
        script.until_writable()
        script.run(3_000)
        dead.start()
        report = script.finish()
    assert report.operations["values acknowledged"] == 6


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_rmq3168_no_route_shows_a_node_in_two_places(is_power_lost: bool) -> None:
    """apache/rocketmq#3168: a broker was shown as master and as slave at once, after its role had changed."""
    routes: list[dict[int, str]] = []
    leaders: set[str] = set()

    async def watch(client: Client) -> None:
        while True:
            route = await client.route()
            if route is not None:
                routes.extend(dict(broker.broker_addrs) for broker in route.broker_datas)
            await asyncio.sleep(PAUSE_S / 4)

    with Script() as script:
        script.start_client("watcher", watch)
        for _ in range(3):
            dead = script.leader()
            leaders.add(script.address(dead))
            script.kill(dead, is_power_lost=is_power_lost)
            script.until_writable()
            script.run(500)
            dead.start()
            script.run(1_000)
        script.finish()
    twice = [route for route in routes if len(set(route.values())) < len(route)]
    assert twice == []
    assert leaders <= {route[0] for route in routes if 0 in route}
    assert any(len(route) == 3 for route in routes)
