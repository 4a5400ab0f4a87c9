"""gRPC clients of a cluster with access control: the endpoint knows no password, brokers check each call."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import urlopen

import orjson
import pytest
from grpc import aio

from grpc_endpoint.endpoint import SERVICE
from grpc_endpoint.messaging_pb2 import (
    ClientType,
    Code,
    QueryRouteRequest,
    QueryRouteResponse,
    Resource,
    Settings,
    TelemetryCommand,
)
from ledgermq.local.plan import METRICS_PORT_STEP
from remoting.acl import Signer
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from tests.integration.client_runs import Report, grpc_python_driver
from tests.integration.cluster import Cluster
from tests.integration.waiting import wait_for
from tests.support.secured import INNER, ROOT, secured_values

pytestmark = pytest.mark.integration
ALLOWED, OTHER = "Allowed", "Other"
ALICE = {"accessKey": "alice", "secretKey": "alice-secret"}


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """One node; the endpoint and the admin service have the nodes' own account."""
    monkeypatch.setenv("LEDGERMQ_ACCESS_KEY", INNER.access_key)
    monkeypatch.setenv("LEDGERMQ_SECRET_KEY", INNER.secret_key)
    running = Cluster(tmp_path / "cluster", nodes=1)
    values = secured_values(tmp_path)
    settings = {
        name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()
    }
    try:
        running.start(settings, admin=True, grpc=True)
        yield running
    finally:
        running.stop()


async def ask(cluster: Cluster, code: RequestCode, body: object = None, **fields: str) -> None:
    """A request of the super user."""
    client = RemotingClient(signer=ROOT)
    data = b"" if body is None else orjson.dumps(body)
    command = RemotingCommand(code, ext_fields=fields, body=data)
    answer = await client.invoke(cluster.nodes["n0"].remoting, command)
    await client.close()
    assert answer.code == 0, answer.remark


async def prepare(cluster: Cluster) -> None:
    """Two topics, and alice, who may send to one of them."""
    for topic in (ALLOWED, OTHER):
        queues = {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
        await ask(
            cluster,
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic=topic,
            defaultTopic="TBW102",
            order="false",
            **queues,
        )
    user = {"password": ALICE["secretKey"], "userType": "Normal"}
    await ask(cluster, RequestCode.AUTH_CREATE_USER, user, username="alice")
    entry = {"resource": f"Topic:{ALLOWED}", "actions": ["Pub"], "decision": "Allow", "sourceIps": []}
    rights = {"subject": "User:alice", "policies": [{"policyType": "Custom", "entries": [entry]}]}
    await ask(cluster, RequestCode.AUTH_CREATE_ACL, rights, subject="User:alice")


def signed_by_alice(secret: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call."""
    signed = "20260131T050000Z"
    signature = hmac.new(secret.encode(), signed.encode(), "sha1").hexdigest()
    return (
        ("x-mq-client-id", "client-1"),
        ("x-mq-date-time", signed),
        (
            "authorization",
            f"MQv2-HMAC-SHA1 Credential=alice, SignedHeaders=x-mq-date-time, Signature={signature}",
        ),
    )


async def route(cluster: Cluster, topic: str, secret: str) -> int:
    """How QueryRoute ends for alice, or somebody who does not know her password."""
    metadata = signed_by_alice(secret)
    async with aio.insecure_channel(cluster.grpc) as channel:
        write, read = QueryRouteRequest.SerializeToString, QueryRouteResponse.FromString
        ask_route = channel.unary_unary(f"/{SERVICE}/QueryRoute", write, read)
        response = await ask_route(
            QueryRouteRequest(topic=Resource(name=topic)), metadata=metadata, timeout=10
        )
    return int(response.status.code)


@asynccontextmanager
async def producing(cluster: Cluster) -> AsyncIterator[None]:
    """With a producer of alice's, whose settings the endpoint has."""
    settings = Settings(client_type=ClientType.PRODUCER)
    settings.publishing.topics.append(Resource(name=ALLOWED))
    async with aio.insecure_channel(cluster.grpc) as channel:
        write, read = TelemetryCommand.SerializeToString, TelemetryCommand.FromString
        method = channel.stream_stream(f"/{SERVICE}/Telemetry", write, read)
        stream = method(metadata=signed_by_alice(ALICE["secretKey"]))
        await stream.write(TelemetryCommand(settings=settings))
        merged = cast("TelemetryCommand", await stream.read())
        assert merged.status.code == Code.OK
        yield
        stream.cancel()


def known_endpoint(cluster: Cluster) -> Any:
    """What the doctor says of it, once it has reached it; None before."""
    with urlopen(f"{cluster.admin}/api/v1/doctor", timeout=10) as answered:
        (endpoint,) = orjson.loads(answered.read())["grpcEndpoints"] or [None]
    return endpoint if endpoint is not None and endpoint["total"] is not None else None


async def test_who_may_list_the_clients_of_an_endpoint(secured: Cluster) -> None:
    await prepare(secured)
    url = f"{secured.admin}/api/v1/grpc-endpoints/{secured.grpc}/clients"
    async with producing(secured):
        endpoint = wait_for("the endpoint", lambda: known_endpoint(secured), 10.0)
        (client,) = endpoint["clients"]
        assert (endpoint["address"], endpoint["total"]) == (secured.grpc, 1)
        assert (client["clientId"], client["topics"]) == ("client-1", [ALLOWED])
        with urlopen(url, timeout=10) as answered:
            assert orjson.loads(answered.read())["items"] == [client]
        alice = RemotingClient(signer=Signer(ALICE["accessKey"], ALICE["secretKey"]))
        for code in (RequestCode.LEDGERMQ_GRPC_CLIENTS, RequestCode.LEDGERMQ_GRPC_ENDPOINT):
            command = RemotingCommand(code, ext_fields={"address": secured.grpc})
            answer = await alice.invoke(secured.nodes["n0"].remoting, command)
            assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b"")
        await alice.close()
    secured.processes()["grpc_endpoint"].kill()
    gone = wait_for("its end", lambda: _refusal(url), 10.0)
    assert gone.code in (404, 503), "the broker has seen its end, or waits for its answer"
    assert f"gRPC endpoint {secured.grpc} " in orjson.loads(gone.read())["detail"]


def _refusal(url: str) -> HTTPError | None:
    try:
        urlopen(url, timeout=10).close()
    except HTTPError as error:
        return error
    return None


async def test_a_client_may_do_what_its_own_account_may(secured: Cluster, tmp_path: Path) -> None:
    await prepare(secured)
    driver = grpc_python_driver(tmp_path)
    runs = 0

    def send(topic: str, **account: str) -> Report:
        nonlocal runs
        runs += 1
        out = tmp_path / f"send-{runs}.jsonl"
        options = {"endpoint": secured.grpc, "topic": topic, "group": "none", "count": "1", "tries": "1"}
        given = options | {"out": str(out)} | account
        return driver.run(["send", *(f"{name}={value}" for name, value in given.items())], out)

    assert [row["event"] for row in send(ALLOWED, **ALICE)] == ["sent", "end"]
    for topic, account in ((OTHER, ALICE), (ALLOWED, ALICE | {"secretKey": "wrong"}), (ALLOWED, {})):
        report = send(topic, **account)
        assert [row["event"] for row in report] == ["failed", "end"], account
    assert await route(secured, ALLOWED, ALICE["secretKey"]) == Code.OK
    assert await route(secured, ALLOWED, "wrong") == Code.UNAUTHORIZED
    url = f"http://127.0.0.1:{secured.grpc_port + METRICS_PORT_STEP}/metrics"
    with urlopen(url, timeout=10) as shown:
        lines = shown.read().decode().splitlines()
    refused = 'ledgermq_grpc_calls_total{code="UNAUTHORIZED",method="QueryRoute"}'
    assert any(line.startswith(refused) for line in lines), "the endpoint counts its calls"

    def listed() -> dict[str, str]:
        """The endpoints that the admin service names, and their states."""
        with urlopen(f"{secured.admin}/api/v1/cluster", timeout=10) as answered:
            endpoints = orjson.loads(answered.read())["grpcEndpoints"]
        return {each["address"]: each["state"] for each in endpoints}

    wait_for("the endpoint", lambda: listed() == {secured.grpc: "up"}, 10.0)
    secured.processes()["grpc_endpoint"].kill()
    wait_for("its end", lambda: listed() == {secured.grpc: "down"}, 10.0)
