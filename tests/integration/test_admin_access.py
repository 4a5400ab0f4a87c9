"""Users, policies and the switch of access control through the admin service of a real cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.acl import VARIABLES, Signer
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, encode_command
from remoting.headers.send import SendMessageRequestHeader
from tests.integration.cluster import Cluster
from tests.integration.test_admin_changes import Admin, audited
from tests.integration.wire import Wire
from tests.support.secured import ROOT, secured_values

pytestmark = pytest.mark.integration
TOPIC = "Guarded"
OFF = {"authenticationEnabled": "false", "authorizationEnabled": "false"}
SMALL_FILES = {"mappedFileSizeCommitLog": str(8 * 1024**2), "mappedFileSizeForEntryIndex": str(1024**2)}
"""All are read at the end."""
FIRST, SECOND = "tea-and-Biscuits-1", "tea-and-Biscuits-2"


@pytest.fixture
def keeping_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster whose access control is off, and whose admin service signs as root."""
    monkeypatch.setenv(VARIABLES["access_key"], ROOT.access_key)
    monkeypatch.setenv(VARIABLES["secret_key"], ROOT.secret_key)
    cluster = Cluster(tmp_path / "cluster")
    try:
        cluster.start(secured_values(tmp_path, **OFF) | SMALL_FILES, admin=True)
        yield cluster
    finally:
        cluster.stop()


def refusal(admin: Admin, signer: Signer | None) -> str | None:
    """Why the leader does not take one message, signed as RocketMQ's clients sign; None: it does."""
    header = SendMessageRequestHeader(
        producer_group="shop",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp_ms=time.time_ns() // 1_000_000,
    )
    request = RemotingCommand(
        RequestCode.SEND_MESSAGE, opaque=1, ext_fields=header.ext_fields(), body=b"an order"
    )
    if signer is not None:
        signer.sign(request)
    (place,) = admin.get("/access")["places"]
    with Wire(place["address"]) as wire:
        wire.send_bytes(encode_command(request))
        answer = wire.read_command()
    return None if answer.code == ResponseCode.SUCCESS else answer.remark


def test_a_user_with_a_policy_may_send_and_its_password_is_in_no_file(keeping_users: Cluster) -> None:
    cluster, admin = keeping_users, Admin(keeping_users.admin)
    alice, bob = Signer("alice", FIRST), Signer("bob", FIRST)
    admin.change("POST", "/topics", {"name": TOPIC, "readQueues": 1, "writeQueues": 1})
    for signer in (alice, bob):
        body = {"username": signer.access_key, "password": signer.secret_key}
        admin.change("POST", "/users", body)
    admin.change("POST", "/policies/alice", {"resources": [f"Topic:{TOPIC}"], "actions": ["Pub"]})
    assert refusal(admin, None) is None

    switch = {"authenticationEnabled": True, "authorizationEnabled": True}
    preview = admin.http.patch("/access", json=switch).json()
    assert not any("from here" in warning for warning in preview["warnings"]), "it signs as a super user"
    admin.change("PATCH", "/access", switch)
    (place,) = admin.get("/access")["places"]
    assert (place["mode"], place["userCount"], place["superUserCount"]) == ("authorization", 4, 2)
    assert refusal(admin, alice) is None
    assert "no matched policies" in str(refusal(admin, bob))
    assert "username cannot be null" in str(refusal(admin, None))

    admin.change("PATCH", "/users/alice", {"password": SECOND})
    assert "check signature failed" in str(refusal(admin, alice))
    assert refusal(admin, Signer("alice", SECOND)) is None
    admin.change("DELETE", "/policies/alice")
    assert "no matched policies" in str(refusal(admin, Signer("alice", SECOND)))
    admin.change("DELETE", "/users/alice")
    assert "User:alice is not found" in str(refusal(admin, Signer("alice", SECOND)))
    admin.change("PATCH", "/access", dict.fromkeys(switch, False))
    assert refusal(admin, None) is None
    admin.http.close()

    done = [line["action"] for line in audited(cluster) if line["outcome"] == "applied"]
    assert done == [
        *("topic.create", "user.create", "user.create", "policy.create", "access.switch"),
        *("user.update", "policy.delete", "user.delete", "access.switch"),
    ]
    cluster.stop()
    files = [path for path in cluster.folder.rglob("*") if path.is_file()]
    assert any(path.name == "audit.jsonl" for path in files)
    having = [
        str(path) for path in files if any(word.encode() in path.read_bytes() for word in (FIRST, SECOND))
    ]
    assert having == []
