"""Lists of gRPC clients: which broker is asked, how often, and what becomes of answers that are of no use."""

from typing import Any

import orjson
import pytest

from admin_api.cluster.grpc_clients import BROKERS_MAX, GrpcClients
from admin_api.errors import NotFoundError, PageWanted, UnavailableError
from admin_api.gateway import Gateway
from admin_api.settings import Settings
from admin_api.sources.brokers import BrokerDirectory
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.route import BrokerData, ClusterInfo, format_cluster_info
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS, FakeCluster

ENDPOINT = "10.0.0.5:8081"


def client(number: int, **changed: object) -> dict[str, Any]:
    return {
        "clientId": f"client-{number}",
        "language": "JAVA",
        "version": "5.2.0",
        "clientType": "PRODUCER",
        "address": "10.0.0.7:4711",
        "namespace": "",
        "groups": [],
        "topics": ["orders"],
        "topicCount": 1,
        "requestTimeoutMs": 3_000,
        "settingsAtMs": 1,
        "isConnected": True,
        **changed,
    }


CLIENTS = [client(number) for number in range(250)]


class StockMasters(FakeCluster):
    """So many brokers, each with one node, which answer this for the clients."""

    def __init__(self, count: int, answer: RemotingCommand | None = None) -> None:
        super().__init__()
        self.slaves: dict[int, str] = {}
        self.masters = [f"127.0.0.1:{number}" for number in range(1, count + 1)]
        self.answer = answer
        self.asked_for: list[tuple[str, dict[str, str]]] = []

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            brokers = {at: BrokerData("DefaultCluster", at, {0: at, **self.slaves}) for at in self.masters}
            return RemotingCommand(0, body=format_cluster_info(ClusterInfo(brokers)))
        if command.code != RequestCode.LEDGERMQ_GRPC_CLIENTS:
            return RemotingCommand(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        self.asked_for.append((address, command.ext_fields))
        return self.answer or await super().invoke(address, command, timeout_s)


def clients_of(cluster: StockMasters) -> GrpcClients:
    settings = Settings(namesrv=NAMESRV_ADDRESS)
    gateway = Gateway(cluster, settings)
    return GrpcClients(gateway, BrokerDirectory(gateway, settings))


@pytest.mark.parametrize(
    ("page", "size", "first", "count", "asks"),
    [
        (1, 100, 0, 100, 1),
        (1, 1_000, 0, 250, 3),
        (3, 100, 200, 50, 1),
        (4, 100, 0, 0, 1),
        (2, 120, 120, 120, 2),
    ],
)
async def test_a_page_is_put_together_from_bounded_answers(
    page: int, size: int, first: int, count: int, asks: int
) -> None:
    cluster = StockMasters(1)
    cluster.grpc_clients[ENDPOINT] = CLIENTS
    found = await clients_of(cluster).page(ENDPOINT, PageWanted(page, size))
    assert (found.total, found.page, found.page_size) == (250, page, size)
    assert [each.client_id for each in found.items] == [each["clientId"] for each in CLIENTS[first:][:count]]
    assert len(cluster.asked_for) == asks


async def test_the_next_broker_is_asked_where_the_first_one_does_not_reach_the_endpoint() -> None:
    cluster = StockMasters(BROKERS_MAX + 2)
    with pytest.raises(NotFoundError, match=f"No gRPC endpoint {ENDPOINT} is connected to the brokers"):
        await clients_of(cluster).page(ENDPOINT, PageWanted())
    assert [at for at, _ in cluster.asked_for] == cluster.masters[:BROKERS_MAX]


async def test_a_slave_is_asked_where_the_master_has_no_connection_of_the_endpoint_yet() -> None:
    cluster = StockMasters(1)
    cluster.slaves[1] = "127.0.0.1:99"
    with pytest.raises(NotFoundError):
        await clients_of(cluster).page(ENDPOINT, PageWanted())
    assert [at for at, _ in cluster.asked_for] == [*cluster.masters, "127.0.0.1:99"]


async def test_who_may_not_list_them_is_refused_once() -> None:
    refusal = RemotingCommand(ResponseCode.NO_PERMISSION, remark="User:eve has no permission")
    cluster = StockMasters(2, refusal)
    with pytest.raises(UnavailableError, match="User:eve has no permission"):
        await clients_of(cluster).page(ENDPOINT, PageWanted())
    assert len(cluster.asked_for) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"total":-1,"clients":[]}',
        b'{"total":1,"clients":[{}]}',
        orjson.dumps({"total": 101, "clients": CLIENTS[:101]}),
    ],
)
async def test_an_answer_that_cannot_be_read_is_said_so(body: bytes) -> None:
    cluster = StockMasters(1, RemotingCommand(0, body=body))
    with pytest.raises(UnavailableError, match="list of gRPC clients"):
        await clients_of(cluster).page(ENDPOINT, PageWanted())


async def test_without_a_broker_nobody_can_be_asked() -> None:
    with pytest.raises(UnavailableError, match="no broker is there"):
        await clients_of(StockMasters(0)).page(ENDPOINT, PageWanted())
