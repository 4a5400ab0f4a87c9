"""The transport: grpc's asyncio server. It turns bytes into messages, metadata into a `Call`, and errors into
answers; nothing else in this package knows grpc.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import grpc
from grpc import aio

from grpc_endpoint.call import DEFAULT_S, Call, call_of
from grpc_endpoint.certificate import Certificate, CertificateFiles
from grpc_endpoint.endpoint import SERVICE, Endpoint, Method
from grpc_endpoint.health import HEALTH_SERVICE, Health, UnknownServiceError
from grpc_endpoint.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_endpoint.messaging_pb2 import Code
from grpc_endpoint.metrics import CANCELLED, REFUSED, CallFigures
from grpc_endpoint.status import StatusError, StreamRefusedError
from sockets.tls import TlsFilesError

REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
METADATA_BYTES_MAX: Final = 16 * 1024
STREAMS_MAX: Final = 10_000
"""Calls under way on one connection."""
IDLE_MS: Final = 120_000
"""A connection without calls is closed after this time (grpcClientIdleTimeMills)."""
DRAIN_S: Final = 5.0
"""Calls may end within this time when the endpoint stops; then they are cancelled."""
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # two endpoints on one port would each get some of the connections
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.max_connection_idle_ms", IDLE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)

logger = logging.getLogger(__name__)
_GONE: int | str = CANCELLED
HostOf = Callable[[str], str]
"""The client's address behind one that grpc saw."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may ask for. `deadline_s`: for a call without a deadline."""

    request_bytes: int = REQUEST_BYTES_MAX
    streams: int = STREAMS_MAX
    deadline_s: float = DEFAULT_S

    def options(self) -> tuple[tuple[str, int], ...]:
        return (
            ("grpc.max_receive_message_length", self.request_bytes),
            ("grpc.max_concurrent_streams", self.streams),
        )


class GrpcServer:
    """Serves one endpoint. `host_of` finds the client's address when a forwarder is before the server."""

    def __init__(
        self, endpoint: Endpoint, host_of: HostOf | None = None, limits: Limits | None = None
    ) -> None:
        limits = limits or Limits()
        self._deadline_s = limits.deadline_s
        self._host_of = host_of
        self._needs_proof = endpoint.needs_proof
        self._server = aio.server(options=(*_OPTIONS, *limits.options()))
        methods = endpoint.methods()
        self.calls = {name: CallFigures() for name in methods}
        """Of each method."""
        handlers = {name: self._handler(each) for name, each in methods.items()}
        self._health = Health(endpoint.brokers, frozenset({SERVICE}))
        self._server.add_generic_rpc_handlers((self._health_handlers(),))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    def listen(self, address: str, certificate: Certificate | CertificateFiles | None = None) -> int:
        """Bind `host:port`, with TLS if there is a certificate; return the port. Raises OSError."""
        try:
            if certificate is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, _credentials(certificate))
        except RuntimeError as error:
            raise OSError(f"{address} cannot be used: {error}") from error
        if port == 0:
            raise OSError(f"{address} cannot be used")
        return int(port)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        """No new calls; those under way get some time."""
        self._health.stop()
        await self._server.stop(DRAIN_S)

    def _health_handlers(self) -> grpc.GenericRpcHandler:
        health = self._health

        async def check(
            request: HealthCheckRequest, context: "aio.ServicerContext[Any, Any]"
        ) -> HealthCheckResponse:
            try:
                return await health.check(request)
            except UnknownServiceError as error:
                await context.abort(grpc.StatusCode.NOT_FOUND, f"no service is called {error}")

        async def watch(request: HealthCheckRequest, _: object) -> AsyncIterator[HealthCheckResponse]:
            async for answer in health.watch(request):
                yield answer

        read, write = HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Check": grpc.unary_unary_rpc_method_handler(cast("Any", check), read, write),
            "Watch": grpc.unary_stream_rpc_method_handler(cast("Any", watch), read, write),
        }
        return grpc.method_handlers_generic_handler(HEALTH_SERVICE, handlers)

    def _handler(self, method: Method) -> "grpc.RpcMethodHandler[Any, Any]":
        read, write = method.request.FromString, method.response.SerializeToString
        if method.reads_stream:
            return grpc.stream_stream_rpc_method_handler(self._both_streams(method), read, write)
        if method.stream is not None:
            return grpc.unary_stream_rpc_method_handler(self._stream(method), read, write)
        return grpc.unary_unary_rpc_method_handler(self._unary(method), read, write)

    def _unary(self, method: Method) -> Callable[[Any, Any], Awaitable[Any]]:
        serve, figures = method.unary, self.calls[method.name]
        assert serve is not None, f"{method.name} has no implementation"

        async def handle(request: Any, context: "aio.ServicerContext[Any, Any]") -> Any:
            begun_s, code = figures.begin(), _GONE
            try:
                response = await serve(self._call(context), request)
            except Exception as error:  # noqa: BLE001  # becomes the answer, and a line of the log
                response = cast("Any", method.refusal(error))
                code = response.status.code
                return response
            else:
                code = response.status.code
                return response
            finally:
                figures.end(begun_s, code)

        return handle

    def _stream(self, method: Method) -> Callable[[Any, Any], AsyncIterator[Any]]:
        serve, figures = method.stream, self.calls[method.name]
        assert serve is not None, f"{method.name} has no implementation"

        async def handle(request: Any, context: "aio.ServicerContext[Any, Any]") -> AsyncIterator[Any]:
            begun_s, code, first = figures.begin(), _GONE, None
            try:
                async for answer in serve(self._call(context), request):
                    first = first or answer
                    yield answer
                code = Code.OK if first is None else first.status.code
            except Exception as error:  # noqa: BLE001  # as above
                refusal = cast("Any", method.refusal(error))
                code = refusal.status.code
                yield refusal
            finally:
                figures.end(begun_s, code)

        return handle

    def _both_streams(self, method: Method) -> Callable[[Any, Any], AsyncIterator[Any]]:
        serve, figures = method.stream, self.calls[method.name]
        assert serve is not None, f"{method.name} has no implementation"

        async def handle(requests: Any, context: "aio.ServicerContext[Any, Any]") -> AsyncIterator[Any]:
            begun_s, code = figures.begin(), _GONE
            try:
                async for answer in serve(self._call(context), requests):
                    yield answer
                code = Code.OK
            except StatusError as error:
                code = error.code
                yield method.refusal(error)
            except StreamRefusedError as error:
                code = REFUSED
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            finally:
                figures.end(begun_s, code)

        return handle

    def _call(self, context: "aio.ServicerContext[Any, Any]") -> Call:
        """Raises StatusError."""
        metadata = {
            str(name): value for name, value in context.invocation_metadata() or () if isinstance(value, str)
        }
        peer = host_of_peer(context.peer())
        host = peer if self._host_of is None else self._host_of(peer)
        return call_of(
            metadata,
            host,
            context.time_remaining(),
            needs_proof=self._needs_proof,
            default_s=self._deadline_s,
        )


def host_of_peer(peer: str) -> str:
    """`address:port` of grpc's `ipv4:address:port` or `ipv6:%5Baddress%5D:port`."""
    return peer.partition(":")[2].replace("%5B", "[").replace("%5D", "]")


def _credentials(certificate: Certificate | CertificateFiles) -> grpc.ServerCredentials:
    """Raises TlsFilesError."""
    if isinstance(certificate, Certificate):
        return grpc.ssl_server_credentials([(certificate.key, certificate.chain)])
    files = certificate
    seen = files.changed_at()

    def renewed() -> Any:
        """Asked by grpc, in a thread of its own, before each handshake; None: as before."""
        nonlocal seen
        try:
            now = files.changed_at()
            if now == seen:
                return None
            configuration = _configuration(files.load())
        except TlsFilesError as error:
            logger.error("the certificate in use stays: %s", error)
            return None
        seen = now
        logger.info("the certificate was renewed")
        return configuration

    must_authenticate = files.authorities is not None
    first = _configuration(files.load())
    return grpc.dynamic_ssl_server_credentials(first, renewed, must_authenticate)


def _configuration(certificate: Certificate) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(certificate.key, certificate.chain)], root_certificates=certificate.client_authorities
    )
