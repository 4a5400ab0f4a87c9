"""The transport: a real server on loopback, over a made-up cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest
from grpc import aio

from grpc_endpoint.certificate import self_signed
from grpc_endpoint.endpoint import SERVICE, Endpoint
from grpc_endpoint.health import HEALTH_SERVICE
from grpc_endpoint.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_endpoint.http2.connection import Http2Limits
from grpc_endpoint.messaging_pb2 import (
    Code,
    QueryRouteRequest,
    QueryRouteResponse,
    Resource,
    Settings,
    TelemetryCommand,
)
from grpc_endpoint.metrics import CANCELLED, REFUSED, EndpointMetrics
from grpc_endpoint.server import GrpcServer, Limits
from grpc_endpoint.transport import Listener, ServerConnection
from remoting.client.aio import RemotingClient
from remoting.tls import ServerTls
from sockets.tls import TlsCredentials
from tests.support.polling import until
from tests.unit.grpc_endpoint.cluster import NAMESRV
from tests.unit.grpc_endpoint.test_calls import FakeClient

SERVING = HealthCheckResponse.ServingStatus.SERVING
NOT_SERVING = HealthCheckResponse.ServingStatus.NOT_SERVING
METADATA = (("x-mq-client-id", "client-1"),)
ROUTE = QueryRouteRequest(topic=Resource(name="orders"))


@asynccontextmanager
async def serving(
    limits: Limits | None = None, tls: ServerTls | None = None, *, needs_proof: bool = False
) -> AsyncIterator[tuple[GrpcServer, int]]:
    endpoint = Endpoint(cast("RemotingClient", FakeClient()), NAMESRV, needs_proof=needs_proof)
    server = GrpcServer(endpoint, limits, tls)
    port = await server.listen("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop()


def route(channel: aio.Channel) -> Any:
    write, read = QueryRouteRequest.SerializeToString, QueryRouteResponse.FromString
    return channel.unary_unary(f"/{SERVICE}/QueryRoute", write, read)


async def test_a_call_is_answered_and_one_without_a_client_id_by_its_code() -> None:
    async with serving() as (_, port), aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        response = await route(channel)(ROUTE, metadata=METADATA, timeout=5)
        assert len(response.message_queues) == 4
        response = await route(channel)(ROUTE, timeout=5)
        assert response.status.code == Code.CLIENT_ID_REQUIRED


async def test_calls_are_counted_by_method_and_code() -> None:
    async with serving() as (server, port), aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await route(channel)(ROUTE, metadata=METADATA, timeout=5)
        await route(channel)(ROUTE, timeout=5)
        metrics = EndpointMetrics(server.calls, (), (), lambda: 1, server.refused)
        text = (await metrics.render()).decode()
    for line in (
        'ledgermq_grpc_calls_total{code="OK",method="QueryRoute"} 1.0',
        'ledgermq_grpc_calls_total{code="CLIENT_ID_REQUIRED",method="QueryRoute"} 1.0',
        'ledgermq_grpc_call_seconds_count{method="QueryRoute"} 2.0',
        'ledgermq_grpc_open_calls{method="QueryRoute"} 0.0',
        'ledgermq_grpc_open_calls{method="Telemetry"} 0.0',
        "ledgermq_grpc_connections 1.0",
        'ledgermq_grpc_connections_refused_total{bound="address"} 0.0',
    ):
        assert line in text.splitlines()


async def test_streams_are_counted_while_they_are_open_and_when_their_client_has_gone() -> None:
    async with serving() as (server, port):
        figures = server.calls["Telemetry"]
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            write, read = TelemetryCommand.SerializeToString, TelemetryCommand.FromString
            stream = channel.stream_stream(f"/{SERVICE}/Telemetry", write, read)(metadata=METADATA)
            await until(lambda: figures.open == 1)
            assert not figures.ended
            stream.cancel()
            await until(lambda: figures.open == 0)
            assert figures.ended == {CANCELLED: 1}
            refused = channel.stream_stream(f"/{SERVICE}/Telemetry", write, read)(metadata=METADATA)
            await refused.write(TelemetryCommand(settings=Settings()))
            assert await refused.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert figures.ended == {CANCELLED: 1, REFUSED: 1}


async def test_a_request_beyond_the_limit_is_refused_and_the_connection_goes_on() -> None:
    async with (
        serving(Limits(request_bytes=64 * 1024)) as (_, port),
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        large = QueryRouteRequest(topic=Resource(name="x" * 100_000))
        with pytest.raises(aio.AioRpcError) as refused:
            await route(channel)(large, metadata=METADATA, timeout=5)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await route(channel)(ROUTE, metadata=METADATA, timeout=5)).status.code == Code.OK


async def test_health_follows_the_cluster_and_ends_with_the_server() -> None:
    async with serving() as (server, port), aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        write, read = HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
        check = channel.unary_unary(f"/{HEALTH_SERVICE}/Check", write, read)
        assert (await check(HealthCheckRequest(), timeout=5)).status == SERVING
        assert (await check(HealthCheckRequest(service=SERVICE), timeout=5)).status == SERVING
        with pytest.raises(aio.AioRpcError) as unknown:
            await check(HealthCheckRequest(service="other"), timeout=5)
        assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
        watch = channel.unary_stream(f"/{HEALTH_SERVICE}/Watch", write, read)
        said = aiter(watch(HealthCheckRequest(), timeout=20))
        assert (await anext(said)).status == SERVING
        stopping = asyncio.ensure_future(server.stop())
        assert (await anext(said)).status == NOT_SERVING
        await stopping


async def test_tls_and_plain_text_are_on_one_port() -> None:
    certificate = self_signed()
    tls = ServerTls(
        TlsCredentials(certificate.in_memory(), "server", "none", protocols=("h2",)), refuses_plain=False
    )
    credentials = grpc.ssl_channel_credentials(certificate.chain)
    async with (
        serving(tls=tls) as (server, port),
        aio.insecure_channel(f"127.0.0.1:{port}") as plain,
        aio.secure_channel(f"localhost:{port}", credentials) as secure,
    ):
        assert (await route(plain)(ROUTE, metadata=METADATA, timeout=5)).status.code == Code.OK
        assert (await route(secure)(ROUTE, metadata=METADATA, timeout=5)).status.code == Code.OK
        assert server.connections == 2


class Accepted:
    """A connection as the system hands it over."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.is_aborted = False

    def get_extra_info(self, name: str) -> Any:
        return (self.host, 40_000) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def is_closing(self) -> bool:
        return True  # nothing is written

    def abort(self) -> None:
        self.is_aborted = True


async def test_connections_of_one_address_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener(lambda *_: None, Http2Limits(), None, 100, 2)

    def connect(host: str) -> tuple[ServerConnection, bool]:
        """And whether it was accepted."""
        made, transport = ServerConnection(listener, None), Accepted(host)
        made.connection_made(cast("asyncio.Transport", transport))
        return made, not transport.is_aborted

    hosts = ("10.0.0.7", "10.0.0.7", "10.0.0.7", "10.0.0.8", "fd00::1", "fd00::2", "fd00::3", "fd00:0:0:1::1")
    opened = [connect(host) for host in hosts]
    assert [is_open for _, is_open in opened] == [True, True, False, True, True, True, False, True]
    assert [is_open for _, is_open in (connect("127.0.0.1") for _ in range(5))] == [True] * 5
    assert listener.refused == {"all": 0, "address": 2}
    assert caplog.messages == ["connections are refused: 10.0.0.7 has 2"], "once a minute"
    opened[2][0].connection_lost(None)
    assert connect("10.0.0.7")[1] is False, "a refused one was none"
    opened[0][0].connection_lost(None)
    again, is_open = connect("10.0.0.7")
    assert is_open
    for each in (again, opened[1][0]):
        each.connection_lost(None)
    assert len(listener) == 5 + 4
    full = Listener(lambda *_: None, Http2Limits(), None, 1)
    assert [full.opened(each) for each, _ in opened[:2]] == [True, False]
    assert full.refused == {"all": 1, "address": 0}
