"""RocketMQ's own clients for gRPC against the endpoint of a real three-node cluster."""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lz4.frame
import pytest

from ledgermq.local.plan import is_free
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.send import letters_of_send
from remoting.record import parse_properties
from tests.integration.client_runs import (
    Driver,
    Report,
    finish,
    grpc_go_driver,
    grpc_java_driver,
    grpc_node_driver,
    grpc_python_driver,
    grpc_rust_driver,
    read_report,
)
from tests.integration.cluster import COMMAND, Cluster, free_ports
from tests.integration.streams import find_broker, read_topic
from tests.integration.waiting import wait_for
from tests.support.children import ending_with_parent

pytestmark = pytest.mark.integration
SETTINGS = {
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "1000",
    "recallMessageEnable": "true",
    "enablePropertyFilter": "true",
}
COUNT = 30
CLIENTS = {
    "go": grpc_go_driver,
    "java": grpc_java_driver,
    "node": grpc_node_driver,
    "python": grpc_python_driver,
    "rust": grpc_rust_driver,
}
IN_EVERY_RUN = {"go", "python"}
LACKS = {
    "go": {"priority", "recall"},
    "java": {"priority"},
    "node": {"second endpoint", "priority"},
    "rust": {"change", "priority", "push", "recall", "second endpoint"},
}
"""What the client has not; of priorities, what its driver does not ask for. Clients without a second endpoint
look for a host of the name `a:8081,b:8081`.
"""
PUSHES_AT_FAILOVER = {"go", "node"}
SENT_BEFORE_KILL = 20


class Client:
    """One client's driver on one cluster; topics and groups have the client's name."""

    def __init__(self, language: str, driver: Driver, cluster: Cluster) -> None:
        self.language = language
        self.driver = driver
        self.cluster = cluster
        self._runs = 0

    def has(self, what: str) -> bool:
        return what not in LACKS.get(self.language, ())

    def need(self, what: str) -> None:
        if not self.has(what):
            pytest.skip(f"the client has no {what}")

    def topic(self, kind: str, message_type: str = "NORMAL", queues: int = 4) -> str:
        name = f"{self.language}-{kind}"
        options = ["--queues", str(queues), "--set", f"message.type={message_type}"]
        self.command("topic", "create", name, *options)
        return name

    def command(self, *arguments: str) -> str:
        """What `ledgermq` prints."""
        command = [str(COMMAND), *arguments, "--namesrv", self.cluster.namesrv]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, action: str, topic: str, group: str = "none", **options: object) -> tuple[Any, Path]:
        self._runs += 1
        out = self.driver.folder / f"{self.language}-{action}-{self._runs}.jsonl"
        given = {"endpoint": self.cluster.grpc, "topic": topic, "group": group, "out": out, **options}
        arguments = [action, *(f"{name}={value}" for name, value in given.items())]
        return self.driver.start(arguments, out), out

    def run(self, action: str, topic: str, group: str = "none", **options: object) -> Report:
        return finish(*self.start(action, topic, group, **options))


@pytest.fixture(scope="module")
def grpc_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("grpc-cluster"))
    try:
        running.start(SETTINGS, grpc=True)
        yield running
    finally:
        running.stop()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(language, marks=() if language in IN_EVERY_RUN else pytest.mark.long)
        for language in sorted(CLIENTS)
    ],
)
def client(
    request: pytest.FixtureRequest, grpc_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Client:
    language: str = request.param
    folder: Path = tmp_path_factory.mktemp(f"grpc-{language}")
    return Client(language, CLIENTS[language](folder), grpc_cluster)


def events(report: Report, event: str) -> Report:
    return [row for row in report if row["event"] == event]


def bodies(report: Report, event: str = "received") -> list[int]:
    return [int(row["body"]) for row in events(report, event)]


async def test_messages_arrive_once_with_all_that_belongs_to_them(client: Client) -> None:
    topic = client.topic("normal")
    sent = client.run("send", topic, count=COUNT, tag="A")
    assert bodies(sent, "sent") == list(range(COUNT))
    received = client.run("simple", topic, f"{topic}-all", count=COUNT)
    assert sorted(bodies(received)) == list(range(COUNT))
    ids = {row["body"]: row["id"] for row in events(sent, "sent")}
    for row in events(received, "received"):
        assert (row["id"], row["topic"], row["tag"]) == (ids[row["body"]], topic, "A")
        assert (row["keys"], row["properties"]) == ([f"key{row['body']}"], {"number": row["body"]})
        assert row["attempt"] == 1
    stored = await read_topic(client.cluster.namesrv, topic)
    found = [parse_properties(record.properties) for records in stored.values() for record in records]
    assert {each["UNIQ_KEY"] for each in found} == set(ids.values()), "remoting clients read them"
    assert {each["KEYS"] for each in found} == {f"key{number}" for number in range(COUNT)}


async def test_bodies_that_remoting_clients_have_packed_are_read(client: Client) -> None:
    topic, packed = client.topic("packed"), {0x001: zlib.compress, 0x101: lz4.frame.compress}
    remoting = RemotingClient()
    try:
        broker = await find_broker(remoting, client.cluster.namesrv, topic)
        assert broker is not None
        for number, (sys_flag, pack) in enumerate(packed.items()):
            properties = f"UNIQ_KEY\x01{number:032X}\x02"
            header = letters_of_send(
                topic, number, sys_flag=sys_flag, born_timestamp_ms=1, properties=properties, is_batch=False
            )
            command = RemotingCommand(
                RequestCode.SEND_MESSAGE_V2, ext_fields=header, body=pack(str(number).encode())
            )
            assert (await remoting.invoke(broker, command)).code == ResponseCode.SUCCESS
    finally:
        await remoting.close()
    received = client.run("simple", topic, f"{topic}-all", count=len(packed))
    assert sorted(bodies(received)) == list(range(len(packed)))


def test_only_wanted_messages_are_delivered(client: Client) -> None:
    topic = client.topic("filtered")
    client.run("send", topic, count=5, tag="A")
    client.run("send", topic, count=5, tag="B")
    by_tag = client.run("simple", topic, f"{topic}-tag", count=5, filter="B || C")
    assert {row["tag"] for row in events(by_tag, "received")} == {"B"}
    by_property = client.run("simple", topic, f"{topic}-sql", count=2, sql="number = 3")
    assert bodies(by_property) == [3, 3]


def test_messages_of_a_group_arrive_in_order(client: Client) -> None:
    topic, group = client.topic("fifo", "FIFO"), f"{client.language}-in-order"
    client.command("group", "create", group, "--orderly")
    client.run("send", topic, count=COUNT, kind="fifo")
    received = client.run("push" if client.has("push") else "simple", topic, group, count=COUNT)
    for remainder in range(3):
        numbers = [number for number in bodies(received) if number % 3 == remainder]
        assert numbers == list(range(remainder, COUNT, 3))


def test_the_highest_priority_comes_first(client: Client) -> None:
    client.need("priority")
    topic = client.topic("priority", "PRIORITY")
    client.run("send", topic, count=4, kind="priority")
    assert bodies(client.run("simple", topic, f"{topic}-group", count=4)) == [3, 2, 1, 0]


def test_a_delayed_message_waits_and_a_recalled_one_never_comes(client: Client) -> None:
    topic = client.topic("delay", "DELAY")
    options = {"recall": "true"} if client.has("recall") else {}
    sent = client.run("send", topic, count=2 + len(options), kind="delay", delayMs=3_000, **options)
    assert len(events(sent, "recalled")) == len(options)
    received = client.run("simple", topic, f"{topic}-group", count=2)
    assert sorted(bodies(received)) == [0, 1]


def test_a_message_comes_again_when_its_invisible_time_is_made_shorter(client: Client) -> None:
    client.need("change")
    topic = client.topic("shortened")
    client.run("send", topic, count=2)
    received = client.run("simple", topic, f"{topic}-group", count=2, change="1", invisibleS=600)
    attempts = [(row["body"], row["attempt"]) for row in events(received, "received")]
    assert sorted(attempts) == [("0", 1), ("1", 1), ("1", 2)]


def test_a_failed_message_comes_again_and_at_last_is_a_dead_letter(client: Client) -> None:
    client.need("push")
    topic, group = client.topic("retried"), f"{client.language}-retried"
    client.command("group", "create", group, "--retry-max", "1")
    started = client.start("push", topic, group, count=4, fail="1", times=2)
    wait_for("the consumer", lambda: events(read_report(started[1]), "ready"), 30.0)
    client.run("send", topic, count=3)
    received = finish(*started)
    assert [row["attempt"] for row in events(received, "received") if row["body"] == "1"] == [1, 2]
    wait_for("a dead letter", lambda: group in client.command("dlq", "list"), 60.0)


def test_transactions_end_as_their_producer_decides_or_says_when_asked(client: Client) -> None:
    topic = client.topic("transaction", "TRANSACTION")
    end = client.driver.folder / f"{client.language}-end"
    process, out = client.start("transact", topic, count=6, end=end)
    received = client.run("simple", topic, f"{topic}-group", count=4)
    end.touch()
    report = finish(process, out)
    assert sorted(bodies(received)) == [0, 2, 3, 5]
    assert set(bodies(report, "checked")) == {2, 5}


def test_sends_and_receives_go_on_when_the_leader_is_killed(client: Client) -> None:
    topic = client.topic("failover")
    group = f"{topic}-group"
    count = 200
    kind = "push" if client.language in PUSHES_AT_FAILOVER else "simple"
    consuming = client.start(kind, topic, group, count=count, distinct="true")
    wait_for("the consumer", lambda: events(read_report(consuming[1]), "ready"), 30.0)
    sending = client.start("send", topic, count=count, pauseMs=10)
    wait_for("some sends", lambda: len(bodies(read_report(sending[1]), "sent")) > SENT_BEFORE_KILL, 30.0)
    killed = client.cluster.wait_leader()
    client.cluster.kill(killed)
    sent = finish(*sending)
    assert bodies(sent, "sent") == list(range(count)), "each send succeeded, at most after a retry"
    received = finish(*consuming)
    assert set(bodies(received)) == set(range(count))
    client.cluster.restart(killed)
    client.cluster.wait_leader()


def test_sends_and_receives_go_on_when_an_endpoint_is_killed(client: Client) -> None:
    """It is one of two that the client was configured with, which a route names, too."""
    client.need("second endpoint")
    topic = client.topic("endpoints")
    group, count = f"{topic}-group", 100
    address, other = second_endpoint(client.cluster)
    try:
        both = {"endpoint": f"{address};{client.cluster.grpc}"}
        kind = "push" if client.language in PUSHES_AT_FAILOVER else "simple"
        consuming = client.start(kind, topic, group, count=count, distinct="true", **both)
        wait_for("the consumer", lambda: events(read_report(consuming[1]), "ready"), 30.0)
        sending = client.start("send", topic, count=count, pauseMs=10, **both)
        wait_for("some sends", lambda: len(bodies(read_report(sending[1]), "sent")) > SENT_BEFORE_KILL, 30.0)
    finally:
        other.kill()
        other.wait()
    assert bodies(finish(*sending), "sent") == list(range(count)), "each succeeded, at most after a retry"
    assert set(bodies(finish(*consuming))) == set(range(count))


def second_endpoint(cluster: Cluster) -> tuple[str, subprocess.Popen[bytes]]:
    """One more process for the same cluster, with its address."""
    port = free_ports(1)[2]
    address = f"127.0.0.1:{port}"
    command = [str(COMMAND), "grpc", "--namesrv", cluster.namesrv, "--port", str(port)]
    process = subprocess.Popen(ending_with_parent(command), stderr=subprocess.DEVNULL)
    wait_for("the second endpoint", lambda: not is_free(port), 20.0)
    return address, process


def test_receipt_handles_and_transactions_outlive_the_leader(client: Client) -> None:
    topic, transactions = client.topic("held"), client.topic("held-transaction", "TRANSACTION")
    hold, end = client.driver.folder / "hold", client.driver.folder / "held-end"
    client.run("send", topic, count=2)
    change = {"change": "0"} if client.has("change") else {}
    holding = client.start("simple", topic, f"{topic}-group", count=2, invisibleS=600, hold=hold, **change)
    deciding = client.start("transact", transactions, count=6, hold=hold, end=end)
    wait_for("a message", lambda: events(read_report(holding[1]), "received"), 30.0)
    wait_for("transactions", lambda: len(events(read_report(deciding[1]), "prepared")) == 6, 30.0)
    killed = client.cluster.wait_leader()
    client.cluster.kill(killed)
    client.cluster.wait_leader()
    hold.touch()
    committed = client.run("simple", transactions, f"{transactions}-group", count=4, distinct="true")
    end.touch()
    finish(*deciding)
    assert set(bodies(committed)) == {0, 2, 3, 5}
    attempts = {(row["body"], row["attempt"]) for row in events(finish(*holding), "received")}
    assert attempts == {("0", 1), ("1", 1)} | ({("0", 2)} if change else set())
    client.cluster.restart(killed)
    client.cluster.wait_leader()
