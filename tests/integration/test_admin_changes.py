"""Changes through the admin service of a real cluster: leadership, the name server, and their audit."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.client_runs import ROOT
from tests.integration.cluster import Cluster, admin_service
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
LIMIT_S = 60.0


class Admin:
    """An admin service, asked as the page asks it."""

    def __init__(self, url: str, token: str | None = None) -> None:
        headers = {"X-LedgerMQ-Request": "1"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self.http = httpx.Client(base_url=f"{url}/api/v1", headers=headers, timeout=20)

    def get(self, path: str) -> Any:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def change(self, method: str, path: str, body: object = None) -> Any:
        """Previewed, then made; the second result."""
        preview = self.http.request(method, path, json=body, params={"dryRun": "true"})
        assert preview.status_code == 200, preview.text
        query = {"dryRun": "false"}
        if preview.json()["confirmation"]:
            query["confirmation"] = preview.json()["confirmation"]
        made = self.http.request(method, path, json=body, params=query)
        assert made.status_code == 200, made.text
        assert all(outcome["ok"] for outcome in made.json()["outcomes"]), made.text
        return made.json()


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    admin = Admin(cluster.admin)
    yield admin
    admin.http.close()


def audited(cluster: Cluster) -> list[dict[str, Any]]:
    """What the log has, also of other tests."""
    text = (cluster.data / "admin" / "audit.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_leadership_goes_where_it_is_sent_and_back_to_whom_is_preferred(
    cluster: Cluster, admin: Admin
) -> None:
    before = len(audited(cluster))
    first = cluster.wait_leader()
    wanted = next(node_id for node_id in cluster.nodes if node_id != first)
    made = admin.change("POST", "/replication/broker-a/transfer", {"nodeId": wanted})
    assert made["effects"] == [{"subject": "leader", "before": first, "after": wanted}]
    assert cluster.wait_leader() == wanted

    path = "/replication/broker-a/preferred-leader"
    admin.change("PUT", path, {"nodeId": first})
    try:
        wait_for("the preferred leader leads", lambda: cluster.leader() == first, LIMIT_S)
        assert admin.get("/replication/broker-a")["preferredLeaderId"] == first
    finally:
        admin.change("PUT", path, {"nodeId": None})
    view = admin.get("/replication/broker-a")
    assert (view["preferredLeaderId"], set(view["inSync"])) == (None, set(cluster.nodes))

    own = [line for line in audited(cluster)[before:] if line["action"].startswith("leader.")]
    assert [(line["action"], line["outcome"]) for line in own] == [
        (action, outcome)
        for action in ("leader.transfer", "leader.preferred", "leader.preferred")
        for outcome in ("begun", "applied")
    ]
    assert {(line["actor"], line["remote"]) for line in own} == {("local", "127.0.0.1")}
    newest = admin.get("/audit?pageSize=1")
    assert (newest["items"][0]["target"], newest["isKept"]) == ("replication group broker-a", True)


def test_the_name_server_is_configured_and_told_items(cluster: Cluster, admin: Admin) -> None:
    assert admin.get("/name-server")["config"]["orderMessageEnable"] == "false"
    for value in ("true", "false"):
        admin.change("PATCH", "/name-server", {"values": {"orderMessageEnable": value}})
        assert admin.get("/name-server")["config"]["orderMessageEnable"] == value
    refused = admin.http.patch("/name-server", json={"values": {"listenPort": "1"}})
    assert (refused.status_code, "Can not update" in refused.json()["detail"]) == (409, True)

    item = "/name-server/items/AdminTest/color"
    admin.change("PUT", item, {"value": "grün"})
    assert admin.get("/name-server/items/AdminTest")["items"] == {"color": "grün"}
    assert admin.http.delete(item).json()["isDryRun"]
    admin.change("DELETE", item)
    assert admin.http.delete(item).status_code == 404


def test_producers_leave_a_broker_and_come_back(cluster: Cluster, admin: Admin) -> None:
    path = "/name-server/brokers/broker-a/write-permission"
    try:
        assert (
            "topics of broker-a" in admin.change("PUT", path, {"isWritable": False})["outcomes"][0]["subject"]
        )
    finally:
        admin.change("PUT", path, {"isWritable": True})
    assert admin.http.put(path.replace("broker-a", "none"), json={"isWritable": True}).status_code == 404


@pytest.mark.parametrize("garbage", ["consume-queues", "unused-topics", "commit-log"])
def test_brokers_clean_up(cluster: Cluster, admin: Admin, garbage: str) -> None:
    made = admin.change("POST", "/brokers/clean", {"garbage": garbage})
    assert len(made["outcomes"]) == len(cluster.nodes)


@pytest.fixture
def guarded(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A second admin service for the cluster, with tokens; its address and the tokens by role."""
    tokens = {role: secrets.token_urlsafe(24) for role in ("read", "operate", "admin")}
    file = tmp_path / "tokens.toml"
    file.touch(mode=0o600)
    file.write_text(
        "".join(f'[[tokens]]\nname = "{r}er"\nrole = "{r}"\ntoken = "{t}"\n' for r, t in tokens.items())
    )
    options = ["--tokens", str(file), "--audit", str(tmp_path / "audit.jsonl")]
    with admin_service(cluster, options) as port:
        url = f"http://127.0.0.1:{port}"
        wait_for("the admin service", lambda: _serves(url), LIMIT_S)
        yield url, tokens


def _serves(url: str, verify: ssl.SSLContext | bool = True) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=5, verify=verify).status_code == 200
    except httpx.TransportError:
        return False


def test_tokens_let_in_by_role_and_stand_in_no_file(
    guarded: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    url, tokens = guarded
    assert httpx.get(f"{url}/api/v1/cluster").status_code == 401
    item = "/name-server/items/AdminTest/guarded"
    for role, status in (("read", 403), ("operate", 403), ("admin", 200)):
        admin = Admin(url, tokens[role])
        assert admin.http.put(item, json={"value": "x"}).status_code == status
        assert admin.get("/cluster")["groups"]
        with admin.http.stream("GET", "/cluster/events") as stream:
            assert next(stream.iter_lines()) == "retry: 1000"
        admin.http.close()
    owner = Admin(url, tokens["admin"])
    owner.change("DELETE", item)
    owner.http.close()
    audited = (tmp_path / "audit.jsonl").read_text(encoding="utf-8")
    assert '"actor":"adminer"' in audited
    assert not [token for token in tokens.values() if token in audited]


def test_strangers_are_not_served_without_tokens(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "admin_api", "--namesrv", cluster.namesrv, "--host", "0.0.0.0"]
    environment = {key: value for key, value in os.environ.items() if key != "LEDGERMQ_ADMIN_TOKENS"}
    ended = subprocess.run(
        command, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=30
    )
    assert (ended.returncode, "there are no tokens" in ended.stderr) == (1, True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_https_is_served_with_a_certificate(cluster: Cluster, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True, timeout=30)
    options = ["--tls-cert", str(certificate), "--tls-key", str(key)]
    trusting = ssl.create_default_context(cafile=certificate)
    with admin_service(cluster, options) as port:
        url = f"https://127.0.0.1:{port}/healthz"
        wait_for("HTTPS", lambda: _serves(url.removesuffix("/healthz"), trusting), LIMIT_S)
        with pytest.raises(httpx.ConnectError):
            httpx.get(url, timeout=5)
