"""What somebody may try who has no token, another's page, or a token that does not go far enough."""

import pytest

from admin_api.app import create_app
from admin_api.cluster.feed import TooManyWatchersError
from admin_api.security.http_guard import FAILURES_BURST, SMALL_BODY_BYTES_MAX, VALUES_MAX
from admin_api.security.policy import BODY_BYTES_MAX, Tokens
from admin_api.settings import Settings
from tests.unit.admin_api.fake_brokers import NAMESRV, FakeBroker, FakeBrokers
from tests.unit.admin_api.serving import answered, asking, asking_app
from tests.unit.admin_api.test_feed import CountingRead, feed_over
from tests.unit.admin_api.test_guard import OPERATE, OWN, bearer, calling, said


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/%2e%2e%2f%2e%2e%2fpyproject.toml",
        "/static//etc/passwd",
        "/static/..%5capp.py",
        "/static/%00",
        "/static/",
        "/static",
    ],
)
async def test_nothing_but_the_pages_own_files_is_served(path: str) -> None:
    async with calling(Tokens()) as client:
        answer = await client.get(path)
        assert answer.status_code in (307, 404), answer.text
        assert "import" not in answer.text


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_an_image_elsewhere_asks_for_nothing(site: str) -> None:
    """It could read nothing, and would cost the brokers searches and the audit log exports."""
    async with calling(Tokens()) as client:
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
        answer = await client.get("/api/v1/test/search", headers=headers)
        assert (answer.status_code, "other origins" in said(answer)) == (403, True)
        assert (await client.get("/healthz", headers=headers)).status_code == 200
        link = {**headers, "Sec-Fetch-Mode": "navigate"}
        assert (await client.get("/api/v1/test/search", headers=link)).status_code == 200


async def test_a_password_in_an_address_makes_no_form_a_program() -> None:
    """http://a:b@127.0.0.1:8080/ has a browser send it, with a form's body."""
    async with calling(Tokens()) as client:
        headers = {"Authorization": "Basic YTpi"}
        answer = await client.post("/api/v1/test/change", data={"a": "b"}, headers=headers)
        assert (answer.status_code, "application/json" in said(answer)) == (415, True)


async def test_only_a_message_may_be_long() -> None:
    body, headers = b" " * (SMALL_BODY_BYTES_MAX + 1), {"Content-Type": "application/json"}
    async with calling(Tokens()) as client:
        answer = await client.put("/api/v1/test/undeclared", content=body, headers=headers)
        assert (answer.status_code, str(SMALL_BODY_BYTES_MAX) in said(answer)) == (413, True)
        longer = await client.post("/api/v1/topics/t/messages", content=body, headers=headers)
        assert longer.status_code == 422
        too_long = b" " * (BODY_BYTES_MAX + 1)
        most = await client.post("/api/v1/topics/t/messages", content=too_long, headers=headers)
        assert most.status_code == 413
        many = b"[" + b"[]," * VALUES_MAX + b"1]"
        refused = await client.post("/api/v1/topics", content=many, headers=headers)
        assert (refused.status_code, f"{VALUES_MAX} values" in said(refused)) == (413, True)


@pytest.mark.parametrize("body", [b"[" * 60_000, b"1" * 100_000, b'{"a":' * 30_000, b'"\xff"', b"nul"])
async def test_json_that_is_none_is_a_problem(body: bytes) -> None:
    async with calling() as client:
        headers = {**bearer(OPERATE), "Content-Type": "application/json"}
        answer = await client.put("/api/v1/test/undeclared", content=body, headers=headers)
        assert (answer.status_code in (400, 422), len(said(answer)) < 1000) == (True, True)


async def test_all_addresses_of_one_guesser_count_as_one() -> None:
    async with calling(remote="2001:db8::1") as client:
        transport = client._transport
        statuses = []
        for number in range(FAILURES_BURST + 1):
            transport.client = (f"2001:db8::{number:x}", 4711)  # type: ignore[attr-defined]
            answer = await client.get("/healthz", headers=bearer(f"wrong-{number}"))
            statuses.append(answer.status_code)
        assert statuses == [401] * FAILURES_BURST + [429]
        transport.client = ("2001:db8:0:1::1", 4711)  # type: ignore[attr-defined]
        assert (await client.get("/healthz", headers=bearer("wrong"))).status_code == 401


async def test_what_cannot_be_answered_now_says_when_to_ask_again() -> None:
    brokers = FakeBrokers(FakeBroker("broker-a", "127.0.0.1:10911"))
    brokers.hanging.add("127.0.0.1:9876")
    async with asking(brokers) as client:
        for path in ("/topics", "/consumer-groups", "/cluster"):
            answer = await client.get(path)
            answered(answer, 503)
            assert (answer.headers["retry-after"], answer.headers["content-type"]) == (
                "2",
                "application/problem+json",
            )


async def test_what_asks_about_every_group_or_queue_is_limited() -> None:
    settings = Settings(namesrv=NAMESRV, costly_burst=1, costly_per_s=0.001)
    brokers = FakeBrokers(FakeBroker("broker-a", "127.0.0.1:10911"))
    async with asking_app(create_app(settings, brokers)) as client:
        await client.get("/producer-groups")
        for path in (
            "/consumer-groups",
            "/consumer-groups/g",
            "/consumer-groups/g/progress",
            "/consumer-groups/g/members/c/running",
            "/messages/AC",
            "/messages/AC/body",
            "/messages?topic=t",
            "/topics/t/queues",
            "/topics/t/stats",
            "/dlq",
            "/doctor",
            "/audit",
            "/replication/broker-a",
        ):
            answer = await client.get(path)
            assert (answer.status_code, int(answer.headers.get("retry-after", 0)) >= 1) == (429, True), path
        for path in ("reset", "skip", "clone"):
            body = {"topic": "t", "to": "latest", "targetGroup": "h"}
            answer = await client.post(f"/consumer-groups/g/offsets/{path}", json=body, headers=OWN)
            assert answer.status_code == 429, path


async def test_one_client_leaves_streams_for_others() -> None:
    feed = feed_over(CountingRead(), watchers_max=4)
    streams = [feed.watch("grafana@192.0.2.1") for _ in range(2)]
    with pytest.raises(TooManyWatchersError, match="of this client"):
        feed.watch("grafana@192.0.2.1")
    streams += [feed.watch("ops@192.0.2.1"), feed.watch()]
    with pytest.raises(TooManyWatchersError, match="4 event streams"):
        feed.watch("ops@192.0.2.1")
    assert feed.watchers == 4
