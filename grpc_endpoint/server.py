"""The server: the endpoint's methods, health and reflection on one port, until it is stopped."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from grpc_endpoint.call import DEFAULT_S, Call, call_of
from grpc_endpoint.endpoint import SERVICE, Endpoint, Method
from grpc_endpoint.health import HEALTH_SERVICE, Health, UnknownServiceError
from grpc_endpoint.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_endpoint.http2.connection import Http2Limits
from grpc_endpoint.messaging_pb2 import Code
from grpc_endpoint.metrics import CallFigures
from grpc_endpoint.reflection import REFLECTION_SERVICES, Reflection
from grpc_endpoint.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from grpc_endpoint.rpc import Calls, GrpcStatus, RpcError, Served
from grpc_endpoint.transport import ADDRESS_CONNECTIONS_MAX, CONNECTIONS_MAX, Listener
from remoting.tls import ServerTls

REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
METADATA_BYTES_MAX: Final = 16 * 1024
STREAMS_MAX: Final = 10_000
"""Calls under way on one connection."""
DRAIN_S: Final = 5.0
"""Calls may end within this time when the endpoint stops; then they are cancelled."""
_DRAIN_STEP_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may ask for. `deadline_s`: for a call without a deadline."""

    request_bytes: int = REQUEST_BYTES_MAX
    streams: int = STREAMS_MAX
    deadline_s: float = DEFAULT_S
    connections: int = CONNECTIONS_MAX
    address_connections: int = ADDRESS_CONNECTIONS_MAX


class GrpcServer:
    """Serves one endpoint. With `tls` clients may speak TLS, or must. Made and used on one running loop."""

    def __init__(
        self, endpoint: Endpoint, limits: Limits | None = None, tls: ServerTls | None = None
    ) -> None:
        limits = limits or Limits()
        self._default_s = limits.deadline_s
        self._needs_proof = endpoint.needs_proof
        self._health = Health(endpoint.brokers, frozenset({SERVICE}))
        methods = endpoint.methods()
        self.calls = {name: CallFigures() for name in methods}
        """Of each method."""
        served = {f"/{SERVICE}/{name}": _served(each, self.calls[name]) for name, each in methods.items()}
        served |= {f"/{HEALTH_SERVICE}/{each.name}": each for each in self._health_methods()}
        reflection = _reflection_method(Reflection())
        served |= {f"/{name}/{reflection.name}": reflection for name in REFLECTION_SERVICES}
        self._calls = Calls(served, self._call_of, limits.request_bytes)
        http2_limits = Http2Limits(limits.streams, METADATA_BYTES_MAX)
        self._listener = Listener(
            self._calls.on_request, http2_limits, tls, limits.connections, limits.address_connections
        )

    @property
    def connections(self) -> int:
        return len(self._listener)

    @property
    def refused(self) -> Mapping[str, int]:
        """Connections since the start, by the bound that they exceeded: of all, or of one address."""
        return self._listener.refused

    async def listen(self, host: str, port: int, *, shares_port: bool = False) -> int:
        """Begin; return the port. `shares_port`: as `Listener.listen`. Raises OSError."""
        return await self._listener.listen(host, port, shares_port=shares_port)

    async def stop(self) -> None:
        """No new calls; those under way get some time."""
        self._health.stop()
        self._listener.drain()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + DRAIN_S
        while self._calls.under_way and loop.time() < end_s:
            await asyncio.sleep(_DRAIN_STEP_S)
        self._calls.end_all()
        await self._listener.close()
        self._calls.deadlines.close()

    def _call_of(self, metadata: Mapping[str, str], host: str, left_s: float | None) -> Call:
        """Raises StatusError."""
        return call_of(metadata, host, left_s, needs_proof=self._needs_proof, default_s=self._default_s)

    def _health_methods(self) -> Iterator[Served]:
        health, figures = self._health, CallFigures()

        async def check(_: Call, request: HealthCheckRequest) -> HealthCheckResponse:
            try:
                return await health.check(request)
            except UnknownServiceError as error:
                raise RpcError(GrpcStatus.NOT_FOUND, f"no service is called {error}") from error

        def watch(_: Call, request: HealthCheckRequest) -> AsyncIterator[HealthCheckResponse]:
            return health.watch(request)

        read = HealthCheckRequest.FromString
        yield Served("Check", read, check, None, False, None, _no_code, figures, is_anonymous=True)
        yield Served("Watch", read, None, watch, False, None, _no_code, figures, is_anonymous=True)


def _served(method: Method, figures: CallFigures) -> Served:
    code_of = _ok_code if method.reads_stream else attrgetter("status.code")
    read = method.request.FromString
    return Served(
        *(
            method.name,
            read,
            method.unary,
            method.stream,
            method.reads_stream,
            method.refusal,
            code_of,
            figures,
        ),
        at_once=method.at_once,
    )


def _reflection_method(reflection: Reflection) -> Served:
    def info(
        _: Call, requests: AsyncIterator[ServerReflectionRequest]
    ) -> AsyncIterator[ServerReflectionResponse]:
        return reflection.info(requests)

    name, read, figures = "ServerReflectionInfo", ServerReflectionRequest.FromString, CallFigures()
    return Served(name, read, None, info, True, None, _no_code, figures, is_anonymous=True)


def _no_code(_: object) -> int:
    return 0


def _ok_code(_: object) -> int:
    """A stream of commands has served its client, whatever the status of a single command was."""
    return Code.OK
