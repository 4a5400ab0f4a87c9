"""The HTTP interface over a cluster without a network."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient

from admin_api.app import STATIC, create_app
from admin_api.cluster.examples import CLUSTER_EXAMPLE
from admin_api.cluster.schemas import ClusterView
from admin_api.settings import Settings
from broker.admin.types import NodeRole
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS, FakeCluster
from tests.unit.admin_api.node_samples import node_status, peer


def writable_cluster() -> FakeCluster:
    cluster = FakeCluster([node_status("n0", NodeRole.LEADER, peers=(peer("n1", is_connected=False),))])
    cluster.list_all(leader="n0")
    return cluster


@asynccontextmanager
async def browsing(cluster: FakeCluster, **limits: Any) -> AsyncIterator[tuple[AsyncClient, FastAPI]]:
    settings = Settings(namesrv=NAMESRV_ADDRESS, **{"cache_ms": 0, "watch_interval_ms": 1, **limits})
    app = create_app(settings, cluster)
    transport = ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client, app


def problem_of(answer: Any) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    assert isinstance(body, dict)
    return body


async def test_cluster_speaks_camel_case_and_null_for_unknown() -> None:
    async with browsing(writable_cluster()) as (client, _):
        answer = await client.get("/api/v1/cluster")
    assert answer.status_code == 200
    (group,) = answer.json()["groups"]
    leader, dead = group["nodes"]
    assert (leader["role"], leader["log"]["committedIndex"], leader["lagEntries"]) == ("LEADER", 8, 0)
    assert (dead["state"], dead["log"]["endIndex"], dead["lagEntries"]) == ("down", None, None)


async def test_cluster_nothing_known_is_a_problem_that_names_the_name_server() -> None:
    cluster = FakeCluster()
    cluster.namesrv_is_up = False
    async with browsing(cluster) as (client, _):
        problem = problem_of(await client.get("/api/v1/cluster"))
    assert problem["status"] == 503
    assert NAMESRV_ADDRESS in problem["detail"]
    assert problem["instance"] == "/api/v1/cluster"


async def test_events_carry_the_same_view() -> None:
    cluster = writable_cluster()
    async with browsing(cluster) as (client, app):
        expected = (await client.get("/api/v1/cluster")).json()
        calls = app.state.feed.current

        async def last_look() -> ClusterView:
            app.state.feed.close()
            view = await calls()
            assert isinstance(view, ClusterView)
            return view

        app.state.feed.current = last_look
        answer = await client.get("/api/v1/cluster/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    retry, event, rest = answer.text.split("\n\n")
    assert (retry, rest) == ("retry: 1000", "")
    name, data = event.split("\n")
    assert name == "event: cluster"
    got = json.loads(data.removeprefix("data: "))
    assert got["groups"] == expected["groups"]


async def test_events_beyond_the_bound_are_a_problem() -> None:
    async with browsing(writable_cluster(), watchers_max=0) as (client, _):
        assert problem_of(await client.get("/api/v1/cluster/events"))["status"] == 503


async def test_health_says_nothing_of_the_brokers() -> None:
    cluster = FakeCluster()
    cluster.namesrv_is_up = False
    async with browsing(cluster) as (client, _):
        answer = await client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert cluster.asked == []


async def test_ready_names_the_leaders() -> None:
    async with browsing(writable_cluster()) as (client, _):
        answer = await client.get("/readyz")
    assert answer.json() == {"status": "ready", "leaders": {"group-a": "n0"}}


async def test_ready_without_a_leader_is_a_problem_that_names_the_group() -> None:
    cluster = FakeCluster([node_status("n1", NodeRole.CANDIDATE, leader_id=None)])
    cluster.list_all(leader="none")
    async with browsing(cluster) as (client, _):
        problem = problem_of(await client.get("/readyz"))
    assert "group-a is electing" in problem["detail"]


async def test_ready_without_any_broker_is_a_problem() -> None:
    async with browsing(FakeCluster()) as (client, _):
        assert "no broker" in problem_of(await client.get("/readyz"))["detail"]


async def test_unknown_path_and_method_are_problems() -> None:
    async with browsing(writable_cluster()) as (client, _):
        assert problem_of(await client.get("/api/v1/nothing"))["title"] == "Not Found"
        refused = await client.post("/api/v1/cluster", headers={"X-LedgerMQ-Request": "1"})
    assert problem_of(refused)["status"] == 405
    assert refused.headers["allow"] == "GET"


async def test_fault_of_ours_is_a_problem_without_its_insides() -> None:
    class Faulty(FakeCluster):
        async def invoke(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("secret")

    async with browsing(Faulty()) as (client, _):
        problem = problem_of(await client.get("/api/v1/cluster"))
    assert problem["status"] == 500
    assert "secret" not in problem["detail"]


async def test_openapi_example_is_a_valid_answer() -> None:
    async with browsing(writable_cluster()) as (client, _):
        described = (await client.get("/openapi.json")).json()
    shown = described["paths"]["/api/v1/cluster"]["get"]["responses"]["200"]["content"]["application/json"][
        "example"
    ]
    assert shown == CLUSTER_EXAMPLE
    assert ClusterView.model_validate(shown).groups[0].leader_id == "n1"


class LinkCollector(HTMLParser):
    """Every address a page loads or leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if name in ("href", "src") and value]


@pytest.mark.parametrize("page", ["/", "/docs"])
async def test_page_loads_only_what_is_served_here(page: str) -> None:
    async with browsing(writable_cluster()) as (client, _):
        answer = await client.get(page)
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        collector = LinkCollector()
        collector.feed(answer.text)
        targets = [link for link in collector.links if not link.startswith("#")]
        assert len(targets) >= 5
        for link in targets:
            assert (await client.get(link)).status_code == 200, link


def test_scripts_import_only_files_that_are_there() -> None:
    imports = [
        line.split('"')[-2]
        for script in STATIC.rglob("*.js")
        if "vendor" not in script.parts
        for line in script.read_text().splitlines()
        if line.startswith("import ")
    ]
    assert len(imports) >= 60
    for path in imports:
        assert (STATIC / path.removeprefix("/static/")).is_file(), path


def test_scripts_make_no_markup_of_data() -> None:
    """What brokers and clients say becomes text and nothing else."""
    own = [script for script in STATIC.rglob("*.js") if "vendor" not in script.parts]
    markup = ("innerHTML", "outerHTML", "insertAdjacentHTML", "dangerouslySetInnerHTML", "document.write")
    ways = (*markup, "eval(", "new Function")
    assert [(script.name, way) for script in own for way in ways if way in script.read_text()] == []
