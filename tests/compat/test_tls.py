"""Stock clients, mqadmin and our own over TLS, on a cluster that accepts nothing else (`ledgermq up --tls
enforcing`); and certificates that are renewed while it runs.

The stock Go client (2.1.2) and the library of the stock Python client (2.0.0) have no TLS.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.tls import AUTHORITIES_VARIABLE, ClientTls
from remoting.codes import RequestCode
from rocketmq_spark.client.pulling import PullStatus, pull
from rocketmq_spark.options import CONNECTION_OPTIONS, OptionReader
from sockets.dialled import dial
from tests.compat.mqadmin import ERROR_TEXT, MqAdmin, compile_runner
from tests.compat.programs import JAVA, Client, Program
from tests.compat.stage import Stage
from tests.integration.cluster import COMMAND
from tests.integration.messages import samples
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire

pytestmark = pytest.mark.integration
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authorities(folder: Path) -> Path:
    return folder / "cluster/data/certificates/ca.pem"


@pytest.fixture(scope="module")
def encrypted(folder: Path, authorities: Path) -> Iterator[Stage]:
    """The running cluster; whatever tests start speaks TLS to it."""
    running = Stage(folder / "cluster")
    settings = folder / "tls.properties"
    settings.write_text(f"tls.client.authServer=true\ntls.client.trustCertPath={authorities}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Dtls.enable=true -Dtls.config.file={settings}")
        patch.setenv(AUTHORITIES_VARIABLE, str(authorities))
        patch.setattr("tests.integration.wire.dial", lambda *address: _secured(authorities, *address))
        try:
            running.start(options=["--tls", "enforcing"], admin=True)
            yield running
        finally:
            running.stop()


def _secured(authorities: Path, address: tuple[str, int], limit_s: float, source: str = "") -> ssl.SSLSocket:
    return ClientTls(authorities).credentials().wrap(dial(address, limit_s, source), address[0])


def command(stage: Stage, *words: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """A call of `ledgermq`: its exit code and what it printed."""
    ended = subprocess.run(
        [COMMAND, *words, "--namesrv", stage.namesrv],
        input="one\ntwo\n",
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("version", JAVA)
def test_java_sends_and_consumes_through_the_death_of_the_leader(
    encrypted: Stage, tmp_path: Path, version: str
) -> None:
    client = Client(version, encrypted.namesrv, tmp_path)
    topic, group = encrypted.topic("Tls", 4), encrypted.unique("Tls")
    sent = samples(sync=30, large=2)
    with client.start("consumers", topic, group) as consumers:
        client.run("produce", topic, f"{group}-before", sync=30, large=2)
        consumers.wait_until("all of before", lambda: bodies(consumers) == {each.body for each in sent})
        if version == JAVA[0]:
            with encrypted.leader_dead():
                client.run("produce", topic, f"{group}-after", ordered=30)
            sent += samples(ordered=30)
            consumers.wait_until("all of after", lambda: bodies(consumers) == {each.body for each in sent})
        consumers.stop()


def bodies(consumers: Program) -> set[str]:
    return {line["body"] for line in consumers.report if "body" in line}


def test_mqadmin(encrypted: Stage, tmp_path: Path) -> None:
    compile_runner()
    topic = encrypted.unique("TlsAdmin")
    mqadmin = MqAdmin(encrypted.namesrv, tmp_path)
    try:
        made = mqadmin.run("updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "4", "-w", "4")
        status = mqadmin.run("topicStatus", "-t", topic)
        shown = mqadmin.run("getBrokerConfig", "-b", encrypted.leader_address())
    finally:
        mqadmin.stop()
    assert "success" in made
    assert [ERROR_TEXT.search(printed) for printed in (made, status, shown)] == [None] * 3
    assert "useTLS" in shown


def test_our_own_commands_and_the_admin_service(encrypted: Stage) -> None:
    topic = encrypted.topic("TlsOwn", 2)
    assert command(encrypted, "produce", topic)[0] == 0
    code, printed = command(encrypted, "consume", topic, "--count", "2")
    assert (code, "one" in printed, "two" in printed) == (0, True, True)
    assert command(encrypted, "status")[0] == 0
    with urllib.request.urlopen(f"{encrypted.cluster.admin}/readyz", timeout=LIMIT_S) as answer:
        assert answer.status == 200


def test_spark_s_client(encrypted: Stage, authorities: Path) -> None:
    topic = encrypted.topic("TlsSpark", 1)
    assert command(encrypted, "produce", topic)[0] == 0
    options = {"namesrv": encrypted.namesrv, "tlsAuthorities": str(authorities)}
    with OptionReader(options, CONNECTION_OPTIONS, "the test").connection().cluster() as cluster:
        (queue,) = cluster.queues(topic)
        assert pull(cluster, queue, 0, 10).status is PullStatus.FOUND


def test_plain_clients_are_refused_and_no_client_believes_another_authority(encrypted: Stage) -> None:
    code, printed = command(encrypted, "status", environment={"LEDGERMQ_TLS": "false"})
    assert (code, "closed" in printed) == (1, True), printed
    code, printed = command(
        encrypted, "status", environment={AUTHORITIES_VARIABLE: "", "LEDGERMQ_TLS": "true"}
    )
    assert (code, "certificate is not accepted" in printed) == (1, True), printed
    assert "TLS ended, closed: the peer speaks plain text" in encrypted.cluster.log_text()


def test_renewed_certificates_are_in_force_without_a_restart(encrypted: Stage) -> None:
    host, port = encrypted.leader_address().split(":")
    before = ssl.get_server_certificate((host, int(port)))
    with Wire(encrypted.leader_address()) as kept:
        renew: list[str | Path] = [COMMAND, "cluster", "renew", "--data", str(encrypted.cluster.data)]
        subprocess.run(renew, check=True, capture_output=True, timeout=LIMIT_S)
        assert ssl.get_server_certificate((host, int(port))) != before
        assert kept.invoke(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0
    assert command(encrypted, "status")[0] == 0
    wait_for("three nodes in touch", encrypted.is_whole, LIMIT_S)
