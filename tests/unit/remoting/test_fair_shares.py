"""Clients over their quotas are slowed, then refused; the others are not."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

import pytest

from remoting import fair_shares
from remoting.acl import GRPC_HOST, GRPC_PORT
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, encode_command, success_response
from remoting.fair_shares import LOG_INTERVAL_S, OTHER, REFUSALS_PER_S, REFUSE_WAIT_S, FairShares, Tallies
from remoting.quotas import GUEST_S, Kind, Quota, QuotaRules, networks
from remoting.router import Router
from remoting.server import RemotingServer
from tests.support.fake_connection import FakeConnection
from tests.unit.remoting.fakes import FakeTransport, connect, turn
from tests.unit.remoting.frames import JSON_FRAME, RawPeer

SEND, HEARTBEAT = RequestCode.SEND_MESSAGE_V2, RequestCode.HEART_BEAT


@dataclass
class Clock:
    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Server:
    """The quotas of a server without sockets."""

    def __init__(self, address: Quota | None = None, user: Quota | None = None) -> None:
        self.clock = Clock()
        self.router = Router()
        self.connections: list[FakeConnection] = []
        rules = QuotaRules(address or Quota(), user or Quota())
        self.shares = FairShares(rules, self.router, self.clock)
        self.shares.serve(lambda: [each.as_connection for each in self.connections])

    def connect(self, host: str = "10.0.0.7") -> FakeConnection:
        made = FakeConnection(host=host)
        assert self.shares.opened(made.as_connection)
        self.connections.append(made)
        return made

    def send(self, connection: FakeConnection, count: int, code: int = SEND, size: int = 100) -> int:
        """How many of so many requests are served."""
        return len(self.admit(connection, [RemotingCommand(code) for _ in range(count)], size))

    def admit(
        self, connection: FakeConnection, requests: list[RemotingCommand], size: int = 100
    ) -> list[RemotingCommand]:
        usage = connection.usage
        if usage is None:
            return requests
        usage.size_bytes += len(requests) * size
        connection.unanswered += len(requests)
        return self.shares.admit(connection.as_connection, usage, requests)

    def remarks(self, connection: FakeConnection) -> set[str | None]:
        answers = connection.take_answers()
        assert {answer.code for answer in answers} <= {ResponseCode.SYSTEM_BUSY}
        return {answer.remark for answer in answers}


def test_a_client_within_its_quota_is_neither_slowed_nor_refused() -> None:
    server = Server(Quota(requests_per_s=100, bytes_per_s=100_000, connections_max=2, in_flight_max=50))
    client = server.connect()
    for _ in range(20):
        assert server.send(client, 10) == 10
        client.unanswered = 0
        server.clock.now_s += 0.1
    assert (client.pauses_s, client.answers, server.shares.tallies.names) == ([], [], {})


def test_a_client_over_its_quota_is_not_read_until_it_has_paid() -> None:
    server = Server(Quota(requests_per_s=100))
    client, other = server.connect(), server.connect("10.0.0.8")
    assert server.send(client, 150) == 150
    assert client.pauses_s == [0.5]
    assert server.send(other, 100) == 100
    assert (other.pauses_s, client.answers) == ([], [])
    server.clock.now_s += 0.5
    assert server.send(client, 10) == 10
    assert client.pauses_s[1:] == [pytest.approx(0.1)]


def test_bytes_count_in_both_directions() -> None:
    server = Server(Quota(bytes_per_s=1_000))
    client = server.connect()
    assert client.usage is not None
    client.usage.size_bytes += 1_400  # answers
    server.send(client, 1, size=100)
    assert client.pauses_s == [0.5]


def test_what_would_wait_too_long_is_answered_system_busy_with_the_time_to_wait() -> None:
    server = Server(Quota(requests_per_s=100))
    client = server.connect()
    server.send(client, 200)
    client.unread = 30_000  # three seconds of requests of 100 bytes
    assert server.send(client, 50) == 0
    words = "address 10.0.0.7 is over its quota of 100 requests a second, wait 4000 ms"
    assert server.remarks(client) == {f"{fair_shares.BUSY}: {words}"}
    assert client.pauses_s[-1] == pytest.approx(50 / REFUSALS_PER_S)
    assert server.router.counts.refused == {(-1, ResponseCode.SYSTEM_BUSY): 50}


def test_what_is_paid_for_is_served_however_much_waits() -> None:
    server = Server(Quota(requests_per_s=100))
    client = server.connect()
    client.unread = 10**6
    served = 0
    server.send(client, 100)
    for _ in range(1_000):
        server.clock.now_s += 0.01
        served += server.send(client, 10)
        client.unanswered = 0
    assert served == pytest.approx(1_000, rel=0.02)
    assert max(client.pauses_s) <= REFUSE_WAIT_S


def test_unread_requests_of_all_connections_count() -> None:
    server = Server(Quota(requests_per_s=100))
    clients = [server.connect() for _ in range(4)]
    server.send(clients[0], 100)
    for client in clients:
        client.unread = 9_000
        server.send(client, 1)
    assert server.send(clients[0], 1) == 0
    for client in clients:
        client.unread = 0
        server.shares.leave(client.as_connection)
    again = server.connect()
    assert server.send(again, 1) == 1, "what closed connections had waits no more"


def test_some_requests_are_slowed_only() -> None:
    server = Server(Quota(requests_per_s=100, in_flight_max=1))
    client = server.connect()
    server.send(client, 1_000)
    client.take_answers()
    client.unread = 10**6
    assert server.send(client, 1, HEARTBEAT) == 1
    oneway = RemotingCommand(SEND, flag=2)
    mixed = [RemotingCommand(HEARTBEAT), RemotingCommand(SEND), oneway, RemotingCommand(SEND)]
    assert server.admit(client, mixed) == [mixed[0], oneway]
    assert len(client.take_answers()) == 2


def test_a_flood_of_oneway_requests_is_held_to_the_rate() -> None:
    server = Server(Quota(requests_per_s=10))
    client = server.connect()
    oneway = [RemotingCommand(SEND, flag=2) for _ in range(100)]
    assert server.admit(client, oneway) == oneway
    assert client.pauses_s == [9.0]
    server.admit(client, oneway)
    assert client.pauses_s[1:] == [fair_shares.PAUSE_MAX_S]


def test_requests_beyond_those_in_flight_are_refused() -> None:
    server = Server(Quota(in_flight_max=10))
    one, other = server.connect(), server.connect()
    assert server.send(one, 8) == 8
    assert server.send(other, 8) == 2
    assert server.remarks(other) == {
        f"{fair_shares.BUSY}: address 10.0.0.7 is over its quota of 10 requests in flight, wait 100 ms"
    }
    one.unanswered, other.unanswered = 0, 2
    server.clock.now_s += 1
    assert server.send(other, 8) == 8


def test_an_address_has_so_many_connections() -> None:
    server = Server(Quota(connections_max=2))
    clients = [server.connect(), server.connect()]
    assert not server.shares.opened(FakeConnection(host="10.0.0.7").as_connection)
    server.connect("10.0.0.8")
    server.shares.leave(clients[0].as_connection)
    server.connect()
    assert server.shares.tallies.kinds["address", Kind.CONNECTIONS].refused == 1


def by(server: Server, name: str, connection: FakeConnection, code: int = SEND) -> str | None:
    """One request of a user; why it is refused."""
    request = RemotingCommand(code)
    connection.unanswered += 1
    assert connection.usage is not None
    connection.usage.size_bytes += 100
    assert server.shares.admit(connection.as_connection, connection.usage, [request]) == [request]
    error = server.shares.user_refusal(name, request, connection.as_connection)
    return None if error is None else error.remark


def test_a_users_quota_counts_over_its_addresses() -> None:
    server = Server(user=Quota(requests_per_s=10))
    one, other = server.connect(), server.connect("10.0.0.8")
    assert [by(server, "alice", client) for client in (one, other) * 5] == [None] * 10
    assert (one.pauses_s, other.pauses_s) == ([], [])
    assert by(server, "alice", one) is None
    assert one.pauses_s == [pytest.approx(0.1)]
    assert by(server, "bob", other) is None
    assert other.pauses_s == []
    one.unread = 10_000
    assert by(server, "alice", one) == (
        f"{fair_shares.BUSY}: user alice is over its quota of 10 requests a second, wait 10100 ms"
    )
    assert by(server, "alice", one, HEARTBEAT) is None


def test_a_user_has_so_many_connections_and_requests_in_flight() -> None:
    server = Server(user=Quota(connections_max=1, in_flight_max=2))
    one, other = server.connect(), server.connect()
    assert by(server, "alice", one) is None
    assert by(server, "alice", other) == (
        f"{fair_shares.BUSY}: user alice is over its quota of 1 connections, wait 1000 ms"
    )
    assert by(server, "alice", other, HEARTBEAT) is None
    assert by(server, "alice", one) is None
    assert "over its quota of 2 requests in flight" in str(by(server, "alice", one))
    server.shares.leave(one.as_connection)
    assert by(server, "alice", other) is not None, "its other connection has three open requests"
    other.unanswered = 0
    server.clock.now_s += 1
    assert by(server, "alice", other) is None


ENDPOINT_HOST = "10.0.1.1"


def with_endpoint(address: Quota) -> Server:
    server = Server()
    server.shares.apply(QuotaRules(address, endpoints=networks("10.0.1.0/24")))
    return server


OPAQUES = count(1)


def named(host: str, many: int, code: int = SEND, port: str = "") -> list[RemotingCommand]:
    fields = {GRPC_HOST: host} | ({GRPC_PORT: port} if port else {})
    return [RemotingCommand(code, next(OPAQUES), ext_fields=dict(fields)) for _ in range(many)]


def test_the_clients_of_a_grpc_endpoint_have_quotas_and_it_has_none() -> None:
    server = with_endpoint(Quota(requests_per_s=10))
    endpoint = server.connect(ENDPOINT_HOST)
    assert len(server.admit(endpoint, named("10.0.0.9", 25))) == 11
    assert endpoint.pauses_s == [], "it is that of other clients, too"
    assert server.remarks(endpoint) == {
        f"{fair_shares.BUSY}: address 10.0.0.9 is over its quota of 10 requests a second, wait 100 ms"
    }
    assert len(server.admit(endpoint, named("10.0.0.8", 5))) == 5
    assert len(server.admit(endpoint, named("10.0.0.9", 5, HEARTBEAT))) == 5, "never refused"
    assert server.send(endpoint, 100) == 100, "what it asks for itself"
    assert len(server.admit(endpoint, named("127.0.0.1", 100))) == 100, "as for a client of its own"
    server.clock.now_s += 1
    assert len(server.admit(endpoint, named("10.0.0.9", 5))) == 5


def answer(connection: FakeConnection, requests: list[RemotingCommand], size: int = 0) -> None:
    for request in requests:
        connection.send(success_response(request, body=bytes(size)))
    connection.take_answers()


def test_answers_to_a_client_of_an_endpoint_count_by_their_bytes() -> None:
    server = with_endpoint(Quota(bytes_per_s=10_000))
    endpoint = server.connect(ENDPOINT_HOST)
    first = server.admit(endpoint, named("10.0.0.9", 1))
    answer(endpoint, first, 30_000)
    answer(endpoint, first, 30_000)
    assert len(server.admit(endpoint, named("10.0.0.9", 1))) == 1, "as long as it owes nothing"
    assert server.admit(endpoint, named("10.0.0.9", 1)) == []
    (remark,) = server.remarks(endpoint)
    found = re.search(r"over its quota of 10000 bytes a second, wait (\d+) ms", str(remark))
    assert found is not None
    assert int(found[1]) == pytest.approx(2_060, abs=20)
    assert len(server.admit(endpoint, named("10.0.0.8", 1))) == 1


def test_requests_of_an_endpoints_client_beyond_those_in_flight_are_refused() -> None:
    server = with_endpoint(Quota(in_flight_max=10))
    one, other = server.connect(ENDPOINT_HOST), server.connect("10.0.1.2")
    served = server.admit(one, named("10.0.0.9", 12))
    assert len(served) == 10
    assert server.remarks(one) == {
        f"{fair_shares.BUSY}: address 10.0.0.9 is over its quota of 10 requests in flight, wait 100 ms"
    }
    oneway = [RemotingCommand(SEND, flag=2, ext_fields={GRPC_HOST: "10.0.0.9"})] * 20
    assert len(server.admit(other, oneway)) == 20, "nobody waits for an answer"
    assert server.admit(other, named("10.0.0.9", 1)) == [], "of all endpoints together"
    assert len(server.admit(other, named("10.0.0.9", 1, HEARTBEAT))) == 1
    answer(one, served[:5])
    server.clock.now_s += 1
    assert len(server.admit(other, named("10.0.0.9", 8))) == 4, "the heartbeat is in flight"
    server.shares.leave(one.as_connection)
    server.clock.now_s += 1
    assert len(server.admit(other, named("10.0.0.9", 8))) == 5


def test_a_number_that_an_endpoint_uses_twice_is_one_request_in_flight() -> None:
    server = with_endpoint(Quota(in_flight_max=2))
    endpoint = server.connect(ENDPOINT_HOST)
    (request,) = named("10.0.0.9", 1)
    assert len(server.admit(endpoint, [request] * 5)) == 5
    answer(endpoint, [request])
    assert len(server.admit(endpoint, named("10.0.0.9", 5))) == 2


def test_connections_to_an_endpoint_count_with_the_others() -> None:
    server = with_endpoint(Quota(connections_max=3))
    endpoint = server.connect(ENDPOINT_HOST)
    direct = server.connect("10.0.0.9")

    def ports(*numbers: str, code: int = SEND) -> list[bool]:
        return [bool(server.admit(endpoint, named("10.0.0.9", 1, code, port))) for port in numbers]

    assert ports("1", "2", "3", "2", "1") == [True, True, False, True, True]
    assert server.remarks(endpoint) == {
        f"{fair_shares.BUSY}: address 10.0.0.9 is over its quota of 3 connections, wait 1000 ms"
    }
    assert ports("3", "4", code=HEARTBEAT) == [True, True], "never refused, and not counted"
    assert ports("", "x", "123456") == [True] * 3, "of one that is not named nothing is known"
    assert not server.shares.opened(FakeConnection(host="10.0.0.9").as_connection)
    server.shares.leave(direct.as_connection)
    assert ports("3", "4") == [True, False]
    server.clock.now_s += GUEST_S / 2
    assert ports("1") == [True]
    server.clock.now_s += GUEST_S / 2 + 1
    assert ports("4", "5", "6") == [True, True, False], "those that sent nothing for a while are closed"
    server.clock.now_s += GUEST_S + 1
    assert ports("7") == [True]
    server.connect("10.0.0.9")
    server.shares.leave(endpoint.as_connection)
    for _ in range(2):
        server.connect("10.0.0.9")
    assert not server.shares.opened(FakeConnection(host="10.0.0.9").as_connection)
    server.shares.apply(QuotaRules(Quota(connections_max=3)))
    assert not server.shares.opened(FakeConnection(host="10.0.0.9").as_connection)


def test_without_a_quota_of_connections_none_are_remembered() -> None:
    server = with_endpoint(Quota(requests_per_s=10**6))
    endpoint = server.connect(ENDPOINT_HOST)
    for port in range(100):
        server.admit(endpoint, named("10.0.0.9", 1, port=str(port)))
    assert endpoint.usage is not None
    (guest,) = endpoint.usage.guests.values()
    assert guest.connections == 0


def test_clients_of_an_endpoint_that_are_silent_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    server = with_endpoint(Quota(requests_per_s=10, connections_max=1))
    endpoint = server.connect(ENDPOINT_HOST)
    assert endpoint.usage is not None
    guests = endpoint.usage.guests
    waiting = server.admit(endpoint, named("10.0.0.1", 1, port="1"))
    answer(endpoint, server.admit(endpoint, named("10.0.0.2", 1, port="1")))
    server.clock.now_s += GUEST_S + 1
    server.admit(endpoint, [RemotingCommand(HEARTBEAT)])
    assert [name for _, name in guests] == ["10.0.0.1"], "one of its requests has no answer"
    server.connect("10.0.0.2")
    answer(endpoint, waiting)
    server.clock.now_s += GUEST_S + 1
    server.admit(endpoint, [RemotingCommand(HEARTBEAT)])
    assert guests == {}
    monkeypatch.setattr(fair_shares, "GUESTS_MAX", 5)
    for number in range(100):
        answer(endpoint, server.admit(endpoint, named(f"10.0.2.{number}", 1)))
        assert len(guests) <= 6
    held = [server.admit(endpoint, named(f"10.0.3.{number}", 1)) for number in range(20)]
    assert len(guests) >= len(held), "bounded by the requests in flight of the connection"


def test_what_is_never_refused_leaves_a_debt_that_ends() -> None:
    server = with_endpoint(Quota(requests_per_s=10))
    endpoint = server.connect(ENDPOINT_HOST)
    assert len(server.admit(endpoint, named("10.0.0.9", 10_000, HEARTBEAT))) == 10_000
    server.clock.now_s += fair_shares.PAUSE_MAX_S + 1
    assert len(server.admit(endpoint, named("10.0.0.9", 1))) == 1


def test_a_stranger_cannot_name_another_ones_address() -> None:
    server = with_endpoint(Quota(requests_per_s=10))
    stranger, endpoint = server.connect("10.0.0.7"), server.connect(ENDPOINT_HOST)
    server.admit(stranger, named("10.0.0.9", 100))
    assert stranger.pauses_s != []
    assert len(server.admit(endpoint, named("10.0.0.9", 10))) == 10


def test_an_address_becomes_an_endpoints_and_is_none_any_more() -> None:
    server = with_endpoint(Quota(requests_per_s=10))
    one, endpoint = server.connect("10.0.0.7"), server.connect(ENDPOINT_HOST)
    server.shares.apply(QuotaRules(Quota(requests_per_s=10), endpoints=networks("10.0.0.7")))
    assert len(server.admit(one, named("10.0.0.9", 25))) == 11
    server.admit(endpoint, named("10.0.0.8", 25))
    assert endpoint.pauses_s != []
    for each in (one, endpoint):
        server.shares.leave(each.as_connection)
        assert each.usage is None


def test_a_grpc_clients_user_has_a_quota_too() -> None:
    server = Server(Quota(requests_per_s=100), Quota(requests_per_s=1))
    endpoint = server.connect(ENDPOINT_HOST)
    assert endpoint.pauses_s == []

    def remark(host: str, user: str, port: str = "1") -> str | None:
        server.shares.trust(endpoint.as_connection)
        (request,) = named(host, 1, port=port)
        assert server.admit(endpoint, [request]) == [request], "whose it is says its signature"
        error = server.shares.client_refusal(request, endpoint.as_connection, host, user)
        return None if error is None else error.remark

    assert [remark("10.0.0.9", "alice"), remark("10.0.0.8", "alice")] == [None, None]
    assert remark("10.0.0.7", "alice") == (
        f"{fair_shares.BUSY}: user alice is over its quota of 1 requests a second, wait 1000 ms"
    )
    assert remark("10.0.0.9", "bob") is None
    server.shares.apply(QuotaRules(Quota(requests_per_s=4)))
    assert [remark("10.0.0.9", "alice") for _ in range(4)] == [None] * 4, "each counts once"
    server.shares.apply(QuotaRules(user=Quota(connections_max=2, in_flight_max=4)))
    places = [("10.0.0.9", "1"), ("10.0.0.9", "2"), ("10.0.0.8", "1"), ("10.0.0.9", "1")]
    refusals = [remark(host, "alice", port) for host, port in places]
    assert [each is None for each in refusals] == [True, True, False, True]
    assert "user alice is over its quota of 2 connections" in str(refusals[2])
    assert remark("10.0.0.9", "alice") is None
    assert "user alice is over its quota of 4 requests in flight" in str(remark("10.0.0.9", "alice"))
    assert remark("10.0.0.9", "bob") is None
    server.shares.exempt(endpoint.as_connection)
    assert remark("10.0.0.9", "alice") is not None, "what the endpoint asks for itself changes nothing"
    server.shares.leave(endpoint.as_connection)
    assert remark("10.0.0.7", "alice") is None


def test_bytes_of_the_time_before_a_quota_are_not_charged() -> None:
    server = Server(Quota(requests_per_s=10**6), Quota(bytes_per_s=1_000))
    client = server.connect()
    for _ in range(100):
        server.send(client, 1)  # not signed
    assert by(server, "alice", client) is None
    assert client.pauses_s == []


def test_rules_change_for_open_connections() -> None:
    server = Server()
    client, local = server.connect(), server.connect("127.0.0.1")
    assert server.send(client, 10**6) == 10**6
    rules = QuotaRules(Quota(requests_per_s=10), on_loopback=True)
    server.shares.apply(rules)
    for each in (client, local):
        server.send(each, 20)
        assert each.pauses_s == [1.0]
    server.shares.apply(QuotaRules(Quota(requests_per_s=10), exempt=networks("10.0.0.0/8")))
    assert (client.usage, local.usage) == (None, None)
    server.shares.apply(QuotaRules())
    assert server.connect().usage is None


def test_those_refused_are_counted_by_name_and_logged_at_times(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    tallies = Tallies()
    for number in range(fair_shares.NAMES_MAX + 5):
        tallies.refused("address", f"a{number}", Kind.REQUESTS, "1 requests a second", 2, 5.0)
    assert len(caplog.records) == fair_shares.LOGGED_MAX
    assert "address a0 is over its quota of 1 requests a second" in caplog.text
    assert len(tallies.names) == fair_shares.NAMES_MAX + 1
    assert tallies.names["address", OTHER].refused == 10
    tallies.refused("address", "a0", Kind.REQUESTS, "1 requests a second", 2, 5.0 + LOG_INTERVAL_S)
    assert len(caplog.records) == fair_shares.LOGGED_MAX + 1
    assert tallies.recently_refused(5.0)[:2] == ["address (other)", "address a0"]
    assert tallies.recently_refused(10_000.0) == []


def test_the_summary_names_a_few() -> None:
    server = Server(Quota(connections_max=1))
    assert server.shares.recently_refused() == ""
    for number in range(5):
        server.connect(f"10.0.0.{number}")
        server.shares.opened(FakeConnection(host=f"10.0.0.{number}").as_connection)
    assert (
        server.shares.recently_refused() == "address 10.0.0.4, address 10.0.0.3, address 10.0.0.2 and 2 more"
    )


async def test_a_slowed_connection_is_read_again() -> None:
    connection, transport, _ = connect()
    connection.slow(0.001)
    connection.slow(0.0)
    assert (transport.is_reading_paused, connection.is_slowed) == (True, True)
    connection.slow(0.002)
    while connection.is_slowed:
        await asyncio.sleep(0)
    assert not transport.is_reading_paused
    connection.slow(60.0)
    connection.abort()
    await turn()
    connection.slow(60.0)


async def test_a_slowed_connection_is_not_read_because_of_answers() -> None:
    connection, transport, owner = connect()
    connection.data_received(JSON_FRAME)
    connection.slow(60.0)
    connection.send(success_response(owner.requests[0]))
    assert transport.is_reading_paused


async def test_unread_bytes_are_those_of_the_socket() -> None:
    connection, _, _ = connect(transport=FakeTransport())
    assert connection.unread_bytes() == 0


@asynccontextmanager
async def serving(rules: QuotaRules) -> AsyncIterator[tuple[RemotingServer, FairShares]]:
    router = Router()
    router.register(105, lambda request, _: success_response(request))
    shares = FairShares(rules, router)
    server = RemotingServer(router, "127.0.0.1", 0, shares=shares)
    await server.start()
    try:
        yield server, shares
    finally:
        await server.stop()


async def ask(peer: RawPeer, count: int) -> list[RemotingCommand]:
    """The answers to so many requests at once."""
    peer.send(*(RemotingCommand(105, number) for number in range(count)))
    return [await peer.receive() for _ in range(count)]


async def test_a_real_client_is_slowed_refused_and_served_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_shares, "REFUSE_WAIT_S", 0.02)
    rules = QuotaRules(Quota(requests_per_s=20), on_loopback=True)
    async with serving(rules) as (server, shares), RawPeer(server.port) as peer:
        answers = await ask(peer, 400)
        assert sum(answer.code == 0 for answer in answers) >= 20
        (answer,) = await ask(peer, 1)
        assert (answer.code, answer.opaque) == (ResponseCode.SYSTEM_BUSY, 0)
        assert "address 127.0.0.1 is over its quota of 20 requests a second, wait " in str(answer.remark)
        assert shares.tallies.kinds["address", Kind.REQUESTS].slowed
        shares.apply(QuotaRules())
        assert [answer.code for answer in await ask(peer, 100)] == [0] * 100


async def test_answers_over_a_real_endpoints_connection_end_what_is_in_flight() -> None:
    quota = Quota(in_flight_max=3, bytes_per_s=10**6)
    async with (
        serving(QuotaRules(quota, endpoints=networks("127.0.0.1"))) as (server, _),
        RawPeer(server.port) as peer,
    ):
        for _ in range(3):
            peer.send(
                *(RemotingCommand(105, number, ext_fields={GRPC_HOST: "10.0.0.9"}) for number in range(3))
            )
            assert [(await peer.receive()).code for _ in range(3)] == [0] * 3
        (connection,) = server.connections
        assert connection.usage is not None
        (guest,) = connection.usage.guests.values()
        assert (guest.unanswered, guest.share.name) == (0, "10.0.0.9")
        assert guest.size_bytes > 100
        before = guest.size_bytes
        held = [RemotingCommand(0, 77), RemotingCommand(0, 78)]
        for each in held:
            connection.usage.opened(each.opaque, (guest,))
        frames = b"".join(encode_command(success_response(each, body=bytes(50))) for each in held)
        connection.send_bytes(frames, 2)
        assert (guest.unanswered, guest.size_bytes) == (0, before + len(frames))


async def test_an_address_with_too_many_connections_is_turned_away() -> None:
    rules = QuotaRules(Quota(connections_max=1), on_loopback=True)
    async with serving(rules) as (server, _), RawPeer(server.port) as peer:
        assert (await ask(peer, 1))[0].code == 0
        async with RawPeer(server.port) as another:
            assert await another.is_closed_by_peer()
        assert (await ask(peer, 1))[0].code == 0
        assert server.connection_count == 1


async def test_without_quotas_a_connection_has_no_usage() -> None:
    async with serving(QuotaRules(Quota(requests_per_s=1))) as (server, _), RawPeer(server.port) as peer:
        assert [answer.code for answer in await ask(peer, 10)] == [0] * 10
        assert [each.usage for each in server.connections] == [None]
