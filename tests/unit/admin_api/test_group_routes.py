"""Groups over HTTP: each path answers, and a reset goes from its preview to its outcomes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient

from admin_api.app import create_app
from admin_api.groups import routes
from admin_api.groups.details import ConsumerGroupView, MemberRunningView, MembersView
from admin_api.groups.offset_changes import OffsetReset
from admin_api.groups.overview import ConsumerGroupItem
from admin_api.groups.progress import ProgressView
from admin_api.schema import ChangeResult, Page, Schema
from admin_api.settings import Settings
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS
from tests.unit.admin_api.fake_groups import FakeBroker, FakeBrokers, sample

GROUPS = "/api/v1/consumer-groups"


@asynccontextmanager
async def browsing(broker: FakeBroker) -> AsyncIterator[AsyncClient]:
    app = create_app(Settings(namesrv=NAMESRV_ADDRESS), FakeBrokers(broker))
    transport = ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("?sort=lag&descending=true&pageSize=1", 200),
        ("?pageSize=1001", 422),
        ("/g", 200),
        ("/absent", 404),
        ("/no*group", 422),
        ("/g/progress", 200),
        ("/g/progress?topic=t&clients=false", 200),
        ("/g/members", 200),
        ("/g/members/127.0.0.1@7/running?stack=true", 200),
        ("/g/members/c9/running", 404),
    ],
)
async def test_every_path_answers(path: str, status: int) -> None:
    broker = sample("rocketmq5")
    broker.clients["g"] = ["127.0.0.1@7"]
    async with browsing(broker) as client:
        answer = await client.get(GROUPS + path)
    assert answer.status_code == status, answer.text
    kind = "application/json" if status == 200 else "application/problem+json"
    assert answer.headers["content-type"] == kind


async def test_null_stands_for_unknown() -> None:
    async with browsing(sample("ledgermq")) as client:
        items = (await client.get(GROUPS)).json()["items"]
    assert [(item["group"], item["lag"], item["members"]) for item in items] == [("g", 60, 0), ("h", None, 0)]


async def test_a_reset_needs_the_confirmation_of_its_preview() -> None:
    broker = sample("ledgermq")
    wanted = {"topic": "t", "to": "earliest"}
    async with browsing(broker) as client:
        path = f"{GROUPS}/g/offsets/reset"
        preview = (await client.post(path, json=wanted)).json()
        assert preview["isDryRun"]
        assert preview["effects"][0]["after"] == "10, 30 messages again"
        assert broker.offsets["g", "t"][0] == 40
        refused = await client.post(path, params={"dryRun": "false"}, json=wanted)
        assert refused.status_code == 428
        confirmed = {"dryRun": "false", "confirmation": preview["confirmation"]}
        other = await client.post(path, params=confirmed, json={"topic": "t", "to": "latest"})
        assert other.status_code == 409
        done = await client.post(path, params=confirmed, json=wanted)
        assert (done.status_code, done.json()["outcomes"][0]["ok"]) == (200, True)
        assert broker.offsets["g", "t"] == {0: 10, 1: 0}
        audit = (await client.get("/api/v1/audit")).json()
    assert "offset.reset" in {entry["action"] for entry in audit["items"]}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/g/offsets/skip", {}, 200),
        ("POST", "/g/offsets/clone", {"targetGroup": "h"}, 200),
        ("POST", "/g/offsets/clone", {"targetGroup": "g"}, 409),
        ("POST", "/g/offsets/reset", {"topic": "t", "to": "offset", "offset": 5}, 409),
        ("POST", "/g/offsets/reset", {"topic": "t", "to": "time"}, 422),
        ("PUT", "/new", {"retryMaxTimes": 3}, 200),
        ("PUT", "/g", {"retryMaxTimes": 16}, 409),
        ("PUT", "/g", {"retryMaxTimes": -1}, 422),
        ("PUT", "/g", {"brokers": ["absent"]}, 400),
        ("PUT", "/CID_RMQ_SYS_TRANS", {"retryMaxTimes": 3}, 400),
        ("PUT", "/g/consume-mode", {"topic": "t", "mode": "POP"}, 200),
        ("DELETE", "/g?withOffsets=false", {}, 200),
        ("DELETE", "/absent", {}, 404),
    ],
)
async def test_every_change_answers(method: str, path: str, body: dict[str, Any], status: int) -> None:
    async with browsing(sample("ledgermq")) as client:
        answer = await client.request(method, GROUPS + path, json=body)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("schema", "example"),
    [
        (Page[ConsumerGroupItem], routes.PAGE_EXAMPLE),
        (ConsumerGroupView, routes.GROUP_EXAMPLE),
        (MembersView, routes.MEMBERS_EXAMPLE),
        (ProgressView, routes.PROGRESS_EXAMPLE),
        (MemberRunningView, routes.RUNNING_EXAMPLE),
        (ChangeResult, routes.RESET_RESULT_EXAMPLE),
    ],
)
def test_examples_are_what_is_answered(schema: type[Schema], example: dict[str, Any]) -> None:
    assert schema.model_validate(example).model_dump(by_alias=True, mode="json") == example


def test_examples_of_resets_are_whole() -> None:
    for each in routes.RESET_EXAMPLES.values():
        OffsetReset.model_validate(each["value"])
