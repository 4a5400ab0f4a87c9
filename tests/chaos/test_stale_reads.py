"""Reads by choice from real processes: a leader that is suspended or cut off while another one takes messages
serves nothing stale to those who ask for linearizable reads, and a follower knows how old its answers are.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.consume.read_choice import AGE_FIELD, MAX_AGE_FIELD, READ_FIELD
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.consume import QueueRequestHeader
from remoting.headers.send import SendMessageRequestHeader
from remoting.route import DEFAULT_TOPIC
from tests.chaos.cluster import ChaosCluster, eventually

pytestmark = pytest.mark.integration
TOPIC = "Reads"
ANSWER_LIMIT_S = 20.0
READS = 40


class Clients:
    """Sends to one queue and asks for its end, at nodes of the caller's choice, past all faults."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self.cluster = cluster
        self._remoting = RemotingClient()
        self.end = 0
        """By what was acknowledged."""

    async def close(self) -> None:
        await self._remoting.close()

    async def _ask(self, node_id: str, request: RemotingCommand) -> RemotingCommand:
        return await self._remoting.invoke(self.cluster.nodes[node_id].own_address, request, ANSWER_LIMIT_S)

    async def send(self, node_id: str, count: int) -> None:
        for _ in range(count):
            header = SendMessageRequestHeader(
                producer_group="P",
                topic=TOPIC,
                default_topic=DEFAULT_TOPIC,
                default_topic_queue_nums=1,
                queue_id=0,
                sys_flag=0,
                born_timestamp_ms=1,
            )
            request = RemotingCommand(RequestCode.SEND_MESSAGE, ext_fields=header.ext_fields(), body=b"m")
            answer = await self._ask(node_id, request)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            self.end = int(answer.ext_fields["queueOffset"]) + 1

    async def read(self, node_id: str, **fields: str) -> RemotingCommand:
        ext = QueueRequestHeader(TOPIC, 0).ext_fields()
        return await self._ask(
            node_id, RemotingCommand(RequestCode.GET_MAX_OFFSET, ext_fields={**ext, **fields})
        )

    async def linearizable(self, node_id: str) -> RemotingCommand:
        return await self.read(node_id, **{READ_FIELD: "linearizable"})


@asynccontextmanager
async def started(folder: Path, seed: int) -> AsyncIterator[Clients]:
    cluster = ChaosCluster(folder / "run", random.Random(seed))
    clients = Clients(cluster)
    try:
        await cluster.start()
        for node_id in cluster.nodes:
            await cluster.wait_healed(node_id)  # until then it has no vote: two others would be no majority
        yield clients
    finally:
        await clients.close()
        await cluster.stop()


def check_fresh(answers: list[RemotingCommand], end: int) -> None:
    """Each answer is refused, or misses nothing."""
    for answer in answers:
        if answer.code == ResponseCode.SUCCESS:
            assert int(answer.ext_fields["offset"]) >= end
        else:
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, answer.remark


async def test_suspended_leader_serves_nothing_stale_when_it_goes_on(tmp_path: Path, seed: int) -> None:
    """The requests wait in its socket: it reads them in the same turn in which it goes on."""
    async with started(tmp_path, seed) as clients:
        old = await clients.cluster.wait_leader()
        await clients.send(old, 5)
        assert int((await clients.linearizable(old)).ext_fields["offset"]) == 5
        clients.cluster.nodes[old].send_signal(signal.SIGSTOP)
        new = await clients.cluster.wait_other_leader(old)
        await clients.send(new, 5)
        reads = [asyncio.create_task(clients.linearizable(old)) for _ in range(READS)]
        fresh = await clients.linearizable(new)
        assert int(fresh.ext_fields["offset"]) == 10
        clients.cluster.nodes[old].send_signal(signal.SIGCONT)
        check_fresh(await asyncio.gather(*reads), clients.end)


async def test_leader_that_is_cut_off_serves_nothing_stale(tmp_path: Path, seed: int) -> None:
    async with started(tmp_path, seed) as clients:
        old = await clients.cluster.wait_leader()
        await clients.send(old, 5)
        clients.cluster.network.isolate(old)
        cut = await clients.linearizable(old)
        assert cut.code == ResponseCode.SERVICE_NOT_AVAILABLE
        new = await clients.cluster.wait_other_leader(old)
        await clients.send(new, 5)
        check_fresh([await clients.linearizable(old) for _ in range(3)], clients.end)
        clients.cluster.network.mend()
        await clients.cluster.wait_in_touch()
        check_fresh([await clients.linearizable(node_id) for node_id in clients.cluster.nodes], clients.end)


async def test_follower_knows_how_old_its_answers_are(tmp_path: Path, seed: int) -> None:
    async with started(tmp_path, seed) as clients:
        leader = await clients.cluster.wait_leader()
        follower = next(node_id for node_id in clients.cluster.nodes if node_id != leader)
        await clients.send(leader, 5)

        async def shows_all() -> bool:
            """With a greatest age it has to ask the leader, and to apply what the leader has."""
            answer = await clients.read(follower, **{MAX_AGE_FIELD: "5000"})
            is_aged = answer.code == ResponseCode.SUCCESS and int(answer.ext_fields[AGE_FIELD]) <= 5_000
            return is_aged and int(answer.ext_fields["offset"]) == clients.end

        await eventually("the follower shows all that is acknowledged", shows_all, ANSWER_LIMIT_S)
        clients.cluster.nodes[leader].send_signal(signal.SIGSTOP)

        async def is_too_old() -> bool:
            answer = await clients.read(follower, **{MAX_AGE_FIELD: "0"})
            return answer.code == ResponseCode.SERVICE_NOT_AVAILABLE

        await eventually("the follower says that it may be older", is_too_old, ANSWER_LIMIT_S)
        clients.cluster.nodes[leader].send_signal(signal.SIGCONT)
