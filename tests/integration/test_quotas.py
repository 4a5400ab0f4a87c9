"""A client over the quota of its address is slowed and refused, waits as the answer says, and goes on; one of
another address does not notice.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator

import pytest

from remoting.acl import GRPC_HOST, GRPC_PORT
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, encode_command
from remoting.properties_text import format_properties_text
from tests.integration.cluster import Cluster
from tests.integration.test_bad_input import send_ext
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire, call

pytestmark = pytest.mark.integration
FLOODER, OTHER, ENDPOINT = "127.0.0.2", "127.0.0.3", "127.0.0.4"
TOPIC = "Fair"
RATE, FLOOD = 40, 260
LIMIT_S = 20.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("quotas") / "cluster", nodes=1)
    try:
        made.start(
            {
                "quotasOnLoopback": "true",
                "addressRequestsPerSecond": str(RATE),
                "grpcEndpointAddresses": ENDPOINT,
            },
            admin=True,
        )
        yield made
    finally:
        made.stop()


def send(wire: Wire) -> RemotingCommand:
    return wire.invoke(RequestCode.SEND_MESSAGE, send_ext(TOPIC), b"fair")


def flood(wire: Wire, **fields: str) -> list[RemotingCommand]:
    """The answers to many sends at once."""
    ext = send_ext(TOPIC) | fields
    sends = [
        RemotingCommand(RequestCode.SEND_MESSAGE, 1_000 + number, ext_fields=ext, body=b"flood")
        for number in range(FLOOD)
    ]
    wire.send_bytes(b"".join(map(encode_command, sends)))
    return [wire.read_command() for _ in range(FLOOD)]


def refusal(wire: Wire) -> RemotingCommand:
    """The first one, after as many floods as it takes."""

    def last_refused() -> RemotingCommand | None:
        answers = flood(wire)
        assert {answer.code for answer in answers} <= {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
        return answers[-1] if answers[-1].code else None

    return wait_for("a refusal", last_refused, LIMIT_S)


def asked_to_wait_s(answer: RemotingCommand) -> float:
    words = rf"address {FLOODER} is over its quota of {RATE} requests a second, wait (\d+) ms$"
    found = re.search(words, str(answer.remark))
    assert found, answer
    return int(found.group(1)) / 1000


def test_a_flood_is_slowed_and_refused_and_the_others_are_not(cluster: Cluster) -> None:
    broker = cluster.address(cluster.wait_leader())
    with Wire(broker, LIMIT_S, FLOODER) as flooder, Wire(broker, LIMIT_S, OTHER) as other:
        assert send(other).code == ResponseCode.SUCCESS
        refused = refusal(flooder)
        heartbeat = flooder.invoke(RequestCode.HEART_BEAT, {}, b'{"clientID":"c"}')
        assert heartbeat.code == ResponseCode.SUCCESS
        assert [send(other).code for _ in range(RATE // 2)] == [ResponseCode.SUCCESS] * (RATE // 2)
        time.sleep(asked_to_wait_s(refused))
        assert send(flooder).code == ResponseCode.SUCCESS


def test_clients_behind_a_grpc_endpoint_count_by_their_own_addresses(cluster: Cluster) -> None:
    broker = cluster.address(cluster.wait_leader())

    def codes(wire: Wire, host: str) -> list[int]:
        return [answer.code for answer in flood(wire, **{GRPC_HOST: host})]

    def first(wire: Wire, host: str) -> int:
        ext = send_ext(TOPIC) | {GRPC_HOST: host}
        return wire.invoke(RequestCode.SEND_MESSAGE, ext, b"fair").code

    with Wire(broker, LIMIT_S, ENDPOINT) as endpoint, Wire(broker, LIMIT_S, OTHER) as stranger:
        wait_for("a refusal", lambda: ResponseCode.SYSTEM_BUSY in codes(endpoint, "10.0.0.9"), LIMIT_S)
        assert first(endpoint, "10.0.0.8") == ResponseCode.SUCCESS
        assert ResponseCode.SYSTEM_BUSY in codes(endpoint, "10.0.0.9")
        assert first(stranger, "10.0.0.9") == ResponseCode.SUCCESS, "it counts by its own address"


def test_connections_to_a_grpc_endpoint_count_for_its_client(cluster: Cluster) -> None:
    broker = cluster.address(cluster.wait_leader())

    def ask(wire: Wire, port: str) -> RemotingCommand:
        ext = {"topic": TOPIC, "queueId": "0", GRPC_HOST: "10.0.0.7", GRPC_PORT: port}
        return wire.invoke(RequestCode.GET_MAX_OFFSET, ext)

    def allow(connections: str) -> None:
        settings = format_properties_text({"addressConnectionsMax": connections})
        call(broker, RequestCode.UPDATE_BROKER_CONFIG, body=settings)

    with Wire(broker, LIMIT_S, ENDPOINT) as one, Wire(broker, LIMIT_S, ENDPOINT) as other:
        send(one)  # so that the topic is there
        allow("2")
        codes = [ask(wire, port).code for wire, port in ((one, "1"), (other, "2"), (other, "2"))]
        assert codes == [ResponseCode.SUCCESS] * 3
        refused = ask(one, "3")
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "address 10.0.0.7 is over its quota of 2 connections" in str(refused.remark)
        assert ask(one, "1").code == ResponseCode.SUCCESS
        allow("4000")
        assert ask(one, "3").code == ResponseCode.SUCCESS


def test_operators_see_who_was_refused_and_change_the_quota(cluster: Cluster) -> None:
    leader = cluster.wait_leader()
    with Wire(cluster.address(leader), LIMIT_S, FLOODER) as flooder:
        refusal(flooder)
        with urllib.request.urlopen(cluster.nodes[leader].metrics, timeout=LIMIT_S) as page:
            text = page.read().decode()
        assert f'ledgermq_quota_name_refused_total{{name="{FLOODER}",of="address"}}' in text
        assert OTHER not in text
        assert f"address {FLOODER} is over its quota of {RATE} requests a second" in cluster.log_text()
        with urllib.request.urlopen(f"{cluster.admin}/api/v1/doctor", timeout=LIMIT_S) as page:
            assert b"client-refused" in page.read()
        settings = format_properties_text({"addressRequestsPerSecond": "0"})
        call(cluster.address(leader), RequestCode.UPDATE_BROKER_CONFIG, body=settings)
        assert {answer.code for answer in flood(flooder)} == {ResponseCode.SUCCESS}
