"""The admin service and the command line over RocketMQ's own broker, its access control (`aclEnable`) on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
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


AUTHENTICATION = "org.apache.rocketmq.auth.authentication.provider"
AUTHORIZATION = "org.apache.rocketmq.auth.authorization.provider"
USERS = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{AUTHENTICATION}.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{AUTHENTICATION}.LocalAuthenticationMetadataProvider",
    "authorizationEnabled": "true",
    "authorizationProvider": f"{AUTHORIZATION}.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{AUTHORIZATION}.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": f'{{"username":"{ADMIN_KEY}","password":"{ADMIN_SECRET}"}}',
    "innerClientAuthenticationCredentials": f'{{"accessKey":"{ADMIN_KEY}","secretKey":"{ADMIN_SECRET}"}}',
}


@pytest.fixture
def users_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """The service over a broker of RocketMQ 5 that keeps users."""
    broker = StockBroker(tmp_path, "5.5.0", PORTS_FROM + (len(VERSIONS) + 1) * PORTS_FOR_ONE)
    as_account(monkeypatch, ADMIN_KEY, ADMIN_SECRET)
    try:
        broker.start(**USERS)
        with serving(broker.namesrv) as url, httpx.Client(base_url=f"{url}/api/v1", timeout=LIMIT_S) as http:
            http.headers["X-LedgerMQ-Request"] = "1"
            yield http
    finally:
        broker.kill()


def test_users_and_policies_of_rocketmq_5(users_api: httpx.Client) -> None:
    def change(method: str, path: str, body: Any = None) -> Any:
        preview = answered(users_api.request(method, path, json=body, params={"dryRun": "true"}))
        headers = {"Confirmation": preview["confirmation"] or ""}
        made = users_api.request(method, path, json=body, params={"dryRun": "false"}, headers=headers)
        assert all(outcome["ok"] for outcome in answered(made)["outcomes"]), made.text
        return preview

    def known() -> Any:
        """On a busy machine a JVM's first answers take longer than a broker is waited for."""
        return answered(users_api.get("/users"))["items"]

    (root,) = wait_for("its users are known", known, LIMIT_S)
    assert (root["username"], root["userType"], root["userStatus"]) == (ADMIN_KEY, "Super", "enable")
    (place,) = answered(users_api.get("/access"))["places"]
    assert (place["mode"], place["canSwitch"], place["keepsUsers"]) == ("authorization", False, True)
    change("POST", "/users", {"username": "alice", "password": "alice-s3cret"})
    change("PATCH", "/users/alice", {"password": "alice-s3cret-2", "userStatus": "disable"})
    policy = {"resources": ["Topic:Order*", "Group:billing", "*"], "actions": ["Sub", "Get"]}
    change("POST", "/policies/alice", policy)
    denial = {
        "resources": ["Group:billing"],
        "actions": ["All"],
        "decision": "Deny",
        "sourceIps": ["10.0.0.0/8"],
    }
    preview = change("PUT", "/policies/alice", denial)
    assert [effect["before"] for effect in preview["effects"]] == ["Allow Sub, Get from anywhere"]
    alice = users_api.get("/users/alice")
    rows = answered(alice)["policies"]
    assert {row["resource"]: (row["decision"], row["sourceIps"]) for row in rows} == {
        "Topic:Order*": ("Allow", []),
        "Group:billing": ("Deny", ["10.0.0.0/8"]),
        "*": ("Allow", []),
    }
    assert answered(alice)["userStatus"] == "disable"
    listed = users_api.get("/users")
    assert answered(users_api.get("/policies", params={"resource": "order"}))["total"] == 1
    assert "s3cret" not in alice.text + listed.text
    (address,) = [row["address"] for row in answered(users_api.get("/brokers"))["items"]]
    assert "s3cret" not in users_api.get(f"/brokers/{address}/config").text
    refused = users_api.patch("/access", json={"authorizationEnabled": False})
    assert (refused.status_code, "when it starts" in refused.text) == (409, True)
    change("DELETE", "/policies/alice")
    assert answered(users_api.get("/policies/alice"))["policies"] == []
    change("DELETE", "/users/alice")
    assert users_api.get("/users/alice").status_code == 404
