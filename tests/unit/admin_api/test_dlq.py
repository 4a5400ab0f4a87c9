"""Dead letters over HTTP: counted, read, resent once and not twice, and as a file."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from admin_api.app import create_app
from admin_api.messages.views import id_of
from admin_api.settings import Settings
from remoting.codes import RequestCode
from remoting.record import Record, parse_properties
from tests.unit.admin_api.fake_messages import NAMESRV, FakeMessages, FakeStore
from tests.unit.admin_api.message_bench import browsing, confirmed, detail, get, one_broker, post, two_brokers

TOPIC = "%DLQ%billing"
RETRY = "%RETRY%billing"


def letter(store: FakeStore, number: int, **extra: str) -> Record:
    """A dead letter as a broker makes it after the last try."""
    properties = {
        "UNIQ_KEY": f"{number:032X}",
        "KEYS": f"order-{number}",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": f"{number + 1000:032X}",
        "DELAY": "0",
        "RECONSUME_TIME": "16",
        **extra,
    }
    body = f"letter {number}".encode()
    return store.put(TOPIC, body=body, at_ms=1000 + number, properties=properties, reconsume_times=17)


def filled(count: int) -> tuple[FakeMessages, FakeStore, list[Record]]:
    cluster, store = one_broker()
    cluster.topics = {TOPIC: 1, RETRY: 1, "orders": 4, "other": 1}
    return cluster, store, [letter(store, number) for number in range(count)]


def copies(store: FakeStore, topic: str) -> list[Record]:
    return [record for record in store.records() if record.topic == topic]


async def test_groups_are_counted_and_aged() -> None:
    cluster, first, second = two_brokers()
    cluster.topics = {TOPIC: 1, "%DLQ%audit": 1, "orders": 4}
    letter(first, 1)
    letter(first, 5)
    letter(second, 3)
    second.begins["%DLQ%audit", 0] = 0
    async with browsing(cluster) as client:
        page = await get(client, "/dlq", pageSize=10)
        assert (await get(client, "/dlq", name="BILL"))["total"] == 1
        assert await get(client, "/dlq/billing") == page["items"][1]
        detail(await client.get("/api/v1/dlq/absent"), 404)
    empty, billing = page["items"]
    assert (empty["group"], empty["count"], empty["oldestAtMs"]) == ("audit", 0, None)
    assert (billing["count"], billing["oldestAtMs"], billing["newestAtMs"]) == (3, 1001, 1005)
    assert (page["total"], page["isPartial"]) == (2, False)


async def test_groups_of_a_silent_broker_are_not_counted_as_none() -> None:
    cluster, first, second = two_brokers()
    cluster.topics = {TOPIC: 1}
    letter(first, 1)
    cluster.silent.add(second.address)
    async with browsing(cluster) as client:
        (billing,) = (await get(client, "/dlq"))["items"]
        assert (billing["count"], billing["isPartial"]) == (1, True)
        cluster.silent.add(first.address)
        (billing,) = (await get(client, "/dlq"))["items"]
        assert (billing["count"], billing["isPartial"]) == (None, True)
        detail(await client.get("/api/v1/dlq/billing"), 503)


async def test_a_topic_that_has_just_gone_is_left_out_and_the_rest_is_told() -> None:
    cluster, first, _ = two_brokers()
    cluster.topics = {TOPIC: 1, "%DLQ%unrouted": 1, "%DLQ%forgotten": 1, "%DLQ%zebra": 1}
    cluster.unrouted.add("%DLQ%unrouted")
    cluster.forgotten.add("%DLQ%forgotten")
    letter(first, 1)
    async with browsing(cluster) as client:
        page = await get(client, "/dlq")
        for gone in ("unrouted", "forgotten"):
            detail(await client.get(f"/api/v1/dlq/{gone}"), 404)
    assert [(view["group"], view["count"]) for view in page["items"]] == [("billing", 1), ("zebra", 0)]
    assert (page["total"], page["isPartial"], page["problems"]) == (2, False, [])


async def test_a_topic_whose_route_nobody_tells_is_unknown_and_the_rest_is_told() -> None:
    cluster, first, _ = two_brokers()
    cluster.topics = {"%DLQ%audit": 1, TOPIC: 1}
    cluster.hidden_routes.add("%DLQ%audit")
    letter(first, 1)
    async with browsing(cluster) as client:
        page = await get(client, "/dlq")
        detail(await client.get("/api/v1/dlq/audit"), 503)
    assert [(view["group"], view["count"], view["isPartial"]) for view in page["items"]] == [
        ("audit", None, True),
        ("billing", 1, False),
    ]
    assert (page["total"], page["isPartial"]) == (2, True)
    assert [problem["address"] for problem in page["problems"]] == ["%DLQ%audit"]


async def test_letters_tell_where_they_come_from() -> None:
    cluster, _, letters = filled(5)
    async with browsing(cluster) as client:
        first = await get(client, "/dlq/billing/messages", limit=3)
        rest = await get(client, "/dlq/billing/messages", limit=3, cursor=first["nextCursor"])
        detail(await client.get("/api/v1/dlq/absent/messages"), 404)
    items = first["items"] + rest["items"]
    assert [item["id"] for item in items] == [id_of(each) for each in reversed(letters)]
    assert rest["nextCursor"] is None
    newest = items[0]
    assert (newest["originalTopic"], newest["originalId"]) == ("orders", f"{1004:032X}")
    assert (newest["reconsumeTimes"], newest["ageMs"] > 0) == (17, True)


async def test_one_letter_goes_to_its_group_alone() -> None:
    cluster, store, letters = filled(3)
    async with browsing(cluster) as client:
        done = await confirmed(client, "/dlq/billing/resend", {"ids": [id_of(letters[1])]})
    assert [outcome["ok"] for outcome in done["outcomes"]] == [True]
    (copy,) = copies(store, RETRY)
    assert (copy.body, copy.reconsume_times) == (b"letter 1", 0)
    assert parse_properties(copy.properties) == {
        "UNIQ_KEY": f"{1:032X}",
        "KEYS": "order-1",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": f"{1001:032X}",
        "LEDGERMQ_RESENT_FROM": id_of(letters[1]),
        "WAIT": "true",
    }
    assert cluster.codes(RequestCode.SEND_MESSAGE_V2)[0]["l"] == "16"
    assert copies(store, "orders") == []


async def test_same_confirmation_resends_nothing_twice() -> None:
    cluster, store, _ = filled(3)
    path = "/dlq/billing/resend"
    async with browsing(cluster) as client:
        dry = await post(client, path, {})
        params = {"dryRun": "false", "confirmation": dry["confirmation"]}
        await post(client, path, {}, **params)
        again = await client.post(f"/api/v1{path}", json={}, params=params)
    assert again.status_code == 409
    assert len(copies(store, RETRY)) == 3


async def test_letters_that_another_process_resent_are_left_out() -> None:
    cluster, store, letters = filled(3)
    path = "/dlq/billing/resend"
    async with browsing(cluster) as client:
        await confirmed(client, path, {"ids": [id_of(letters[0])]})
    async with browsing(cluster) as client:
        dry = await post(client, path, {"ids": [id_of(each) for each in letters]})
        assert [effect["after"] for effect in dry["effects"]] == [None, *[f"once more in {RETRY}"] * 2]
        assert "resent already" in dry["effects"][0]["before"]
        assert "1 were resent already and are left out." in dry["warnings"]
        done = await confirmed(client, path, {"ids": [id_of(each) for each in letters]})
        assert len(done["outcomes"]) == 2
        detail(await client.post(f"/api/v1{path}", json={}), 409)
    assert [copy.body for copy in copies(store, RETRY)] == [b"letter 0", b"letter 1", b"letter 2"]


async def test_nothing_is_resent_while_a_broker_that_may_have_the_copy_is_silent() -> None:
    cluster, first, second = two_brokers()
    cluster.topics = {TOPIC: 1, "orders": 4}
    first.put("orders", properties={"UNIQ_KEY": f"{1:032X}"})
    order = {"target": "topic", "ids": [id_of(letter(first, 1))]}
    original = id_of(first.records()[0])
    async with browsing(cluster) as client:
        cluster.silent.add(second.address)
        said = detail(await client.post("/api/v1/dlq/billing/resend", json=order), 503)
        one = await post(client, f"/messages/{original}/resend", {}, topic="orders")
    assert second.address in said
    assert any("is not known" in warning for warning in one["warnings"])
    assert len(copies(first, "orders")) == 1


async def test_all_of_a_window_go_part_by_part_to_their_topics() -> None:
    cluster, store, _ = filled(10)
    letter(store, 10, RETRY_TOPIC="other")
    order: dict[str, Any] = {"target": "topic", "fromMs": 1002, "limit": 4}
    async with browsing(cluster) as client:
        dry = await post(client, "/dlq/billing/resend", order)
        assert any("There are more" in warning for warning in dry["warnings"])
        for _ in range(3):
            await confirmed(client, "/dlq/billing/resend", order)
        detail(await client.post("/api/v1/dlq/billing/resend", json=order), 409)
    assert [copy.body for copy in copies(store, "orders")] == [f"letter {n}".encode() for n in range(2, 10)]
    assert [copy.body for copy in copies(store, "other")] == [b"letter 10"]
    assert all("RETRY_TOPIC" not in parse_properties(copy.properties) for copy in copies(store, "orders"))


async def test_new_letter_between_preview_and_change_is_asked_about() -> None:
    cluster, store, _ = filled(2)
    async with browsing(cluster) as client:
        dry = await post(client, "/dlq/billing/resend", {})
        letter(store, 2)
        params = {"dryRun": "false", "confirmation": dry["confirmation"]}
        refused = await client.post("/api/v1/dlq/billing/resend", json={}, params=params)
    assert refused.status_code == 409
    assert len(refused.json()["result"]["effects"]) == 3
    assert copies(store, RETRY) == []


async def test_failures_are_told_one_by_one_and_end_the_rest() -> None:
    cluster, _, letters = filled(6)
    cluster.refused_sends = {RETRY}
    async with browsing(cluster) as client:
        dry = await post(client, "/dlq/billing/resend", {})
        params = {"dryRun": "false", "confirmation": dry["confirmation"]}
        failed = await client.post("/api/v1/dlq/billing/resend", json={}, params=params)
    assert failed.status_code in (409, 502)
    outcomes = failed.json()["result"]["outcomes"]
    assert [outcome["subject"] for outcome in outcomes] == [id_of(each) for each in letters]
    assert ["not tried" in outcome["problem"] for outcome in outcomes] == [False] * 3 + [True] * 3


async def test_retry_topic_that_is_not_there_is_made_by_the_broker() -> None:
    cluster, store, _ = filled(2)
    del cluster.topics[RETRY]
    async with browsing(cluster) as client:
        dry = await post(client, "/dlq/billing/resend", {})
        done = await confirmed(client, "/dlq/billing/resend", {})
    assert f"The topic {RETRY} does not exist. A broker makes it." in dry["warnings"]
    assert [outcome["ok"] for outcome in done["outcomes"]] == [True, True]
    assert len(copies(store, RETRY)) == 2


async def test_original_topic_that_is_not_there_is_told_before_and_stays_away() -> None:
    cluster, store, _ = filled(1)
    letter(store, 1, RETRY_TOPIC="gone")
    async with browsing(cluster) as client:
        dry = await post(client, "/dlq/billing/resend", {"target": "topic"})
        done = await confirmed(client, "/dlq/billing/resend", {"target": "topic"})
    assert "The topic gone does not exist. Its letters cannot be resent there." in dry["warnings"]
    assert [outcome["ok"] for outcome in done["outcomes"]] == [True, False]
    assert copies(store, "gone") == []


async def test_topic_closed_to_writes_takes_away_nothing_of_what_was_resent() -> None:
    cluster, store, _ = filled(1)
    letter(store, 1, RETRY_TOPIC="closed")
    cluster.topics["closed"] = 0
    async with browsing(cluster) as client:
        done = await confirmed(client, "/dlq/billing/resend", {"target": "topic"})
    assert [outcome["ok"] for outcome in done["outcomes"]] == [True, False]
    assert "No broker takes messages for closed" in done["outcomes"][1]["problem"]
    assert done["isPartial"]


async def test_ids_of_others_are_refused() -> None:
    cluster, store, _ = filled(1)
    strange = store.put("orders")
    async with browsing(cluster) as client:
        said = detail(await client.post("/api/v1/dlq/billing/resend", json={"ids": [id_of(strange)]}), 400)
        detail(await client.post("/api/v1/dlq/billing/resend", json={"ids": ["00" * 16]}), 404)
    assert "no dead letter of billing" in said


async def test_export_as_json_lines() -> None:
    cluster, store, letters = filled(40)
    store.put(TOPIC, body=b"\xff\x00", at_ms=2000)
    async with browsing(cluster) as client:
        answer = await client.get("/api/v1/dlq/billing/export")
        cut = await client.get("/api/v1/dlq/billing/export?limit=2")
        detail(await client.get("/api/v1/dlq/absent/export"), 404)
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [row["id"] for row in rows[:40]] == [id_of(each) for each in letters]
    assert (rows[0]["body"], rows[0]["originalTopic"], rows[0]["storedAt"]) == (
        "letter 0",
        "orders",
        "1970-01-01T00:00:01.000Z",
    )
    assert (rows[40]["bodyEncoding"], rows[40]["body"], len(rows)) == ("base64", "/wA=", 41)
    assert "attachment" in answer.headers["content-disposition"]
    assert [set(json.loads(line)) == {"cut"} for line in cut.text.splitlines()] == [False, False, True]


async def test_export_as_csv_holds_no_formula() -> None:
    cluster, store, _ = filled(1)
    store.put(TOPIC, body=b'=HYPERLINK("http://x","y")', at_ms=2000)
    async with browsing(cluster) as client:
        answer = await client.get("/api/v1/dlq/billing/export?format=csv")
    heading, first, second = csv.reader(io.StringIO(answer.text))
    assert heading[:3] == ["id", "uniqueKey", "originalTopic"]
    assert dict(zip(heading, first, strict=True))["body"] == "letter 0"
    assert dict(zip(heading, second, strict=True))["body"] == '\'=HYPERLINK("http://x","y")'


@pytest.mark.parametrize("file_format", ["jsonl", "csv"])
async def test_export_that_cannot_begin_is_a_problem(file_format: str) -> None:
    cluster, store, _ = filled(1)
    cluster.silent.add(store.address)
    async with browsing(cluster) as client:
        detail(await client.get("/api/v1/dlq/billing/export", params={"format": file_format}), 503)


OPERATIONS = [
    (path, operation)
    for path, operations in create_app(Settings(namesrv=NAMESRV), one_broker()[0]).openapi()["paths"].items()
    for operation in operations.values()
    if path.startswith(("/api/v1/messages", "/api/v1/dlq")) or path.endswith("}/messages")
]


@pytest.mark.parametrize(("path", "operation"), OPERATIONS)
def test_every_route_is_described_with_an_answer_and_its_problems(
    path: str, operation: dict[str, Any]
) -> None:
    contents = operation["responses"]["200"]["content"]
    assert operation["summary"]
    assert operation["description"]
    assert all("example" in each or media.endswith("octet-stream") for media, each in contents.items())
    assert "503" in operation["responses"]
