"""Access control of LedgerMQ with stock clients: switched on for a running cluster, with rights, without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from remoting.acl import Signer
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, encode_command
from rocketmq_spark.client.queue_offsets import max_offset
from rocketmq_spark.errors import RequestRefusedError
from rocketmq_spark.options import ConnectionOptions
from tests.compat.mqadmin import ERROR_TEXT, MqAdmin, compile_runner
from tests.compat.programs import FILE, GO, JAVA, Client, versions
from tests.compat.test_access_control import KEYS, answered
from tests.integration.client_runs import python_driver
from tests.integration.cluster import Cluster
from tests.integration.test_admin_schema import serving
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire
from tests.support.secured import INNER, ROOT, secured_values
from tests.unit.ledgermq.running import CommandLine

pytestmark = pytest.mark.integration
LIMIT_S = 60.0
TOPIC, GROUP = "Guarded", "guarded"
ALICE: dict[str, Any] = {"access_key": "alice", "secret_key": "alice-secret"}
BOB: dict[str, Any] = {"access_key": "bob", "secret_key": "bob-secret"}
COUNT = 5


class Secured:
    """A cluster whose access control was switched on under a producer; `under_way` is what that reported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster(folder / "cluster")
        compile_runner()
        off = {"authenticationEnabled": "false", "authorizationEnabled": "false"}
        (folder / "tools").mkdir()
        self.cluster.start(secured_values(folder, **off))
        account = (ROOT.access_key, ROOT.secret_key)
        self.mqadmin = MqAdmin(self.cluster.namesrv, folder / "tools", account)
        self.under_way: list[dict[str, Any]] = []

    def prepare(self) -> None:
        """Create users and rights, then switch access control on."""
        self.leader = self.cluster.wait_leader()
        self._create_users()
        self.under_way = self._switch_on()

    def _create_users(self) -> None:
        self.run("updateTopic", "-t", TOPIC, "-r", "4", "-w", "4")
        self.run("createUser", "-u", "alice", "-p", "alice-secret", "-t", "Normal")
        self.run("createUser", "-u", "bob", "-p", "bob-secret", "-t", "Normal")
        rights = (f"Topic:{TOPIC}*", f"Group:{GROUP}*")
        self.run("createAcl", "-s", "User:alice", "-r", ",".join(rights), "-a", "Pub,Sub", "-d", "Allow")

    def _switch_on(self) -> list[dict[str, Any]]:
        client = Client(JAVA[0], self.cluster.namesrv, self.folder)
        with client.start("stream", TOPIC, "streamers", **ALICE) as stream:
            stream.wait_lines("it sends", status="SEND_OK")
            for key in ("authenticationEnabled", "authorizationEnabled"):
                before = len(stream.report)
                self.run("updateBrokerConfig", "-k", key, "-v", "true")
                stream.wait_until("it goes on", lambda: len(stream.report) > before + 200)  # noqa: B023
            return stream.stop()

    def run(self, *words: str) -> str:
        """A command of mqadmin, by root, that succeeds."""
        printed = self.mqadmin.run(*words, "-c", "DefaultCluster")
        assert not ERROR_TEXT.search(printed), printed
        return printed

    def ask(
        self, signer: Signer | None, code: RequestCode, node_id: str | None = None, /, **fields: str
    ) -> RemotingCommand:
        """One request to a node, by default to the one that led."""
        request = RemotingCommand(code, opaque=1, ext_fields=fields)
        if signer is not None:
            signer.sign(request)
        with Wire(self.cluster.address(node_id or self.leader)) as wire:
            wire.send_bytes(encode_command(request))
            return wire.read_command()

    def stop(self) -> None:
        self.mqadmin.stop()
        self.cluster.stop()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    running = Secured(tmp_path_factory.mktemp("secured"))
    try:
        running.prepare()
        yield running
    finally:
        running.stop()


def test_a_producer_that_signs_loses_no_message_while_it_is_switched_on(secured: Secured) -> None:
    """Each send may last a second only, which a busy machine may need for another reason."""
    errors = [line["error"] for line in secured.under_way if line["status"] != "SEND_OK"]
    assert [error for error in errors if "CODE:" in error] == []
    assert len(errors) <= len(secured.under_way) // 100, errors


@pytest.mark.parametrize("version", versions((*JAVA, GO)))
def test_clients_with_rights_produce_and_consume(secured: Secured, tmp_path: Path, version: str) -> None:
    client = Client(version, secured.cluster.namesrv, tmp_path)
    topic, group = f"{TOPIC}-{client.label}", f"{GROUP}-{client.label}"
    secured.run("updateTopic", "-t", topic, "-r", "2", "-w", "2")
    sent = client.run("produce", topic, f"p-{client.label}", sync=COUNT, oneway=COUNT, batch=10, **ALICE)
    assert len(sent) == 2 * COUNT + 10
    got = client.run("consume", topic, group, count=len(sent), quiet_ms=500, **ALICE)
    places = {(line["queue"], line["offset"]) for line in sent if line["kind"] == "sync"}
    assert places <= {(line["queue"], line["offset"]) for line in got}
    assert len(got) == len(sent)


def test_the_python_client_with_rights_produces_and_consumes(secured: Secured, tmp_path: Path) -> None:
    driver = python_driver(tmp_path)
    secured.run("updateTopic", "-t", f"{TOPIC}-cpp", "-r", "2", "-w", "2")
    user = ("--access-key", "alice", "--secret-key", "alice-secret")
    place = ("--namesrv", secured.cluster.namesrv, "--topic", f"{TOPIC}-cpp", *user)
    sent = tmp_path / "sent.jsonl"
    produced = driver.run(
        ["produce", *place, "--group", "cpp", "--out", str(sent), "--sync", str(COUNT)], sent
    )
    assert [line["status"] for line in produced] == [0] * COUNT
    out = tmp_path / "got.jsonl"
    options = ("--group", f"{GROUP}-cpp", "--out", str(out), "--count", str(COUNT))
    assert len(driver.run(["consume", *place, *options], out)) == COUNT


def test_a_transaction_is_ended_by_its_user(secured: Secured, tmp_path: Path) -> None:
    client = Client(JAVA[0], secured.cluster.namesrv, tmp_path)
    topic = f"{TOPIC}-transactions"
    secured.run("updateTopic", "-t", topic, "-r", "1", "-w", "1")
    with client.start("transact", topic, "transactors", count=1, end=FILE, **ALICE) as transacting:
        transacting.wait_lines("it is prepared", event="prepared", status="SEND_OK", state="COMMIT_MESSAGE")
        transacting.tell("end")
        transacting.finish()
    assert len(client.run("consume", topic, f"{GROUP}-transactions", count=1, quiet_ms=0, **ALICE)) == 1


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({}, "CODE: 16  DESC: username cannot be null."),
        (
            BOB,
            f"CODE: 16  DESC: User:bob has no permission to access Topic:{TOPIC} from 127.0.0.1, no",
        ),
        (BOB | {"secret_key": "wrong"}, "CODE: 16  DESC: check signature failed."),
        (BOB | {"access_key": "carol"}, "CODE: 16  DESC: User:carol is not found."),
    ],
)
def test_without_rights_clients_get_rocketmqs_words(
    secured: Secured, tmp_path: Path, user: dict[str, Any], words: str
) -> None:
    client = Client(JAVA[0], secured.cluster.namesrv, tmp_path)
    (line,) = client.run("produce", TOPIC, "refused", **{"async": 1}, **user)
    assert words in line["status"]


def test_mqadmin_shows_and_changes_users_and_rights(secured: Secured) -> None:
    run = secured.run
    run("createUser", "-u", "dave", "-p", "dave-secret", "-t", "Super")
    shown = run("getUser", "-u", "dave")
    assert "dave" in shown
    assert "Super" in shown
    assert "dave-secret" not in shown + run("listUser")
    run("updateUser", "-u", "dave", "-t", "Normal")
    assert "Normal" in run("getUser", "-u", "dave")
    entry = ("-r", "Topic:Orders*", "-a", "Pub", "-d", "Allow", "-i", "10.0.0.0/8")
    run("createAcl", "-s", "User:dave", *entry)
    assert "Topic:Orders*" in run("getAcl", "-s", "User:dave")
    run("updateAcl", "-s", "User:dave", "-r", "Topic:Orders*", "-a", "Sub", "-d", "Deny")
    changed = run("listAcl", "-s", "User:dave")
    assert "Deny" in changed
    assert "10.0.0.0/8" not in changed
    run("deleteAcl", "-s", "User:dave", "-r", "Topic:Orders*")
    assert "Topic:Orders*" not in run("listAcl")
    run("deleteUser", "-u", "dave")
    assert "dave" not in run("listUser")


def test_every_node_refuses_and_has_the_users(secured: Secured) -> None:
    alice = Signer("alice", "alice-secret")
    for node_id in secured.cluster.nodes:
        unsigned = secured.ask(None, RequestCode.GET_TOPIC_CONFIG, node_id, topic=TOPIC)
        assert (unsigned.code, unsigned.remark) == (16, "username cannot be null.")
        assert secured.ask(alice, RequestCode.GET_BROKER_CONFIG, node_id).code == 16
        config = secured.ask(ROOT, RequestCode.GET_BROKER_CONFIG, node_id)
        assert config.code == 0
        for secret in (ROOT.secret_key, INNER.secret_key, "alice-secret"):
            assert secret.encode() not in config.body


def test_a_follower_forwards_in_the_name_of_its_client(secured: Secured) -> None:
    follower = next(node_id for node_id in secured.cluster.nodes if node_id != secured.leader)
    body = orjson.dumps({"password": "p-secret", "userType": "Super"})
    for signer, code in ((ROOT, 0), (Signer("alice", "alice-secret"), 16)):
        request = RemotingCommand(
            RequestCode.AUTH_CREATE_USER, opaque=1, ext_fields={"username": "forwarded"}, body=body
        )
        signer.sign(request)
        with Wire(secured.cluster.address(follower)) as wire:
            wire.send_bytes(encode_command(request))
            assert wire.read_command().code == code
    assert secured.ask(Signer("forwarded", "p-secret"), RequestCode.GET_BROKER_CONFIG).code == 0


def test_the_admin_service_and_the_command_line_sign(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for key, value in zip(KEYS, (ROOT.access_key, ROOT.secret_key), strict=True):
        monkeypatch.setenv(key, value)
    line, namesrv = CommandLine(monkeypatch, capsys), ("--namesrv", secured.cluster.namesrv)
    assert TOPIC in line("topic", "list", *namesrv).out
    assert "3 acknowledged" in line("produce", TOPIC, "--count", "3", "--size", "10", *namesrv).err
    with serving(secured.cluster.namesrv) as url:
        http = httpx.Client(base_url=url, timeout=LIMIT_S)
        wait_for(
            "all nodes are up",
            lambda: {row["state"] for row in answered(http.get("/api/v1/brokers"))["items"]} == {"up"},
            LIMIT_S,
        )
        http.close()
    monkeypatch.setenv(KEYS[1], "wrong")
    refused = line("topic", "list", *namesrv)
    assert "check signature failed" in refused.err + refused.out


def test_the_pipelines_client_signs(secured: Secured, tmp_path: Path) -> None:
    secured.run("createAcl", "-s", "User:alice", "-r", f"Topic:{TOPIC}*", "-a", "Pub,Sub,Get", "-d", "Allow")
    file = tmp_path / "account.toml"
    file.write_text('access_key = "alice"\nsecret_key = "alice-secret"\n', encoding="utf-8")
    file.chmod(0o600)
    with ConnectionOptions(secured.cluster.namesrv, account_file=str(file)).cluster() as cluster:
        assert sum(max_offset(cluster, queue) for queue in cluster.queues(TOPIC)) > 0
    with (
        ConnectionOptions(secured.cluster.namesrv).cluster() as unsigned,
        pytest.raises(RequestRefusedError, match="username cannot be null"),
    ):
        max_offset(unsigned, unsigned.queues(TOPIC)[0])


def test_a_killed_leaders_successor_checks_too(secured: Secured) -> None:
    """Last in the file: it takes the leader away."""
    cluster = secured.cluster
    cluster.kill(secured.leader)
    survivors = [node_id for node_id in cluster.nodes if node_id != secured.leader]

    def leads() -> str | None:
        for node_id in survivors:
            answer = secured.ask(ROOT, RequestCode.LEDGERMQ_NODE_STATUS, node_id)
            if answer.code == 0 and orjson.loads(answer.body)["role"] == "LEADER":
                return node_id
        return None

    leader = wait_for("another leader", leads, LIMIT_S)
    assert secured.ask(None, RequestCode.GET_TOPIC_CONFIG, leader, topic=TOPIC).code == 16
    body = {"topic": TOPIC, "queueId": "0"}
    assert secured.ask(ROOT, RequestCode.GET_MAX_OFFSET, leader, **body).code == 0


ACCOUNTS = """
accounts:
- accessKey: the-admin
  secretKey: the-admin-secret
  admin: true
- accessKey: alice-4
  secretKey: alice-secret
  topicPerms: [Old=PUB|SUB]
  groupPerms: [old-550=SUB, old-498=SUB]
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node with the access control of RocketMQ 4."""
    folder = tmp_path_factory.mktemp("plain")
    accounts = folder / "plain_acl.yml"
    accounts.write_text(ACCOUNTS, encoding="utf-8")
    cluster = Cluster(folder / "cluster", nodes=1)
    try:
        cluster.start({"aclEnable": "true", "aclFile": str(accounts), "autoCreateTopicEnable": "true"})
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.parametrize("version", versions(JAVA))
def test_rocketmq_4s_accounts_with_stock_clients(plain: Cluster, tmp_path: Path, version: str) -> None:
    client = Client(version, plain.namesrv, tmp_path)
    user: dict[str, Any] = {"access_key": "alice-4", "secret_key": "alice-secret"}
    sent = client.run("produce", "Old", "p", sync=COUNT, batch=10, **user)
    got = client.run("consume", "Old", f"old-{client.label}", count=len(sent), quiet_ms=500, **user)
    assert len(got) >= len(sent)
    (refused,) = client.run("produce", "Other", "p", **{"async": 1}, **user)
    assert "No default permission for topic:Other" in refused["status"]
    (refused,) = client.run("produce", "Old", "p", **{"async": 1})
    assert "No accessKey is configured" in refused["status"]
