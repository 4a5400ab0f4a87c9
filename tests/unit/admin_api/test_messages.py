"""Messages over HTTP: by id, by key, by time, and where they were consumed."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import pytest

from admin_api.messages.views import id_of
from remoting.codes import RequestCode
from tests.unit.admin_api.fake_messages import FakeMessages, FakeStore
from tests.unit.admin_api.message_bench import (
    browsing,
    content,
    detail,
    get,
    one_broker,
    two_brokers,
)

KEY = {"UNIQ_KEY": "AA" * 16, "KEYS": "order-7 even", "TAGS": "paid", "color": "red"}


async def read_all(cluster: FakeMessages, **params: Any) -> list[dict[str, Any]]:
    """Every message of a window, by its cursors."""
    items: list[dict[str, Any]] = []
    async with browsing(cluster) as client:
        part = await get(client, "/messages", topic="T", **params)
        items += part["items"]
        while part["nextCursor"] is not None:
            part = await get(
                client, "/messages", topic="T", cursor=part["nextCursor"], limit=params.get("limit", 50)
            )
            items += part["items"]
    return items


async def test_message_by_offset_id_has_everything() -> None:
    cluster, store = one_broker()
    record = store.put("T", 2, body=b'{"b":1,"a":12345678901234567890123}', at_ms=2000, properties=KEY)
    async with browsing(cluster) as client:
        found = await get(client, f"/messages/{id_of(record)}")
    assert found["id"] == id_of(record)
    assert (found["brokerName"], found["queueId"], found["queueOffset"]) == ("broker-a", 2, 0)
    assert (found["storedAtMs"], found["bornHost"], found["storeHost"]) == (
        2000,
        "10.0.0.7:4711",
        "127.0.0.1:10911",
    )
    assert (found["keys"], found["tags"], found["properties"]) == (["order-7", "even"], "paid", KEY)
    assert found["isCrcRight"]
    assert found["body"]["format"] == "json"
    assert found["body"]["content"] == '{\n  "b": 1,\n  "a": 12345678901234567890123\n}'


async def test_message_by_the_id_of_its_client_needs_its_topic() -> None:
    cluster, store = one_broker()
    cluster.topics = {"T": 1}
    record = store.put("T", properties=KEY)
    async with browsing(cluster) as client:
        said = detail(await client.get(f"/api/v1/messages/{KEY['UNIQ_KEY']}"), 404)
        assert "needs its topic" in said
        found = await get(client, f"/messages/{KEY['UNIQ_KEY']}", topic="T")
    assert found["id"] == id_of(record)
    assert found["copies"] == []


async def test_only_brokers_of_the_cluster_are_asked_for_an_id() -> None:
    cluster, store = one_broker()
    store.put("T")
    strange = "0A000001" + "00002A9F" + f"{1000:016X}"
    async with browsing(cluster) as client:
        detail(await client.get(f"/api/v1/messages/{strange}"), 404)
    assert {address for address, _, _ in cluster.asked} == {"127.0.0.1:9876", "127.0.0.1:10911"}


async def test_silent_broker_leaves_it_open_whether_the_message_is_there() -> None:
    cluster, store = one_broker()
    record = store.put("T")
    cluster.silent.add(store.address)
    async with browsing(cluster) as client:
        detail(await client.get(f"/api/v1/messages/{id_of(record)}"), 503)
        detail(await client.get(f"/api/v1/messages/{id_of(record)}?topic=absent"), 503)


async def test_message_of_a_silent_master_is_found_at_its_replica() -> None:
    """By its id, which names the master, and by its key."""
    master = FakeStore("broker-a", "127.0.0.1:10911")
    replica = FakeStore("broker-a", "127.0.0.1:10921", queues=master.queues, broker_id=1)
    cluster = FakeMessages(master, replica)
    cluster.topics = {"T": 1}
    record = master.put("T", properties=KEY)
    cluster.silent.add(master.address)
    async with browsing(cluster) as client:
        assert (await get(client, f"/messages/{id_of(record)}"))["brokerName"] == "broker-a"
        found = await get(client, "/messages", topic="T", key="even")
    assert [item["id"] for item in found["items"]] == [id_of(record)]


async def test_compressed_body_is_shown_plain_and_cut() -> None:
    cluster, store = one_broker()
    record = store.put("T", body=zlib.compress("Grüße ".encode() * 1000), sys_flag=1)
    async with browsing(cluster) as client:
        body = (await get(client, f"/messages/{id_of(record)}", bodyBytes=11))["body"]
        whole = await client.get(f"/api/v1/messages/{id_of(record)}/body")
    # The cut goes through a letter of two bytes, which is left out.
    assert (body["format"], body["content"], body["bodyBytes"]) == ("text", "Grüße Gr", 8000)
    assert (body["isBodyCut"], body["compression"], body["isText"]) == (True, "zlib", True)
    assert whole.content == "Grüße ".encode() * 1000
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["content-disposition"].startswith("attachment")


async def test_body_that_cannot_be_unpacked_says_why() -> None:
    cluster, store = one_broker()
    record = store.put("T", body=b"nonsense", sys_flag=1)
    async with browsing(cluster) as client:
        body = (await get(client, f"/messages/{id_of(record)}"))["body"]
        said = detail(await client.get(f"/api/v1/messages/{id_of(record)}/body"), 400)
    assert (body["content"], body["bodyBytes"], body["storedBytes"]) == (None, None, 8)
    assert "cannot be unpacked" in body["problem"]
    assert "cannot be unpacked" in said


@pytest.mark.parametrize(
    ("body_format", "shown"),
    [("hex", "00ff10"), ("base64", "AP8Q"), ("auto", "00ff10"), ("text", "00ff10"), ("json", "00ff10")],
)
async def test_bytes_are_shown_as_asked_where_they_can_be(body_format: str, shown: str) -> None:
    cluster, store = one_broker()
    record = store.put("T", body=b"\x00\xff\x10")
    async with browsing(cluster) as client:
        body = (await get(client, f"/messages/{id_of(record)}", bodyFormat=body_format))["body"]
    assert body["content"] == shown
    assert (body["problem"] is None) == (body_format in ("hex", "base64", "auto"))


async def test_by_key_asks_all_brokers_and_passes_over_what_only_hashes_the_same() -> None:
    cluster, first, second = two_brokers()
    cluster.topics = {"T": 1}
    old = first.put("T", at_ms=1000, properties={"KEYS": "order-7"})
    new = second.put("T", at_ms=2000, properties={"KEYS": "other order-7"})
    second.put("T", at_ms=3000, properties={"KEYS": "order-77"})
    async with browsing(cluster) as client:
        found = await get(client, "/messages", topic="T", key="order-7")
    assert [item["id"] for item in found["items"]] == [id_of(new), id_of(old)]
    assert (found["isPartial"], found["nextCursor"], found["examined"]) == (False, None, None)


async def test_by_key_with_a_silent_broker_is_partial() -> None:
    cluster, first, second = two_brokers()
    cluster.topics = {"T": 1}
    first.put("T", properties={"KEYS": "order-7"})
    cluster.silent.add(second.address)
    async with browsing(cluster) as client:
        found = await get(client, "/messages", topic="T", key="order-7")
        assert len(found["items"]) == 1
        assert found["isPartial"]
        detail(await client.get("/api/v1/messages?topic=T&key=absent"), 503)


async def test_window_has_the_newest_first_of_all_queues() -> None:
    cluster, first, second = two_brokers()
    cluster.topics = {"T": 2}
    for number in range(40):
        store = (first, second)[number % 2]
        store.put("T", number // 2 % 2, at_ms=1000 + number, body=str(number).encode())
    found = await read_all(cluster, limit=7)
    assert [item["preview"] for item in found] == [str(number) for number in reversed(range(40))]


async def test_window_holds_both_ends_and_nothing_beside() -> None:
    cluster, store = one_broker()
    cluster.topics = {"T": 1}
    for number in range(30):
        store.put("T", at_ms=1000 + number // 3, body=str(number).encode())
    found = await read_all(cluster, **{"from": 1003, "to": 1005})
    assert [item["preview"] for item in found] == [str(number) for number in range(17, 8, -1)]


async def test_window_of_a_tag_goes_on_though_few_have_it() -> None:
    cluster, store = one_broker()
    cluster.topics = {"T": 1}
    for number in range(3000):
        store.put("T", at_ms=number, properties={"TAGS": "rare" if number in (5, 2990) else "often"})
    found = await read_all(cluster, tag="rare")
    assert [item["queueOffset"] for item in found] == [2990, 5]


async def test_window_of_slow_pulls_reads_every_message_once() -> None:
    """A broker may give one message at a time: large ones, or from a disk."""
    cluster, store = one_broker()
    cluster.topics, cluster.pull_max = {"T": 1}, 1
    for number in range(50):
        store.put("T", at_ms=number)
    found = await read_all(cluster, limit=20)
    assert [item["queueOffset"] for item in found] == list(reversed(range(50)))


async def test_window_begins_where_the_log_does() -> None:
    cluster, store = one_broker()
    cluster.topics = {"T": 1}
    for number in range(10):
        store.put("T", at_ms=number)
    store.begins["T", 0] = 4
    found = await read_all(cluster)
    assert [item["queueOffset"] for item in found] == [9, 8, 7, 6, 5, 4]


async def test_window_with_a_silent_broker_is_partial_and_of_none_a_problem() -> None:
    cluster, first, second = two_brokers()
    cluster.topics = {"T": 1}
    first.put("T")
    cluster.silent.add(second.address)
    async with browsing(cluster) as client:
        found = await get(client, "/messages", topic="T")
        assert (len(found["items"]), found["isPartial"]) == (1, True)
        assert second.address in found["problems"][0]["address"]
        cluster.silent.add(first.address)
        detail(await client.get("/api/v1/messages?topic=T"), 503)


async def test_strange_cursors_and_topics_are_refused() -> None:
    cluster, store = one_broker()
    cluster.topics = {"T": 1, "U": 1}
    for number in range(5):
        store.put("T", at_ms=number)
    async with browsing(cluster) as client:
        cursor = (await get(client, "/messages", topic="T", limit=2))["nextCursor"]
        assert "another topic" in detail(await client.get(f"/api/v1/messages?topic=U&cursor={cursor}"), 400)
        for strange in ("x", "AAAA", base64.urlsafe_b64encode(zlib.compress(b"[1]")).decode(), "%00"):
            detail(await client.get(f"/api/v1/messages?topic=T&cursor={strange}"), 400)
        detail(await client.get("/api/v1/messages?topic=absent"), 404)


async def test_messages_from_an_offset_of_a_queue() -> None:
    cluster, first, second = two_brokers()
    cluster.topics = {"T": 2}
    for number in range(10):
        second.put("T", 1, at_ms=number)
    first.put("T", 1)
    place = {"topic": "T", "brokerName": "broker-b", "queueId": 1}
    async with browsing(cluster) as client:
        found = (await get(client, "/messages", offset=4, limit=3, **place))["items"]
        assert (await get(client, "/messages", offset=10, **place))["items"] == []
        detail(await client.get("/api/v1/messages?topic=T&offset=4"), 400)
        detail(await client.get("/api/v1/messages?topic=T&offset=4&brokerName=b&queueId=0"), 404)
    assert [(item["brokerName"], item["queueOffset"]) for item in found] == [
        ("broker-b", n) for n in (4, 5, 6)
    ]


async def test_track_tells_consumed_filtered_waiting_and_offline() -> None:
    cluster, store = one_broker()
    cluster.topics = {"T": 1}
    record = store.put("T", properties=KEY)
    subscription = {"topic": "T", "subString": "other || more", "expressionType": "TAG"}
    online: dict[str, Any] = {"connectionSet": [], "subscriptionTable": {}}
    store.offsets = {("done", "T", 0): 1, ("choosy", "T", 0): 1, ("late", "T", 0): 0, ("gone", "T", 0): 0}
    store.members = {
        "done": online,
        "choosy": online | {"subscriptionTable": {"T": subscription}},
        "late": online,
        "loud": online | {"messageModel": "BROADCASTING"},
    }
    async with browsing(cluster) as client:
        track = await get(client, f"/messages/{id_of(record)}/track")
    states = {item["group"]: item["state"] for item in track["items"]}
    assert states == {
        "done": "consumed",
        "choosy": "filtered",
        "late": "notYet",
        "gone": "offline",
        "loud": "unknown",
    }


async def test_trace_is_found_by_either_id() -> None:
    cluster, store = one_broker()
    cluster.topics = {"T": 1, "RMQ_SYS_TRACE_TOPIC": 1}
    record = store.put("T", properties=KEY)
    told = f"SubBefore\x012000\x01R\x01billing\x01Q1\x01{KEY['UNIQ_KEY']}\x010\x01order-7\x02"
    store.put("RMQ_SYS_TRACE_TOPIC", body=told.encode(), properties={"KEYS": KEY["UNIQ_KEY"]})
    async with browsing(cluster) as client:
        by_key = await get(client, f"/messages/{KEY['UNIQ_KEY']}/trace")
        assert by_key == await get(client, f"/messages/{id_of(record)}/trace")
        assert (await get(client, "/messages/absent/trace"))["spans"] == []
    (span,) = by_key["spans"]
    assert (span["kind"], span["group"], span["isSuccess"]) == ("consume", "billing", None)


async def test_a_broker_that_answers_nonsense_gave_no_answer() -> None:
    cluster, store = one_broker()
    cluster.topics = {"T": 1}
    record = store.put("T")
    record.body = b""
    real = cluster.invoke

    async def cut(address: str, command: Any, timeout_s: float = 3.0) -> Any:
        answer = await real(address, command, timeout_s)
        if command.code in (RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.PULL_MESSAGE):
            answer.body = answer.body[:-1]
        return answer

    cluster.invoke = cut  # type: ignore[method-assign]
    async with browsing(cluster) as client:
        assert "cannot be read" in detail(await client.get(f"/api/v1/messages/{id_of(record)}"), 503)
        window = content(await client.get("/api/v1/messages?topic=T"))
    assert (window["items"], window["isPartial"]) == ([], True)
    assert window["nextCursor"] is not None
