"""The admin service over a real cluster: messages found and sent again, dead letters resent."""

from __future__ import annotations

import base64
import json
import random
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from remoting.codes import RequestCode
from remoting.command import RemotingCommand, encode_command
from remoting.record import decode_record, format_properties
from tests.compat.programs import Client
from tests.integration.client_runs import java_driver
from tests.integration.cluster import Cluster
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire, broker_of, call

pytestmark = pytest.mark.integration
LIMIT_S = 60.0
SENT = 60
BODY_MAX = 4 * 1024 * 1024
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Iterator[httpx.Client]:
    headers = {"X-LedgerMQ-Request": "1"}
    url = f"{cluster.admin}/api/v1"
    with httpx.Client(base_url=url, headers=headers, timeout=LIMIT_S) as client:
        yield client


def answered(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def confirmed(api: httpx.Client, path: str, body: Any) -> Any:
    preview = answered(api.post(path, json=body, params={"dryRun": True}))
    agreed = {"dryRun": False, "confirmation": preview["confirmation"]}
    return answered(api.post(path, json=body, params=agreed))


def send(cluster: Cluster, topic: str, body: bytes, properties: dict[str, str], sys_flag: int = 0) -> str:
    """As a client would; the offset message id."""
    ext = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": str(sys_flag)}
    ext |= {"g": str(time.time_ns() // 1_000_000), "h": "0", "i": format_properties(properties).decode()}
    answer = call(broker_of(cluster.namesrv), RequestCode.SEND_MESSAGE_V2, ext, body)
    return answer.ext_fields["msgId"]


@pytest.fixture(scope="module")
def sent(api: httpx.Client, cluster: Cluster, name: str) -> dict[int, str]:
    """Messages of one topic, number to offset message id. All of them are in the index by key, where a
    message comes soon after its acknowledgement.
    """
    ids = {}
    for number in range(SENT):
        properties = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"key-{number} all", "TAGS": f"t{number % 3}"}
        ids[number] = send(cluster, topic_of(name), f'{{"number":{number}}}'.encode(), properties)
    last = {"topic": topic_of(name), "key": f"key-{SENT - 1}"}
    wait_for("the last is indexed", lambda: answered(api.get("/messages", params=last))["items"], LIMIT_S)
    return ids


def topic_of(name: str) -> str:
    return f"messages-{name}"


def test_messages_are_found_by_ids_and_key(api: httpx.Client, sent: dict[int, str], name: str) -> None:
    topic = topic_of(name)
    by_id = answered(api.get(f"/messages/{sent[7]}"))
    assert by_id == answered(api.get(f"/messages/{7:032X}", params={"topic": topic}))
    assert (by_id["keys"], by_id["tags"], by_id["brokerName"]) == (["key-7", "all"], "t1", "broker-a")
    assert (by_id["body"]["content"], by_id["isCrcRight"]) == ('{\n  "number": 7\n}', True)
    found = answered(api.get("/messages", params={"topic": topic, "key": "key-9"}))
    assert [item["id"] for item in found["items"]] == [sent[9]]
    newest = answered(api.get("/messages", params={"topic": topic, "key": "all", "limit": 3}))
    assert [item["id"] for item in newest["items"]] == [sent[59], sent[58], sent[57]]
    answered(api.get(f"/messages/{'0' * 32}"), 404)


def test_window_has_every_message_once(api: httpx.Client, sent: dict[int, str], name: str) -> None:
    params: dict[str, Any] = {"topic": topic_of(name), "limit": 25}
    items: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        part = answered(api.get("/messages", params=params | ({"cursor": cursor} if cursor else {})))
        items += part["items"]
        cursor = part["nextCursor"]
    assert [item["id"] for item in items] == [sent[number] for number in reversed(range(SENT))]
    ends = {"from": items[40]["storedAtMs"], "to": items[20]["storedAtMs"], "limit": 200}
    inner = answered(api.get("/messages", params=params | ends))["items"]
    wanted = [item for item in items if ends["from"] <= item["storedAtMs"] <= ends["to"]]
    assert inner == wanted
    tagged = answered(api.get("/messages", params=params | {"tag": "t2"}))["items"]
    assert [item["id"] for item in tagged] == [sent[number] for number in reversed(range(2, SENT, 3))]


def test_test_message_arrives_and_its_body_comes_back(
    api: httpx.Client, cluster: Cluster, sent: dict[int, str], name: str
) -> None:
    done = answered(api.post(f"/topics/{topic_of(name)}/messages", json={"text": "Grüße", "tags": "test"}))
    message_id = done["outcomes"][0]["subject"].split(": ")[1].split(" ")[0]
    assert answered(api.get(f"/messages/{message_id}"))["body"]["content"] == "Grüße"
    packed = zlib.compress(b"\0\1" * 40_000)
    packed_id = send(cluster, topic_of(name), packed, {"UNIQ_KEY": "C" * 32}, sys_flag=1)
    shown = answered(api.get(f"/messages/{packed_id}", params={"bodyBytes": 2}))["body"]
    assert (shown["content"], shown["bodyBytes"], shown["compression"]) == ("0001", 80_000, "zlib")
    assert api.get(f"/messages/{packed_id}/body").content == b"\0\1" * 40_000


def test_trace_and_track_of_a_message(
    api: httpx.Client, cluster: Cluster, sent: dict[int, str], name: str
) -> None:
    unique_key, group = f"{5:032X}", f"tracked-{name}"
    told = f"SubBefore\x012000\x01R\x01{group}\x01Q\x01{unique_key}\x010\x01\x02"
    told += f"SubAfter\x01Q\x01{unique_key}\x015\x01true\x01\x010\x012005\x02"
    trace_topic = f"trace-{name}"
    send(cluster, trace_topic, told.encode(), {"KEYS": unique_key})
    params = {"topic": topic_of(name), "traceTopic": trace_topic}
    path = f"/messages/{sent[5]}/trace"
    (span,) = wait_for("a span", lambda: answered(api.get(path, params=params))["spans"], LIMIT_S)
    assert (span["kind"], span["group"], span["costMs"], span["isSuccess"]) == ("consume", group, 5, True)
    make_group = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    call(broker_of(cluster.namesrv), make_group, {}, json.dumps({"groupName": group}).encode())
    committed = {"consumerGroup": group, "topic": topic_of(name), "queueId": "0", "commitOffset": "6"}
    call(broker_of(cluster.namesrv), RequestCode.UPDATE_CONSUMER_OFFSET, committed)
    for number, state in ((5, "consumed"), (6, "offline")):
        rows = answered(api.get(f"/messages/{sent[number]}/track"))["items"]
        assert [(row["group"], row["state"]) for row in rows] == [(group, state)]


def test_a_body_of_maxmessagesize_goes_every_way(api: httpx.Client, cluster: Cluster, name: str) -> None:
    """By HTTP and by the wire, delayed, and back for a retry: with all that its record has on top."""
    topic, group, body = f"large-{name}", f"large-{name}", random.Random(1).randbytes(BODY_MAX)
    broker = broker_of(cluster.namesrv)
    send(cluster, topic, b"first", {})
    text = base64.b64encode(body).decode()
    done = answered(api.post(f"/topics/{topic}/messages", json={"base64": text}))
    message_id = done["outcomes"][0]["subject"].split(": ")[1].split(" ")[0]
    assert api.get(f"/messages/{message_id}/body").content == body
    more = base64.b64encode(body + b"x").decode()
    assert api.post(f"/topics/{topic}/messages", json={"base64": more}).status_code in (400, 422)
    sent = send(cluster, topic, body, {"K": "v" * 32_000, "DELAY": "1"})
    ext = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    with Wire(broker) as wire:
        assert wire.invoke(RequestCode.SEND_MESSAGE_V2, ext, body + b"x").code == 13
    back = {"group": group, "delayLevel": "1", "originTopic": topic, "offset": str(int(sent[-16:], 16))}
    call(broker, RequestCode.CONSUMER_SEND_MSG_BACK, back)

    def stored(of: str) -> int:
        route = api.get(f"/topics/{of}/route")
        if not route.is_success:
            return 0
        asked = [{"topic": of, "queueId": str(queue_id)} for queue_id in range(4)]
        with Wire(broker) as wire:
            ends = [wire.invoke(RequestCode.GET_MAX_OFFSET, each).ext_fields["offset"] for each in asked]
        return sum(map(int, ends))

    wait_for("the delayed one", lambda: stored(topic) == 3, LIMIT_S)
    wait_for("the retry", lambda: stored(f"%RETRY%{group}") == 1, LIMIT_S)


def test_message_is_resent_to_a_consumer_and_to_its_topic(
    api: httpx.Client, cluster: Cluster, sent: dict[int, str], name: str
) -> None:
    group = f"direct-{name}"
    path = f"/messages/{sent[11]}/resend"
    with Wire(broker_of(cluster.namesrv), LIMIT_S) as consumer, ThreadPoolExecutor(1) as pool:
        consumer.invoke(RequestCode.HEART_BEAT, body=heartbeat(group, topic_of(name)))
        consuming = pool.submit(consume_one, consumer)
        done = confirmed(api, path, {"target": "consumer", "consumerGroup": group})
        assert consuming.result(LIMIT_S) == b'{"number":11}'
    assert done["outcomes"][0]["ok"]
    confirmed(api, path, {"target": "topic"})
    found = answered(api.get("/messages", params={"topic": topic_of(name), "key": "key-11"}))["items"]
    assert (len(found), found[1]["id"], found[0]["uniqueKey"]) == (2, sent[11], f"{11:032X}")


def test_what_a_java_client_traces_is_read(
    api: httpx.Client, cluster: Cluster, tmp_path: Path, name: str
) -> None:
    driver = java_driver("5.5.0", tmp_path)
    send(cluster, TRACE_TOPIC, b"no trace", {})  # makes it; the client's last trace would not wait for that
    wait_for("a route", lambda: api.get(f"/topics/{TRACE_TOPIC}/route").is_success, LIMIT_S)
    topic, script, out = f"traced-{name}", tmp_path / "steps.txt", tmp_path / "out.jsonl"
    script.write_text(f"send\t{topic}\torder-1\ttraced\n", encoding="utf-8")
    options = [f"namesrv={cluster.namesrv}", f"group=makers-{name}", "trace=true"]
    (sent,) = driver.run(["query", *options, f"steps={script}", f"out={out}"], out)
    path = f"/messages/{sent['id']}/trace"
    (span,) = wait_for("the trace", lambda: answered(api.get(path))["spans"], LIMIT_S)
    assert (span["kind"], span["group"], span["topic"]) == ("send", f"makers-{name}", topic)
    assert (span["isSuccess"], span["offsetId"]) == (True, sent["offset_id"])
    assert span["messageType"] == "normal"
    with Client("5.5.0", cluster.namesrv, tmp_path).start(
        "consumers", topic, f"takers-{name}", trace=True
    ) as consumers:
        consumers.wait_lines("it is consumed", body="traced")
        consumers.stop()

    def ended() -> list[dict[str, Any]]:
        spans = answered(api.get(path))["spans"]
        return [each for each in spans if each["kind"] == "consume" and each["isSuccess"]]

    (taken,) = wait_for("the consumer's trace", ended, LIMIT_S)
    assert (taken["group"], taken["status"]) == (f"takers-{name}", "success")


def heartbeat(group: str, topic: str) -> bytes:
    subscription = {"topic": topic, "subString": "*", "subVersion": 1, "tagsSet": [], "codeSet": []}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    return json.dumps({"clientID": f"client-{group}", "consumerDataSet": [consumer]}).encode()


def consume_one(consumer: Wire) -> bytes:
    """Answer the first 309 as a client does; the body of its message."""
    while True:
        request = consumer.read_command()
        if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY and not request.is_response:
            body = b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":1}'
            answer = RemotingCommand(code=0, opaque=request.opaque, flag=1, body=body)
            consumer.send_bytes(encode_command(answer))
            return bytes(decode_record(request.body).body)


@pytest.fixture(scope="module")
def letters(cluster: Cluster, sent: dict[int, str], name: str) -> str:
    """A group with the first ten messages as its dead letters."""
    group = f"dead-{name}"
    broker = broker_of(cluster.namesrv)
    for number in range(10):
        position = str(int(sent[number][-16:], 16))
        ext = {"offset": position, "group": group, "delayLevel": "-1", "originTopic": topic_of(name)}
        call(broker, RequestCode.CONSUMER_SEND_MSG_BACK, ext)
    return group


def test_dead_letters_are_read_exported_and_resent_once(
    api: httpx.Client, letters: str, sent: dict[int, str], name: str
) -> None:
    path = f"/dlq/{letters}"
    wait_for("a route of the dead letters", lambda: api.get(path).is_success, LIMIT_S)
    row = answered(api.get(path))
    assert row["count"] == 10
    assert row["oldestAtMs"] <= row["newestAtMs"]
    assert [each["group"] for each in answered(api.get("/dlq", params={"name": name}))["items"]] == [letters]
    items = answered(api.get(f"{path}/messages"))["items"]
    assert [item["originalId"] for item in items] == [sent[number] for number in reversed(range(10))]
    assert {item["originalTopic"] for item in items} == {topic_of(name)}
    lines = [json.loads(line) for line in api.get(f"{path}/export").text.splitlines()]
    assert [line["body"] for line in lines] == [f'{{"number":{number}}}' for number in range(10)]

    one = {"target": "topic", "ids": [items[9]["id"]]}
    preview = answered(api.post(f"{path}/resend", json=one))
    agreed = {"dryRun": False, "confirmation": preview["confirmation"]}
    assert [each["ok"] for each in answered(api.post(f"{path}/resend", json=one, params=agreed))["outcomes"]]
    answered(api.post(f"{path}/resend", json=one, params=agreed), 409)
    rest = confirmed(api, f"{path}/resend", {"target": "topic"})
    assert [outcome["ok"] for outcome in rest["outcomes"]] == [True] * 9
    answered(api.post(f"{path}/resend", json={"target": "topic"}), 409)
    for number in (0, 9):
        found = answered(api.get("/messages", params={"topic": topic_of(name), "key": f"key-{number}"}))
        assert len(found["items"]) == 2


def test_dead_letter_goes_to_its_group_alone(
    api: httpx.Client, cluster: Cluster, letters: str, name: str
) -> None:
    path = f"/dlq/{letters}"
    wait_for("a route of the dead letters", lambda: api.get(path).is_success, LIMIT_S)
    with Wire(broker_of(cluster.namesrv)) as consumer:  # makes the group's retry topic
        consumer.invoke(RequestCode.HEART_BEAT, body=heartbeat(letters, topic_of(name)))
    retry = {"topic": f"%RETRY%{letters}"}
    wait_for("a route of the retries", lambda: api.get("/messages", params=retry).is_success, LIMIT_S)
    letter = answered(api.get(f"{path}/messages", params={"limit": 1}))["items"][0]
    confirmed(api, f"{path}/resend", {"ids": [letter["id"]]})
    # A message is in its queue a moment after its acknowledgement.
    wait_for("the copy", lambda: answered(api.get("/messages", params=retry))["items"], LIMIT_S)
    (copy,) = answered(api.get("/messages", params=retry))["items"]
    whole = answered(api.get(f"/messages/{copy['id']}"))
    assert whole["properties"]["RETRY_TOPIC"] == topic_of(name)
    assert (whole["uniqueKey"], whole["reconsumeTimes"]) == (letter["uniqueKey"], 0)
