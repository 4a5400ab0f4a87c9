"""What the admin service tells Prometheus: the cluster as it sees it, and what it does itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from httpx import ASGITransport, AsyncClient
from prometheus_client.parser import text_string_to_metric_families

from admin_api.app import create_app
from admin_api.settings import Settings
from broker.admin.types import NodeRole
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS, FakeCluster
from tests.unit.admin_api.node_samples import node_status, peer


@asynccontextmanager
async def scraping(cluster: FakeCluster) -> AsyncIterator[AsyncClient]:
    app = create_app(Settings(namesrv=NAMESRV_ADDRESS, cache_ms=0), cluster)
    transport = ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


async def scrape(client: AsyncClient) -> dict[str, float]:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{sample.labels[name]}"' for name in sorted(sample.labels))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def writable_cluster() -> FakeCluster:
    cluster = FakeCluster([node_status("n0", NodeRole.LEADER, peers=(peer("n1", is_connected=False),))])
    cluster.list_all(leader="n0")
    return cluster


async def test_the_cluster_is_shown_as_it_is_and_what_nobody_knows_is_not() -> None:
    async with scraping(writable_cluster()) as client:
        found = await scrape(client)
    assert found['ledgermq_cluster_namesrv_up{address="127.0.0.1:9876"}'] == 1
    assert found['ledgermq_cluster_writable{group="group-a"}'] == 1
    assert found['ledgermq_cluster_node_leader{group="group-a",node="n0"}'] == 1
    assert found['ledgermq_cluster_node_up{group="group-a",node="n1"}'] == 0
    assert 'ledgermq_cluster_node_lag_entries{group="group-a",node="n1"}' not in found


async def test_a_cluster_that_nobody_can_reach_is_told_too() -> None:
    cluster = FakeCluster()
    cluster.namesrv_is_up = False
    async with scraping(cluster) as client:
        found = await scrape(client)
    assert found['ledgermq_cluster_namesrv_up{address="127.0.0.1:9876"}'] == 0
    assert not [name for name in found if name.startswith("ledgermq_cluster_node")]
    assert found['ledgermq_admin_asks_total{outcome="unreachable"}'] > 0


async def test_requests_are_counted_by_route_however_many_addresses_they_ask_for() -> None:
    async with scraping(writable_cluster()) as client:
        await client.get("/api/v1/cluster")
        for number in range(20):
            await client.get(f"/no/such/{number}")
        await client.get("/healthz", headers={"Host": "evil.example"})
        found = await scrape(client)
    requests = {name: value for name, value in found.items() if "admin_requests_total" in name}
    labels = 'ledgermq_admin_requests_total{{method="GET",route="{}",status="{}"}}'
    assert requests == {
        labels.format("/api/v1/cluster", 200): 1,
        labels.format("none", 404): 20,
        labels.format("none", 421): 1,
    }
    assert found['ledgermq_admin_request_seconds_count{route="/api/v1/cluster"}'] == 1
    assert found['ledgermq_admin_asks_total{outcome="answered"}'] > 0
