"""What the audit log has besides changes: what was taken out, and who was refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from httpx import AsyncClient

from admin_api.app import create_app
from admin_api.audit.log import (
    REFUSED_MAX,
    REFUSED_TEXT_MAX,
    AuditEntry,
    AuditLog,
    Auditor,
    Refusal,
    Refusals,
)
from admin_api.gateway import AskError
from admin_api.settings import Settings
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.errors import RequestTimeoutError
from tests.unit.admin_api.change_samples import OPERATOR, SampleChange
from tests.unit.admin_api.fake_messages import NAMESRV, PULLED_MAX, FakeMessages
from tests.unit.admin_api.serving import asking_app
from tests.unit.admin_api.test_dlq import filled
from tests.unit.admin_api.test_guard import OPERATE, OWN, READ, bearer, calling

EXPORT = "/dlq/billing/export"


async def audited(client: AsyncClient, prefix: str = "/api/v1") -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client.get(f"{prefix}/audit")).json()["items"]
    return items


@pytest.mark.parametrize(("query", "count"), [("", 3), ("?format=csv", 3), ("?limit=2", 2)])
async def test_an_export_is_audited_with_how_much_it_was(query: str, count: int) -> None:
    cluster, _, _ = filled(3)
    async with asking_app(create_app(Settings(namesrv=NAMESRV), cluster)) as client:
        await client.get(EXPORT + query)
        (entry,) = await audited(client, "")
    assert (entry["action"], entry["target"], entry["actor"]) == ("dlq.export", "billing", "local")
    assert (entry["outcome"], entry["problem"]) == ("applied", None)
    assert entry["effects"] == [{"subject": "dead letters", "before": None, "after": str(count)}]


async def test_an_export_that_breaks_off_is_audited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _, _ = filled(PULLED_MAX + 5)
    answer = FakeMessages.invoke

    async def fall_silent(
        self: FakeMessages, address: str, command: RemotingCommand, timeout_s: float
    ) -> Any:
        if command.code == RequestCode.PULL_MESSAGE and int(command.ext_fields["queueOffset"]) > 0:
            raise RequestTimeoutError("no answer")
        return await answer(self, address, command, timeout_s)

    monkeypatch.setattr(FakeMessages, "invoke", fall_silent)
    async with asking_app(create_app(Settings(namesrv=NAMESRV), cluster)) as client:
        await client.get(EXPORT)
        (entry,) = await audited(client, "")
    assert (entry["outcome"], entry["problem"]) == ("partial", "broken off")
    assert entry["effects"][0]["after"] == str(PULLED_MAX)


async def test_what_cannot_be_audited_is_not_exported(tmp_path: Path) -> None:
    cluster, _, _ = filled(3)
    log = AuditLog(tmp_path / "audit.jsonl")
    async with asking_app(create_app(Settings(namesrv=NAMESRV), cluster, audit_log=log)) as client:
        log.close()
        answer = await client.get(EXPORT)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "letter" not in answer.text


@pytest.mark.parametrize(
    ("token", "method", "path", "body", "status", "actor", "said"),
    [
        (None, "POST", "/api/v1/test/change", {}, 401, "unknown", "token is needed"),
        ("wrong", "POST", "/api/v1/test/change", {}, 401, "unknown", "not known"),
        (READ, "POST", "/api/v1/test/change", {}, 403, "r", "may only read"),
        (OPERATE, "DELETE", "/api/v1/test/all", None, 403, "o", "needs the role admin"),
        (OPERATE, "PUT", "/api/v1/test/undeclared", {}, 422, "o", "body"),
        (OPERATE, "POST", "/api/v1/test/change?dryRun=perhaps", None, 422, "o", "dryRun"),
        (OPERATE, "POST", "/api/v1/test/nothing", None, 404, "o", "Not Found"),
    ],
)
async def test_a_refused_request_is_audited(
    token: str | None, method: str, path: str, body: object, status: int, actor: str, said: str
) -> None:
    async with calling() as client:
        headers = OWN if token is None else bearer(token)
        answer = await client.request(method, path, json=body, headers=headers)
        client.headers.update(bearer(OPERATE))
        (entry,) = await audited(client)
    assert answer.status_code == status
    assert (entry["action"], entry["outcome"], entry["actor"]) == ("request", "refused", actor)
    assert entry["target"] == f"{method} {path.partition('?')[0]}"
    assert entry["problem"].startswith(f"{status}: ")
    assert said in entry["problem"]
    assert entry["remote"] == "127.0.0.1"


async def test_a_page_elsewhere_that_tries_is_audited() -> None:
    async with calling() as client:
        client.headers.update(bearer(OPERATE))
        await client.delete("/api/v1/test/all", headers={"Origin": "https://evil.example"})
        (entry,) = await audited(client)
    assert (entry["actor"], entry["problem"][:4]) == ("unknown", "403:")


async def test_looks_and_previews_are_not_audited_and_no_change_twice() -> None:
    async with calling(change=SampleChange(preview_error=AskError("a", "no answer"))) as client:
        await client.get("/api/v1/cluster")
        client.headers.update(bearer(OPERATE))
        await client.get("/api/v1/nothing")
        for yes in ("true", "1", "Yes"):
            await client.post(f"/api/v1/test/nothing?dryRun={yes}")
        assert await audited(client) == []
        await client.post("/api/v1/test/change?dryRun=false")
        assert [entry["action"] for entry in await audited(client)] == ["offset.reset"]


async def test_a_line_end_in_a_path_ends_no_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    cluster, _, _ = filled(1)
    async with asking_app(create_app(Settings(namesrv=NAMESRV), cluster, audit_log=log)) as client:
        await client.post('/nothing%0A{"id":"forged"}')
    log.close()
    (line,) = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert AuditEntry.model_validate_json(line).target == "POST /api/v1/nothing%0A%7B%22id%22:%22forged%22%7D"


def refusal(*, known: bool) -> Refusal:
    actor = OPERATOR if known else None
    return Refusal("POST", "/api/v1/" + "x" * 1000, 401, "y" * 1000, actor, "192.0.2.1")


async def entries(log: AuditLog) -> list[AuditEntry]:
    return (await log.newest(0, 100))[0]


async def test_a_flood_of_refused_requests_is_a_few_lines_and_a_count() -> None:
    log = AuditLog(None)
    refusals = Refusals(Auditor(log), "request")
    for _ in range(50):
        await refusals.add(refusal(known=False))
    await refusals.add(refusal(known=True))
    assert len(await entries(log)) == REFUSED_MAX + 1, "a flood of strangers hides nobody who is known"
    await refusals.close()
    count, known, *strangers = await entries(log)
    assert (count.target, count.problem) == (
        "other requests",
        f"{50 - REFUSED_MAX} more were refused within 60 s",
    )
    assert (count.actor, known.actor, len(strangers)) == ("unknown", OPERATOR.name, REFUSED_MAX)
    assert (len(known.target), len(known.problem or "")) == (REFUSED_TEXT_MAX, REFUSED_TEXT_MAX)


async def test_a_flood_is_counted_when_its_minute_is_over() -> None:
    log = AuditLog(None)
    refusals = Refusals(Auditor(log), "request", window_s=0.05)
    for _ in range(REFUSED_MAX + 3):
        await refusals.add(refusal(known=False))
    async with asyncio.timeout(20):
        while len(await entries(log)) <= REFUSED_MAX:
            await asyncio.sleep(0)
    assert (await entries(log))[0].problem == "3 more were refused within 0.05 s"
    await refusals.add(refusal(known=False))
    assert len(await entries(log)) == REFUSED_MAX + 2
    await refusals.close()


async def test_a_log_that_cannot_be_written_stops_no_refusal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.close()
    await Refusals(Auditor(log), "request").add(refusal(known=False))
    assert "is not audited" in caplog.text
