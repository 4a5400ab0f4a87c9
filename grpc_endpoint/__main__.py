"""`python -m grpc_endpoint --namesrv 127.0.0.1:9876 --port 8081`: the endpoint of RocketMQ 5's gRPC clients,
until SIGTERM or SIGINT.
"""

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from grpc_endpoint.call import DEFAULT_S
from grpc_endpoint.certificate import self_signed
from grpc_endpoint.endpoint import Endpoint
from grpc_endpoint.metrics import EndpointMetrics
from grpc_endpoint.server import REQUEST_BYTES_MAX, STREAMS_MAX, GrpcServer, Limits
from grpc_endpoint.transport import ADDRESS_CONNECTIONS_MAX, CONNECTIONS_MAX
from remoting.acl import AclError, signer_from
from remoting.client.aio import client_from
from remoting.client.routes import name_server_addresses
from remoting.client.tls import ClientTls
from remoting.loop import run
from remoting.tls import ServerTls, TlsMode
from sockets.tls import PeerCheck, TlsCredentials, TlsFiles, TlsFilesError
from telemetry.http_server import MetricsServer
from telemetry.log_lines import FORMATS, LEVELS, Whereabouts, log_to_stderr

logger = logging.getLogger("grpc_endpoint")


@dataclass(frozen=True, slots=True)
class Options:
    namesrv: str
    host: str
    port: int
    shares_port: bool
    tls_mode: TlsMode
    files: TlsFiles | None
    broker_tls: ClientTls | None
    metrics_address: str
    metrics_port: int
    limits: Limits


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 after a signal, 1 when it could not start."""
    os.umask(0o077)
    parsed = _parse(arguments)
    log_to_stderr(parsed.log_format, parsed.log_level, Whereabouts("grpc"))
    files = None
    if parsed.tls_cert is not None:
        files = TlsFiles(parsed.tls_cert, parsed.tls_key, parsed.tls_ca)
    broker_tls = None if parsed.broker_tls_ca is None else ClientTls(parsed.broker_tls_ca)
    options = Options(
        namesrv=parsed.namesrv,
        host=parsed.host,
        port=parsed.port,
        shares_port=parsed.shared_port,
        tls_mode=parsed.tls_mode,
        files=files,
        broker_tls=broker_tls,
        metrics_address=parsed.metrics_address,
        metrics_port=parsed.metrics_port,
        limits=Limits(
            parsed.max_request_bytes,
            parsed.max_calls,
            parsed.default_deadline,
            parsed.max_connections,
            parsed.max_address_connections,
        ),
    )
    return run(_serve(options))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m grpc_endpoint", description="LedgerMQ's endpoint for RocketMQ 5's gRPC clients"
    )
    add = parser.add_argument
    add("--namesrv", default="127.0.0.1:9876", help="name servers, separated by ; (default %(default)s)")
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add("--port", type=int, default=8081, help="port to listen on (default %(default)s)")
    add("--shared-port", action="store_true", help="other endpoints of this machine listen there, too")
    add("--metrics-port", type=int, default=0, help="port for Prometheus; 0: none (default)")
    add("--metrics-address", default="127.0.0.1", help="its address (default %(default)s)")
    add(
        "--tls-mode",
        choices=get_args(TlsMode),
        default="permissive",
        help="permissive: TLS and plain text; enforcing: TLS only; disabled: plain text (%(default)s)",
    )
    add("--tls-cert", type=Path, metavar="FILE", help="certificate chain (PEM); without it one signs itself")
    add("--tls-key", type=Path, metavar="FILE", help="its private key, unless it is in the same file")
    add("--tls-ca", type=Path, metavar="FILE", help="clients need a certificate of these authorities (PEM)")
    add("--broker-tls-ca", type=Path, metavar="FILE", help="speak TLS to brokers; their authorities (PEM)")
    _add_limits(parser)
    add("--log-format", choices=FORMATS, default="text", help="text, or a JSON object a line")
    add("--log-level", choices=LEVELS, default="INFO", help="default %(default)s")
    options = parser.parse_args(arguments)
    if options.tls_cert is None and (options.tls_key is not None or options.tls_ca is not None):
        parser.error("--tls-key and --tls-ca need --tls-cert")
    if options.tls_ca is not None and options.tls_mode != "enforcing":
        parser.error("--tls-ca needs --tls-mode enforcing: plain text shows no certificate")
    return options


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--max-request-bytes",
        type=_within(64 * 1024, 256 * 1024 * 1024),
        default=REQUEST_BYTES_MAX,
        help="largest request (default %(default)s)",
    )
    add(
        "--max-calls",
        type=_within(1, 1_000_000),
        default=STREAMS_MAX,
        help="calls under way on one connection (default %(default)s)",
    )
    add(
        "--max-connections",
        type=_within(1, 1_000_000),
        default=CONNECTIONS_MAX,
        help="connections (default %(default)s)",
    )
    add(
        "--max-address-connections",
        type=_within(1, 1_000_000),
        default=ADDRESS_CONNECTIONS_MAX,
        help="connections of one client address (default %(default)s)",
    )
    add(
        "--default-deadline",
        type=_within(1, 3_600),
        default=DEFAULT_S,
        metavar="SECONDS",
        help="for a call without a deadline (default %(default)g)",
    )


def _within(least: int, most: int) -> Callable[[str], int]:
    """Reads an option's number. Raises ArgumentTypeError."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text[:12]) <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number from {least} to {most}")
        return int(text)

    return read


async def _serve(options: Options) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        client = client_from(os.environ, options.broker_tls)
        needs_proof = signer_from(os.environ) is not None
    except (AclError, TlsFilesError) as error:
        logger.error("the endpoint cannot start: %s", error)
        return 1
    endpoint = Endpoint(client, options.namesrv, needs_proof=needs_proof)
    server: GrpcServer | None = None
    try:
        server = GrpcServer(endpoint, options.limits, _tls(options))
        await server.listen(options.host, options.port, shares_port=options.shares_port)
        stop_metrics = await _serve_metrics(options, endpoint, server)
    except (OSError, TlsFilesError) as error:
        logger.error("the endpoint cannot start: %s", error)
        if server is not None:
            await server.stop()
        await client.close()
        return 1
    endpoint.start(f"{own_host(options.host, options.namesrv)}:{options.port}")
    logger.info("gRPC on %s:%d, TLS %s", options.host, options.port, options.tls_mode)
    gc.collect()
    gc.freeze()
    await stopped.wait()
    await server.stop()
    await endpoint.stop()
    await stop_metrics()
    await client.close()
    logger.info("stopped")
    return 0


def own_host(host: str, namesrv: str) -> str:
    """The address to list: that of the way to the name server where the endpoint listens on all."""
    if host not in ("0.0.0.0", "::"):
        return f"[{host}]" if ":" in host else host
    there, _, port = name_server_addresses(namesrv)[0].rpartition(":")
    there = there.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in there else socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((there, int(port)))  # sends nothing
        except OSError:
            return socket.gethostname()
        found = str(way.getsockname()[0])
    return f"[{found}]" if ":" in found else found


def _tls(options: Options) -> ServerTls | None:
    """Raises OSError, TlsFilesError."""
    if options.tls_mode == "disabled":
        return None
    files = options.files or self_signed().in_memory()
    peer_check: PeerCheck = "none" if files.authorities is None else "required"
    credentials = TlsCredentials(files, "server", peer_check, protocols=("h2",))
    return ServerTls(credentials, refuses_plain=options.tls_mode == "enforcing")


async def _serve_metrics(
    options: Options, endpoint: Endpoint, server: GrpcServer
) -> Callable[[], Awaitable[None]]:
    """Answer Prometheus if wanted; returns what ends it. Raises OSError."""
    metrics = EndpointMetrics(
        server.calls, endpoint.clients, endpoint.renewals, lambda: server.connections, server.refused
    )
    answering = MetricsServer(metrics.render, options.metrics_address, options.metrics_port)
    if options.metrics_port:
        await answering.start()
        await metrics.delay.start()

    async def stop() -> None:
        await answering.stop()
        await metrics.delay.stop()

    return stop


if __name__ == "__main__":
    sys.exit(main())
