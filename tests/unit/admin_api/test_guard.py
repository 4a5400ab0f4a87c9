"""What every request passes before a route sees it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

import pytest
from fastapi import APIRouter, Body, Depends
from httpx import ASGITransport, AsyncClient, Response

from admin_api.app import create_app
from admin_api.routing import MakeDep, changing, costly, require
from admin_api.security.policy import ENVIRONMENT_KEY, Policy, Role, Tokens, load_tokens, policy_for
from admin_api.settings import Settings
from tests.unit.admin_api.change_samples import SampleChange
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS, FakeCluster

READ, OPERATE, ADMIN = (f"{role.label}-token-of-the-test" for role in Role)
TOKENS = load_tokens(None, {ENVIRONMENT_KEY: f"r:read:{READ},o:operate:{OPERATE},a:admin:{ADMIN}"})
OWN = {"X-LedgerMQ-Request": "1"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def calling(
    tokens: Tokens = TOKENS,
    change: SampleChange | None = None,
    remote: str = "127.0.0.1",
    policy: Policy | None = None,
) -> AsyncIterator[AsyncClient]:
    """A client of the app, which has routes of the test beside its own."""
    router = APIRouter(prefix="/api/v1/test")
    wanted = change or SampleChange()

    @router.post("/change", **changing(Role.OPERATE))
    async def change_it(make: MakeDep) -> object:
        return await make(wanted)

    @router.delete("/all", dependencies=[Depends(require(Role.ADMIN))])
    async def delete() -> str:
        return "deleted"

    @router.put("/undeclared")
    async def put(text: Annotated[str, Body()]) -> int:
        return len(text)

    @router.get("/search", dependencies=[Depends(costly)])
    async def search() -> str:
        return "found"

    settings = Settings(namesrv=NAMESRV_ADDRESS, costly_burst=2, costly_per_s=0.01)
    policy = policy or policy_for("127.0.0.1", tokens)
    app = create_app(settings, FakeCluster(), policy=policy)
    app.include_router(router)
    transport = ASGITransport(app, raise_app_exceptions=False, client=(remote, 4711))
    async with (
        app.router.lifespan_context(app),
        AsyncClient(transport=transport, base_url="http://localhost:8080") as client,
    ):
        yield client


def said(answer: Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == answer.status_code
    return str(answer.json()["detail"])


async def test_without_tokens_this_machine_may_do_everything() -> None:
    async with calling(Tokens()) as client:
        assert (await client.delete("/api/v1/test/all", headers=OWN)).status_code == 200


BY_PROXY = [
    {"X-Forwarded-For": "203.0.113.9"},
    {"X-Forwarded-Proto": "https"},
    {"Forwarded": "for=203.0.113.9"},
    {"X-Real-IP": "203.0.113.9"},
    {"Via": "1.1 proxy"},
]


@pytest.mark.parametrize("headers", BY_PROXY)
async def test_behind_a_proxy_nobody_is_of_this_machine(headers: dict[str, str]) -> None:
    async with calling(Tokens()) as client:
        for path in ("/api/v1/cluster", "/metrics", "/readyz"):
            answer = await client.get(path, headers=headers)
            assert (answer.status_code, "tokens are needed" in said(answer)) == (403, True)
        assert (await client.delete("/api/v1/test/all", headers=OWN | headers)).status_code == 403
        assert (await client.get("/healthz", headers=headers)).status_code == 200
    async with calling() as client:
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/metrics", headers=headers)).status_code == 401
        answer = await client.get("/api/v1/test/search", headers=headers | bearer(READ))
        assert answer.status_code == 200


@pytest.mark.parametrize("headers", [{}, bearer(""), {"Authorization": f"Basic {ADMIN}"}])
async def test_with_tokens_nobody_comes_in_without(headers: dict[str, str]) -> None:
    async with calling() as client:
        answer = await client.get("/api/v1/cluster", headers=headers)
        assert "Authorization: Bearer" in said(answer)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await client.get("/api/v1/test/search")).status_code == 401
        for public in ("/", "/healthz", "/openapi.json", "/docs"):
            assert (await client.get(public)).status_code == 200


async def test_a_wrong_token_is_refused_and_guessing_is_slowed_down() -> None:
    async with calling() as client:
        answers = [await client.get("/healthz", headers=bearer(f"wrong-{n}")) for n in range(12)]
        assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 2
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert (await client.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/api/v1/test/search", [READ, OPERATE, ADMIN]),
        ("POST", "/api/v1/test/change", [OPERATE, ADMIN]),
        ("DELETE", "/api/v1/test/all", [ADMIN]),
        ("PUT", "/api/v1/test/undeclared", [OPERATE, ADMIN]),
    ],
)
async def test_each_role_may_what_the_lesser_may(method: str, path: str, allowed: Sequence[str]) -> None:
    async with calling() as client:
        for token in (READ, OPERATE, ADMIN):
            body = None if method == "GET" else "text"
            answer = await client.request(method, path, headers=bearer(token), json=body)
            assert answer.status_code == (200 if token in allowed else 403), (token, answer.text)


@pytest.mark.parametrize("path", ["/readyz", "/metrics"])
async def test_what_watches_this_machine_needs_no_token(path: str) -> None:
    async with calling() as client:
        assert (await client.get(path)).status_code in (200, 404, 503)
    async with calling(remote="192.0.2.1") as client:
        assert (await client.get(path)).status_code == 401
        assert (await client.get(path, headers=bearer(READ))).status_code in (200, 404, 503)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "192.0.2.1:8080", "", "[::2]", "[::1", "[::1]evil.example"],
)
async def test_another_name_that_leads_here_is_refused(host: str) -> None:
    async with calling(Tokens()) as client:
        answer = await client.get("/healthz", headers={"Host": host})
        assert answer.status_code == 421
        assert "--allowed-host" in said(answer)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_page_of_another_origin_changes_nothing(headers: dict[str, str]) -> None:
    async with calling(Tokens()) as client:
        answer = await client.delete("/api/v1/test/all", headers={**OWN, **headers})
        assert (answer.status_code, "own page" in said(answer)) == (403, True)


async def test_a_form_of_another_page_changes_nothing() -> None:
    async with calling(Tokens()) as client:
        answer = await client.post("/api/v1/test/change", data={"dryRun": "false"})
        assert (answer.status_code, "application/json" in said(answer)) == (415, True)
        assert (await client.post("/api/v1/test/change")).status_code == 415


async def test_the_own_page_changes_something() -> None:
    headers = {**OWN, "Origin": "http://localhost:8080", "Sec-Fetch-Site": "same-origin"}
    async with calling(Tokens()) as client:
        assert (await client.delete("/api/v1/test/all", headers=headers)).status_code == 200
        preflight = await client.options("/api/v1/test/all", headers={"Origin": "http://evil.example"})
        assert not [name for name in preflight.headers if name.startswith("access-control")]


async def test_a_long_body_is_refused_whether_its_length_is_said_or_not() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b'"' + b"x" * 40

    headers = {"Content-Type": "application/json"}
    async with calling(policy=Policy(body_bytes_max=100)) as client:
        for content in (b"x" * 101, pieces()):
            answer = await client.put("/api/v1/test/undeclared", content=content, headers=headers)
            assert (answer.status_code, "100 bytes" in said(answer)) == (413, True)
        fits = await client.put("/api/v1/test/undeclared", content=b'"fits"', headers=headers)
        assert (fits.status_code, fits.json()) == (200, 4)


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/api/v1/cluster", "/api/v1/nothing", "/static/app.js", "/healthz"]
)
async def test_every_answer_tells_browsers_to_be_careful(path: str) -> None:
    async with calling(Tokens()) as client:
        headers = (await client.get(path)).headers
    policy = headers["content-security-policy"]
    assert all(f"{what} 'none'" in policy for what in ("frame-ancestors", "form-action", "object-src"))
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert (headers.get("cache-control") == "no-store") == path.startswith("/api/")
    assert "access-control-allow-origin" not in headers


async def test_a_body_full_of_faults_is_told_in_a_few_words() -> None:
    settings = {f"{number} {'x' * 600}": "" for number in range(30)}
    async with calling(Tokens()) as client:
        answer = await client.patch("/api/v1/brokers/h:1/config", json={"settings": settings})
        assert (answer.status_code, "and 10 more" in said(answer)) == (422, True)
        assert len(answer.content) < 20 * 600
        half, headers = rb'{"settings": {"\ud800": ""}}', {"Content-Type": "application/json"}
        no_text = await client.patch("/api/v1/brokers/h:1/config", content=half, headers=headers)
        assert (no_text.status_code, "settings" in said(no_text)) == (422, True)


async def test_expensive_queries_are_limited_for_each_client() -> None:
    async with calling() as client:
        answers = [await client.get("/api/v1/test/search", headers=bearer(READ)) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert int(answers[-1].headers["retry-after"]) > 1
        assert "expensive" in said(answers[-1])
        assert (await client.get("/api/v1/test/search", headers=bearer(OPERATE))).status_code == 200


async def test_a_change_goes_from_its_preview_to_the_audit_log() -> None:
    change = SampleChange()
    async with calling(change=change) as client:
        client.headers.update(bearer(OPERATE))
        preview = (await client.post("/api/v1/test/change")).json()
        assert (preview["isDryRun"], preview["effects"][0]["before"]) == (True, "120")
        missing = await client.post("/api/v1/test/change?dryRun=false")
        assert (missing.status_code, missing.json()["result"]["isDryRun"]) == (428, True)
        headers = {"Confirmation": preview["confirmation"]}
        change.at = 130
        stale = await client.post("/api/v1/test/change?dryRun=false", headers=headers)
        assert (stale.status_code, "situation changed" in said(stale)) == (409, True)
        confirmation = stale.json()["result"]["confirmation"]
        done = await client.post(f"/api/v1/test/change?dryRun=false&confirmation={confirmation}")
        assert (done.status_code, done.json()["outcomes"][0]["ok"], len(change.done)) == (200, True, 1)
        audited = (await client.get("/api/v1/audit")).json()
        assert [entry["outcome"] for entry in audited["items"]] == ["applied", "refused", "refused"]
        assert (audited["items"][0]["actor"], audited["total"], audited["isKept"]) == ("o", 3, False)
        page = (await client.get("/api/v1/audit?page=2&pageSize=2")).json()
        assert [entry["outcome"] for entry in page["items"]] == ["refused"]


async def test_a_reader_does_not_see_who_changed_what() -> None:
    async with calling() as client:
        assert (await client.get("/api/v1/audit", headers=bearer(READ))).status_code == 403


async def test_no_operation_at_all_is_open() -> None:
    """Whatever a router forgets: without a token nothing is answered, and a reader changes nothing."""
    async with calling() as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        tried = [(method, path) for path in paths if path.startswith("/api/") for method in paths[path]]
        for method, path in tried:
            assert (await client.request(method, path, headers=OWN)).status_code == 401, path
            if method != "get":
                answer = await client.request(method, path, headers=bearer(READ), json={})
                assert answer.status_code == 403, path
    assert len(tried) > 40
