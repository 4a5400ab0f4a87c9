"""produce, consume and status from end to end over loopback, and what they print."""

import asyncio
import os
from pathlib import Path

import pytest

from admin_api.cluster.examples import CLUSTER_EXAMPLE
from admin_api.cluster.schemas import ClusterView
from ledgermq.cluster_view import node_state, show_cluster, show_group
from ledgermq.commands.cluster import show_clients
from ledgermq.commands.messaging import (
    LINE_BYTES_MAX,
    ConsumeOptions,
    ProduceOptions,
    made_up_body,
    print_messages,
    send_messages,
    stdin_lines,
)
from ledgermq.errors import UserError
from ledgermq.local.cluster import describe_nodes, is_writable
from remoting.codes import ResponseCode
from remoting.errors import ClientError
from tests.unit.ledgermq.fake_broker import GROUP, TOPIC, FakeBroker, serving


def options(broker: FakeBroker, count: int | None = 10, rate: float | None = None) -> ProduceOptions:
    return ProduceOptions(TOPIC, broker.address, count, 30, "tag", None, rate, in_flight=4)


def test_endpoints_stand_below_the_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    down = {"address": "127.0.0.1:8082", "state": "down", "problem": "refused"}
    endpoints = [*CLUSTER_EXAMPLE["grpcEndpoints"], down]
    show_cluster(CLUSTER_EXAMPLE | {"grpcEndpoints": endpoints})
    shown = capsys.readouterr().out.splitlines()
    assert shown[-2:] == ["grpc 127.0.0.1:8081 up", "grpc 127.0.0.1:8082 down: refused"]


def test_a_silent_name_server_is_named_beside_others(capsys: pytest.CaptureFixture[str]) -> None:
    up, down = dict(CLUSTER_EXAMPLE["namesrv"]), {"address": "10.0.0.2:9876", "problem": "refused"}
    show_cluster(CLUSTER_EXAMPLE | {"namesrvs": [up, down]})
    assert capsys.readouterr().err == "name server 10.0.0.2:9876: refused\n"


def test_the_doctor_names_the_clients_of_an_endpoint(capsys: pytest.CaptureFixture[str]) -> None:
    client = {
        "clientId": "c-1\x1b[m",
        "clientType": "PRODUCER",
        "language": "GO",
        "version": "5.1.3",
        "address": "10.0.0.7:4711",
        "groups": [],
        "topics": ["orders"],
        "topicCount": 2,
        "namespace": "n",
    }
    for total, clients in ((3, [client]), (None, []), (0, [])):
        show_clients({"address": "10.0.0.5:8081", "total": total, "clients": clients})
    shown = capsys.readouterr().out
    assert "gRPC endpoint 10.0.0.5:8081: 3 clients, the first 1\n" in shown
    assert "gRPC endpoint 10.0.0.5:8081: unknown clients\n" in shown
    assert "gRPC endpoint 10.0.0.5:8081: 0 clients\n" in shown
    assert "\x1b[m" not in shown
    (row,) = [line for line in shown.splitlines() if "PRODUCER" in line]
    assert row.split()[1:] == ["PRODUCER", "GO", "5.1.3", "10.0.0.7:4711", "orders,", "…", "n"]


async def test_produce_count_then_consume_count(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeBroker(queue_count=1)
    async with serving(broker):
        await send_messages(options(broker))
        await print_messages(ConsumeOptions(TOPIC, broker.address, GROUP, True, 10))
    printed = capsys.readouterr()
    assert sorted(printed.out.splitlines()) == sorted(
        made_up_body(number, 30).decode() for number in range(10)
    )
    assert "10 acknowledged" in printed.err
    assert printed.err.endswith("10 messages.\n")
    assert broker.offsets == {0: 10}


async def test_produce_failure_is_counted_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeBroker()
    broker.refusals = [(ResponseCode.MESSAGE_ILLEGAL, "too long")]
    async with serving(broker):
        with pytest.raises(UserError, match=r"1 message was not ack.*with code 13: too long"):
            await send_messages(options(broker, count=3))
    assert "2 acknowledged" in capsys.readouterr().err


async def test_produce_lines_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeBroker(queue_count=1)
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write("one\nzwölf\r\nlast".encode())
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        async with serving(broker):
            await send_messages(options(broker, count=None, rate=10_000.0))
    assert sorted(message.body for message in broker.queues[0]) == sorted([b"one", "zwölf".encode(), b"last"])


async def lines_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    with path.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        return [line async for line in stdin_lines()]


async def test_stdin_lines_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines").write_bytes(b"a\n\nb\n")
    assert await lines_of(tmp_path / "lines", monkeypatch) == [b"a", b"", b"b"]


async def test_stdin_lines_too_long_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines").write_bytes(b"x" * (LINE_BYTES_MAX + 1))
    with pytest.raises(UserError, match="a line is longer than 4194304 bytes"):
        await lines_of(tmp_path / "lines", monkeypatch)


async def test_consume_refused_says_why() -> None:
    broker = FakeBroker(queue_count=1)
    broker.pull_refusals = [(ResponseCode.NO_PERMISSION, "not readable")]
    async with serving(broker):
        with pytest.raises(ClientError, match="not readable"):
            await asyncio.wait_for(print_messages(ConsumeOptions(TOPIC, broker.address, GROUP, True, 1)), 20)


@pytest.mark.parametrize(("number", "size"), [(7, 1), (7, 100), (123_456, 12)])
def test_made_up_body_has_its_size_and_its_number(number: int, size: int) -> None:
    body = made_up_body(number, size)
    assert body.startswith(f"message {number}".encode())
    assert len(body) == max(size, len(f"message {number}"))


def test_status_table_says_unknown_where_nothing_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    (group,) = CLUSTER_EXAMPLE["groups"]
    show_group(group)
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.strip() == "broker-a: writable, n1 leads in term 4"
    (dead,) = [line for line in lines if "127.0.0.1:10911" in line]
    assert dead.count("unknown") == 6
    (leader,) = [line for line in lines if "leader" in line]
    cells = ["n1", "leader", "127.0.0.1:10921", "4", "0", "2042", "2042", "2041", "2041", "0"]
    assert leader.split() == cells


def test_status_table_says_that_a_group_accepts_no_messages(capsys: pytest.CaptureFixture[str]) -> None:
    (group,) = CLUSTER_EXAMPLE["groups"]
    show_group(group | {"acceptsMessages": False})
    title = capsys.readouterr().out.splitlines()[0]
    assert title.strip() == "broker-a: writable, n1 leads in term 4, accepts no messages"


def test_a_node_of_an_earlier_generation_is_called_outdated() -> None:
    node = CLUSTER_EXAMPLE["groups"][0]["nodes"][1]
    assert node_state(node).text == "leader"
    assert "leader, outdated: its group is of generation 2" in node_state(node | {"newerGeneration": 2}).text


def test_is_writable_needs_the_leader_at_id_0_of_the_name_server() -> None:
    view = ClusterView.model_validate(CLUSTER_EXAMPLE)
    assert is_writable(view, 1)
    assert not is_writable(view, 2), "a group of the plan is not known yet"
    (group,) = view.groups
    moved = [node.model_copy(update={"broker_id": 2}) if node.id == "n1" else node for node in group.nodes]
    assert not is_writable(view.model_copy(update={"groups": [group.model_copy(update={"nodes": moved})]}), 1)
    assert not is_writable(view.model_copy(update={"groups": []}), 1)


def test_describe_nodes() -> None:
    view = ClusterView.model_validate(CLUSTER_EXAMPLE)
    assert describe_nodes(view) == "n0 down, n1 leader, n2 follower"
    assert describe_nodes(view.model_copy(update={"groups": []})) == "no broker has registered yet"
