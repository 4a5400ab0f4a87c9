"""The admin service and the command line over RocketMQ's own broker, its access control (`aclEnable`) on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.compat.stock_cluster import LIMIT_S, PORTS_FROM, VERSIONS
from tests.integration.test_admin_schema import serving
from tests.integration.waiting import wait_for
from tests.spark.stock_broker import PORTS_FOR_ONE, StockBroker
from tests.unit.ledgermq.running import CommandLine

pytestmark = pytest.mark.integration
ADMIN_KEY, ADMIN_SECRET = "admin-account", "admin-s3cret"
ACCOUNTS = f"""
accounts:
- accessKey: {ADMIN_KEY}
  secretKey: {ADMIN_SECRET}
  admin: true
- accessKey: reader-account
  secretKey: reader-s3cret
  admin: false
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
"""
KEYS = ("LEDGERMQ_ACCESS_KEY", "LEDGERMQ_SECRET_KEY")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockBroker]:
    ports_from = PORTS_FROM + len(VERSIONS) * PORTS_FOR_ONE
    broker = StockBroker(tmp_path_factory.mktemp("acl"), "4.9.7", ports_from, ACCOUNTS)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


def as_account(monkeypatch: pytest.MonkeyPatch, *account: str) -> None:
    for key, value in zip(KEYS, account, strict=True):
        monkeypatch.setenv(key, value)


@pytest.fixture
def api(broker: StockBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """The service with the administrator's keys."""
    as_account(monkeypatch, ADMIN_KEY, ADMIN_SECRET)
    headers = {"X-LedgerMQ-Request": "1"}
    with serving(broker.namesrv) as url, httpx.Client(base_url=url, headers=headers, timeout=LIMIT_S) as http:
        yield http


def answered(answer: httpx.Response) -> Any:
    assert answer.is_success, f"{answer.request.method} {answer.url}: {answer.text}"
    return answer.json()


def test_with_its_keys_the_service_sees_and_changes_the_cluster(
    broker: StockBroker, api: httpx.Client
) -> None:
    v1 = "/api/v1"

    def up() -> Any:
        """On a busy machine a JVM's first answers take longer than a broker is waited for."""
        (row,) = answered(api.get(f"{v1}/brokers"))["items"]
        return row if row["state"] == "up" else None

    row = wait_for("the broker has answered", up, LIMIT_S)
    assert (row["product"], row["version"]) == ("rocketmq", "V4_9_7")
    answered(api.post(f"{v1}/topics", json={"name": "Guarded", "readQueues": 1, "writeQueues": 1}))
    wait_for("a route", lambda: api.get(f"{v1}/topics/Guarded/route").is_success, LIMIT_S)
    sent = answered(api.post(f"{v1}/topics/Guarded/messages", json={"text": "Grüße", "keys": ["k"]}))
    message_id = sent["outcomes"][0]["subject"].split(": ")[1].split(" ")[0]
    message = answered(api.get(f"{v1}/messages/{message_id}"))
    assert message["body"]["content"] == "Grüße"
    by_unique_key = f"{v1}/messages/{message['uniqueKey']}?topic=Guarded"
    wait_for("the index", lambda: api.get(by_unique_key).is_success, LIMIT_S)
    (found,) = answered(api.get(f"{v1}/messages", params={"topic": "Guarded", "key": "k"}))["items"]
    assert found["id"] == message_id
    settings = {"retryMaxTimes": 3}
    answered(api.put(f"{v1}/consumer-groups/guarded", params={"dryRun": False}, json=settings))
    (shown,) = answered(api.get(f"{v1}/consumer-groups"))["items"]
    assert (shown["group"], shown["presence"]) == ("guarded", "offline")
    assert answered(api.get(f"{v1}/brokers/{broker.address}/config"))["settings"]


@pytest.mark.parametrize(
    ("account", "words"),
    [
        (("", ""), "No accessKey is configured"),
        ((ADMIN_KEY, "wrong-s3cret"), "Check signature failed"),
        (("nobody-there", "wrong-s3cret"), "No acl config for nobody-there"),
    ],
)
def test_without_the_right_keys_the_brokers_refusal_is_told(
    broker: StockBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    account: tuple[str, str],
    words: str,
) -> None:
    as_account(monkeypatch, *account)
    caplog.set_level(logging.DEBUG)
    with serving(broker.namesrv) as url:
        answer = httpx.get(f"{url}/api/v1/topics", timeout=LIMIT_S)
        told = answered(answer)
    assert told["isPartial"] is True
    assert words in told["problems"][0]["problem"]
    assert "wrong-s3cret" not in answer.text + caplog.text


def test_command_line(
    broker: StockBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line, namesrv = CommandLine(monkeypatch, capsys), ("--namesrv", broker.namesrv)
    as_account(monkeypatch, ADMIN_KEY, ADMIN_SECRET)
    assert line("topic", "create", "Cli", "--queues", "1", *namesrv).code == 0
    assert "Cli" in line("topic", "list", *namesrv).out
    assert "3 acknowledged" in line("produce", "Cli", "--count", "3", "--size", "10", *namesrv).err
    assert line("consume", "Cli", "--group", "cli", "--count", "3", *namesrv).code == 0
    as_account(monkeypatch, "reader-account", "reader-s3cret")
    refused = line("topic", "delete", "Cli", "--yes", *namesrv)
    assert (refused.code, "reader-account" in refused.err) == (1, True)
    as_account(monkeypatch, "reader-account", "")
    refused = line("topic", "list", *namesrv)
    assert (refused.code, refused.err) == (
        2,
        "error: the environment has no LEDGERMQ_SECRET_KEY, which access control needs.\n",
    )
