"""The load generator and `ledgermq bench` against a broker in memory, over loopback."""

import asyncio
import io
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from rich.console import Console

from ledgermq.commands.bench import BenchOptions, Figures, bench, count_words, run_loads, table
from ledgermq.errors import UserError
from ledgermq.load.cluster import LoadCluster
from ledgermq.load.run import Load, Run
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.route import ClusterInfo, format_cluster_info
from remoting.router import Router
from remoting.server import Connection
from tests.unit.ledgermq.fake_broker import TOPIC, FakeBroker, serving

SHORT_S = 0.2


class LoadBroker(FakeBroker):
    """Besides: 310 for sends, the first of which may stall, and topics made and deleted on request."""

    def __init__(self, queue_count: int = 2) -> None:
        super().__init__(queue_count)
        self.connections: set[Connection] = set()
        self.deleted: list[str] = []
        self.unrouted: list[str] = []
        self.forgets = False
        self.stall_s = 0.0

    def router(self) -> Router:
        router = super().router()
        router.register(RequestCode.UPDATE_AND_CREATE_TOPIC, self._make_topic)
        router.register(RequestCode.DELETE_TOPIC_IN_BROKER, self._delete_topic)
        router.register(RequestCode.DELETE_TOPIC_IN_NAMESRV, self._delete_route)
        router.register(RequestCode.GET_BROKER_CLUSTER_INFO, self._cluster_info)
        return router

    def _cluster_info(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        return success_response(request, body=format_cluster_info(ClusterInfo()))

    async def _take(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        self.connections.add(connection)
        stall_s, self.stall_s = self.stall_s, 0.0
        if stall_s:
            await asyncio.sleep(stall_s)
        answer = self._send(request, connection)
        if self.forgets:
            self.queues = {number: [] for number in self.queues}
        return answer

    def _make_topic(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        count = int(request.ext_fields["writeQueueNums"])
        self.topics[request.ext_fields["topic"]] = count
        self.queues = {number: [] for number in range(count)}
        return success_response(request)

    def _delete_topic(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        self.deleted.append(request.ext_fields["topic"])
        return success_response(request)

    def _delete_route(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        self.unrouted.append(request.ext_fields["topic"])
        return success_response(request)

    def _route(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        self.topics.setdefault("TBW102", 8)
        return super()._route(request, connection)


@asynccontextmanager
async def loaded(queue_count: int = 2) -> AsyncIterator[tuple[LoadBroker, LoadCluster, tuple[str, int]]]:
    broker = LoadBroker(queue_count)
    async with serving(broker) as client:
        host, _, port = broker.address.rpartition(":")
        yield broker, LoadCluster(client, broker.address), (host, int(port))


def load(**changes: float) -> Load:
    values = {"in_flight": 16, "size": 10, "seconds": SHORT_S, "warmup_s": 0.05} | changes
    counts = {name: int(values.pop(name)) for name in ("in_flight", "size", "connections") if name in values}
    return Load(**counts, **values)  # type: ignore[arg-type]


TARGETS = [(TOPIC, 0), (TOPIC, 1)]


@pytest.mark.parametrize("connections", [1, 4])
async def test_closed_loop_counts_what_the_broker_has(connections: int) -> None:
    async with loaded() as (broker, cluster, address):
        shares: list[float] = []
        run = Run(load(connections=connections), address, TARGETS, shares.append)
        result = await asyncio.to_thread(run.measure)
        assert result.errors == {}
        assert 0 < result.messages <= result.acknowledged == sum(map(len, broker.queues.values()))
        assert await cluster.stored(TOPIC) == await cluster.read_back(TOPIC) == result.acknowledged
        assert len(broker.connections) == connections
        assert result.p50_ms is not None
        assert result.max_ms is not None
        assert result.p50_ms <= result.max_ms
        assert shares[0] < 1


async def test_a_deleted_topic_has_no_route_at_any_name_server_that_answers() -> None:
    broker = LoadBroker()
    async with serving(broker) as client:
        await LoadCluster(client, f"127.0.0.1:1;{broker.address}").delete_topic(TOPIC)
    assert (broker.deleted, broker.unrouted) == ([TOPIC], [TOPIC])


async def test_arrival_rate_is_kept_and_counts_from_the_time_due() -> None:
    async with loaded() as (_, _, address):
        run = Run(load(rate=500.0, connections=2, warmup_s=0.0), address, TARGETS)
        result = await asyncio.to_thread(run.measure)
        assert result.acknowledged <= 500 * SHORT_S + 1
        assert result.acknowledged > 0
        assert result.errors == {}


async def test_stalled_broker_shows_in_the_latencies_of_all_that_was_due() -> None:
    """One slot, and a first answer that comes late: what was due meanwhile counts from when it was due."""
    async with loaded() as (broker, _, address):
        broker.stall_s = SHORT_S
        run = Run(load(in_flight=1, rate=100.0, seconds=4 * SHORT_S, warmup_s=0.0), address, TARGETS)
        result = await asyncio.to_thread(run.measure)
    assert result.late > 0
    assert result.max_ms is not None
    assert result.max_ms >= SHORT_S * 1000
    late_ms = SHORT_S * 1000 / 4
    assert sum(value >= late_ms for _, value in result.curve) > 1


async def test_refused_send_is_an_error_and_sent_again() -> None:
    async with loaded() as (broker, _, address):
        broker.refusals = [(ResponseCode.SYSTEM_BUSY, "busy")] * 3
        result = await asyncio.to_thread(Run(load(), address, TARGETS).measure)
        assert result.errors == {"code 2": 3}
        assert result.acknowledged > 0


async def test_connection_that_ends_leaves_sends_without_an_answer() -> None:
    async with loaded() as (broker, _, address):
        run = Run(load(seconds=30.0), address, TARGETS)
        measuring = asyncio.create_task(asyncio.to_thread(run.measure))
        while not broker.connections:
            await asyncio.sleep(0)
        for connection in broker.connections:
            connection.abort()
        result = await measuring
        assert result.errors["no answer"] > 0


async def test_run_ends_when_told_to() -> None:
    async with loaded() as (broker, _, address):
        run = Run(load(seconds=3600.0), address, TARGETS)
        measuring = asyncio.create_task(asyncio.to_thread(run.measure))
        while not broker.connections:
            await asyncio.sleep(0)
        run.end_now()
        result = await measuring
        assert result.acknowledged == sum(map(len, broker.queues.values()))


async def test_count_waits_for_what_is_not_in_the_queue_yet() -> None:
    async with loaded() as (broker, cluster, _):
        counting = asyncio.create_task(cluster.stored_in_the_end(TOPIC, 2, limit_s=30.0))
        broker.put(0, b"one")
        while not broker.route_asks:
            await asyncio.sleep(0)
        broker.put(1, b"two")
        assert await counting == 2
        assert await cluster.stored_in_the_end(TOPIC, 3, limit_s=0.05) == 2


def test_more_connections_than_sends_in_flight_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one a connection"):
        Load(in_flight=2, connections=3)


async def test_topic_is_made_once_there_is_a_leader() -> None:
    async with loaded() as (broker, cluster, _):
        broker.has_leader = False
        making = asyncio.create_task(cluster.make_topic("new", 4))
        while len(broker.route_asks) < 2:
            await asyncio.sleep(0)
        broker.has_leader = True
        assert await making == broker.address
        assert broker.topics["new"] == 4


async def test_topic_that_cannot_be_made_is_said() -> None:
    async with loaded() as (broker, cluster, _):
        broker.refusals = [(ResponseCode.SERVICE_NOT_AVAILABLE, "not the leader")] * 50
        with pytest.raises(UserError, match="code 14: not the leader"):
            await cluster.make_topic("new", 4, limit_s=0.1)


async def test_cluster_that_is_not_there_has_no_leader_and_no_status() -> None:
    client = RemotingClient()
    try:
        cluster = LoadCluster(client, "127.0.0.1:1")
        assert await cluster.leader() is None
        assert await cluster.node_status("127.0.0.1:1") == {}
        assert not await cluster.send("t")
        with pytest.raises(UserError, match="no route to the topic t"):
            await cluster.stored("t")
    finally:
        await client.close()


async def test_bench_runs_its_loads_and_deletes_its_topic(capsys: pytest.CaptureFixture[str]) -> None:
    async with loaded(queue_count=8) as (broker, _, _):
        options = BenchOptions(broker.address, seconds=0.8, size=20, in_flight=(1, 8))
        await asyncio.to_thread(bench, options, as_json=False)
        printed = capsys.readouterr().out
        assert len(broker.deleted) == 1
        assert broker.deleted[0].startswith("LedgerMQBench-")
        assert "8 in flight" in printed
        found = re.search(r"^([\d,]+) messages acknowledged, ([\d,]+) stored\.$", printed, re.MULTILINE)
        assert found is not None, printed
        assert found[1] == found[2], "what tried the topic is no message of a load"


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (72_344, "72,344 messages acknowledged, 72,344 stored."),
        (
            72_345,
            "72,344 messages acknowledged, 72,345 stored: one, whose send failed or had no answer, was "
            "stored all the same.",
        ),
        (
            74_000,
            "72,344 messages acknowledged, 74,000 stored: 1,656, whose sends failed or had no answer, were "
            "stored all the same.",
        ),
        (72_000, "72,344 messages acknowledged, 72,000 stored."),
    ],
)
def test_bench_says_why_more_is_stored(stored: int, said: str) -> None:
    assert count_words(Figures([], None, None, 72_344, stored)) == said


async def test_bench_says_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    async with loaded(queue_count=8) as (broker, _, _):
        broker.forgets = True
        options = BenchOptions(broker.address, seconds=0.6, size=20, in_flight=(4,), count_limit_s=0.1)
        with pytest.raises(UserError, match=r"were acknowledged and 0 are stored"):
            await asyncio.to_thread(bench, options, as_json=True)
        assert '"stored":0' in capsys.readouterr().out


async def test_bench_table_has_a_row_for_each_load() -> None:
    async with loaded(queue_count=8) as (broker, _, _):
        options = BenchOptions(broker.address, seconds=0.4, size=20, in_flight=(2,))
        rows = await asyncio.to_thread(run_loads, options, TOPIC, broker.address)
    found = io.StringIO()
    figures = Figures(rows, "persisted", 3, 1, 1)
    Console(file=found, width=120).print(table(figures, 20))
    text = found.getvalue()
    assert "Bodies of 20 B; 3 nodes, persisted" in text
    assert "2 in flight" in text
    assert "a second" in text
