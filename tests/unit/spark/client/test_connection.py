"""The blocking connection, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from remoting.client.blocking import Connection, Connections
from remoting.command import RemotingCommand
from remoting.errors import ConnectFailedError, RemotingClosedError, RequestTimeoutError
from rocketmq_spark.client.buffer_pool import BufferPool
from tests.support.self_dialled import assert_can_be_listened_on, dial_from_same_port, free_port
from tests.unit.spark.client.server import Answer, Server, reply

Serve = Callable[[Answer], Server]


def test_an_answer_of_any_size_comes_whole(serve: Serve) -> None:
    server = serve(lambda request: [reply(request, body=request.body * 1_000, n="1")])
    with Connection(server.address, 5.0) as connection:
        for number in range(3):
            answer = connection.invoke(RemotingCommand(11, body=b"%d" % number * 1_000))
            assert answer.body == b"%d" % number * 1_000_000
            assert answer.ext_fields == {"n": "1"}


def test_a_body_comes_into_memory_that_is_used_again(serve: Serve) -> None:
    memory = BufferPool(1)
    server = serve(lambda request: [RemotingCommand(40), reply(request, body=request.body * 1_000, n="1")])
    with Connection(server.address, 5.0) as connection:
        for number in range(3):
            connection.send(RemotingCommand(11, body=b"%d" % number * 100))
            answer, body = connection.receive_into(memory.acquire)
            assert (answer.ext_fields, answer.body) == ({"n": "1"}, b"")
            assert bytes(body) == b"%d" % number * 100_000
            del body


def test_answers_are_told_apart_when_they_come_in_another_order(serve: Serve) -> None:
    held: list[RemotingCommand] = []

    def answer(request: RemotingCommand) -> list[RemotingCommand | bytes | None]:
        held.append(request)
        return [reply(one, body=one.body) for one in reversed(held)] if len(held) == 3 else []

    with Connection(serve(answer).address, 5.0) as connection:
        sent = {connection.send(RemotingCommand(11, body=b"%d" % number)): number for number in range(3)}
        found = [connection.receive() for _ in range(3)]
        assert [sent[one.opaque] for one in found] == [2, 1, 0]
        assert [one.body for one in found] == [b"2", b"1", b"0"]


def test_requests_of_the_node_and_old_answers_are_dropped(serve: Serve) -> None:
    def answer(request: RemotingCommand) -> list[RemotingCommand | bytes | None]:
        notice = RemotingCommand(40, opaque=request.opaque, ext_fields={"consumerGroup": "g"})
        old = reply(request)
        old.opaque = 999
        return [notice, old, reply(request, body=b"mine")]

    with Connection(serve(answer).address, 5.0) as connection:
        assert connection.invoke(RemotingCommand(11)).body == b"mine"


def test_a_close_ends_the_connection(serve: Serve) -> None:
    connection = Connection(serve(lambda request: [None]).address, 5.0)
    with pytest.raises(RemotingClosedError, match=connection.address):
        connection.invoke(RemotingCommand(11))
    assert not connection.is_open


def test_silence_ends_the_connection(serve: Serve) -> None:
    connection = Connection(serve(lambda request: [b"\x00\x00"]).address, 5.0)
    with pytest.raises(RequestTimeoutError):
        connection.invoke(RemotingCommand(11), timeout_s=0.05)
    assert not connection.is_open


JUNK = [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(8), b"\x00\x00\x00\x06\x00\x00\x00\x02{]"]


@pytest.mark.parametrize("junk", JUNK)
def test_junk_ends_the_connection(serve: Serve, junk: bytes) -> None:
    connection = Connection(serve(lambda request: [junk]).address, 5.0)
    with pytest.raises(RemotingClosedError):
        connection.invoke(RemotingCommand(11))
    assert not connection.is_open


@pytest.mark.parametrize("address", ["nowhere", ":9876", "host:", "host:port", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConnectFailedError):
        Connection(address, 1.0)


def test_nobody_there_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ConnectFailedError, match=address):
        Connection(address, 1.0)


def test_connections_are_kept_and_made_anew(serve: Serve) -> None:
    server = serve(lambda request: [reply(request)])
    connections = Connections(5.0)
    first = connections.get(server.address)
    assert connections.get(server.address) is first
    first.close()
    second = connections.get(server.address)
    assert second is not first
    connections.drop(server.address)
    assert not second.is_open
    third = connections.get(server.address)
    connections.close()
    assert not third.is_open


def test_a_connection_to_itself_is_a_refused_one(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    dial_from_same_port(monkeypatch, port)
    with pytest.raises(ConnectFailedError, match="nothing listens there"):
        Connection(f"127.0.0.1:{port}", 5.0)
    assert_can_be_listened_on(port)
