"""Test messages and messages sent again, over HTTP."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from admin_api.messages.views import id_of
from remoting.record import parse_properties
from tests.unit.admin_api.message_bench import (
    browsing,
    confirmed,
    detail,
    get,
    one_broker,
    post,
)

KEY = {"UNIQ_KEY": "AA" * 16, "KEYS": "order-7 even", "TAGS": "paid", "color": "red"}


async def test_test_message_is_sent_as_described() -> None:
    cluster, store = one_broker()
    cluster.topics = {"T": 4}
    order = {
        "text": "Grüße",
        "keys": ["a", "b"],
        "tags": "t",
        "properties": {"color": "red"},
        "delayLevel": 3,
        "queueId": 2,
    }
    async with browsing(cluster) as client:
        dry = await post(client, "/topics/T/messages", order, dryRun="true")
        assert (dry["isDestructive"], dry["confirmation"], store.records()) == (False, None, [])
        sent = await post(client, "/topics/T/messages", order)
        audit = (await get(client, "/audit"))["items"]
    (record,) = store.records()
    properties = parse_properties(record.properties)
    assert (record.queue_id, record.body) == (2, "Grüße".encode())
    assert properties.pop("UNIQ_KEY")
    assert properties == {"KEYS": "a b", "TAGS": "t", "DELAY": "3", "color": "red", "WAIT": "true"}
    assert id_of(record) in sent["outcomes"][0]["subject"]
    assert [entry["action"] for entry in audit] == ["message.send"]


@pytest.mark.parametrize(
    ("order", "status"),
    [
        ({}, 400),
        ({"text": "a", "base64": "YQ=="}, 400),
        ({"text": ""}, 400),
        ({"base64": "?"}, 400),
        ({"text": "a", "properties": {"UNIQ_KEY": "x"}}, 400),
        ({"text": "a", "properties": {"a\x01": "x"}}, 400),
        ({"text": "a", "properties": {"a": "x" * 33_000}}, 400),
        ({"text": "a", "queueId": 4}, 400),
        ({"text": "a", "keys": ["two words"]}, 422),
    ],
)
async def test_messages_that_cannot_be_are_refused(order: dict[str, Any], status: int) -> None:
    cluster, store = one_broker()
    cluster.topics = {"T": 4}
    async with browsing(cluster) as client:
        detail(await client.post("/api/v1/topics/T/messages", json=order), status)
    assert store.records() == []


async def test_send_to_an_absent_topic_is_not_found_and_a_refusal_is_told() -> None:
    cluster, store = one_broker()
    cluster.topics, cluster.refused_sends = {"T": 1}, {"T"}
    async with browsing(cluster) as client:
        detail(await client.post("/api/v1/topics/U/messages", json={"text": "a"}), 404)
        said = detail(await client.post("/api/v1/topics/T/messages", json={"text": "a"}), 409)
    assert "no permission" in said
    assert store.records() == []


async def test_resend_to_the_topic_needs_a_confirmation_and_keeps_what_is_the_messages_own() -> None:
    cluster, store = one_broker()
    cluster.topics = {"T": 4}
    extra = {"DELAY": "3", "REAL_TOPIC": "T", "TRAN_MSG": "true"}
    record = store.put("T", 1, body=zlib.compress(b"plain"), sys_flag=1 | 8, properties=KEY | extra)
    path = f"/messages/{id_of(record)}/resend"
    async with browsing(cluster) as client:
        refused = await client.post(f"/api/v1{path}", json={}, params={"dryRun": "false"})
        assert refused.status_code == 428
        await confirmed(client, path, {"target": "topic"})
        again = await post(client, path, {})
    copy = next(each for each in store.records() if each.physical_offset != record.physical_offset)
    assert (copy.body, copy.sys_flag) == (record.body, 1)
    assert parse_properties(copy.properties) == KEY | {
        "LEDGERMQ_RESENT_FROM": id_of(record),
        "WAIT": "true",
    }
    assert any("resent already" in warning for warning in again["warnings"])


async def test_resend_to_a_consumer_has_one_client_consume_it() -> None:
    cluster, store = one_broker()
    cluster.topics = {"T": 1}
    record = store.put("T", properties=KEY)
    store.members["billing"] = {"connectionSet": [{"clientId": "c2"}, {"clientId": "c1"}]}
    path = f"/messages/{id_of(record)}/resend"
    async with browsing(cluster) as client:
        order = {"target": "consumer", "consumerGroup": "billing"}
        done = await confirmed(client, path, order)
        assert done["outcomes"][0]["ok"]
        await confirmed(client, path, order | {"clientId": "c2"})
        detail(await client.post(f"/api/v1{path}", json=order | {"clientId": "c3"}), 409)
        detail(await client.post(f"/api/v1{path}", json={"target": "consumer"}), 400)
    assert store.answers == [("c1", id_of(record)), ("c2", id_of(record))]
    assert len(store.records()) == 1
