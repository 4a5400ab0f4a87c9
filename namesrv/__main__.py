"""`python -m namesrv --host 127.0.0.1 --port 9876 [--kv-config FILE] [--broker-identity …]`: one name server
until SIGTERM or SIGINT.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from namesrv.accounts import FILE_OPTION
from namesrv.config import KvConfigError, NameServerConfig
from namesrv.rights import BrokerIdentityError, parse_broker_identities
from namesrv.server import NameServer
from remoting.acl import AclError
from remoting.loop import run
from remoting.quotas import Network, QuotaRules, networks
from remoting.tls import ClientAuth, ServerTlsSettings, TlsMode
from sockets.tls import TlsFilesError
from telemetry.log_lines import FORMATS, LEVELS, Whereabouts, log_to_stderr

LIMIT_MAX = 10**9
_log = logging.getLogger("namesrv")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 after a signal, 1 when it could not start."""
    os.umask(0o077)  # no other user of the machine reads what this process writes
    options = _parse(arguments)
    log_to_stderr(options.log_format, options.log_level, Whereabouts("namesrv"))
    tls = ServerTlsSettings(
        options.tls_mode, options.tls_cert, options.tls_key, options.tls_ca, options.tls_client_auth
    )
    config = NameServerConfig(
        host=options.host,
        port=options.port,
        kv_config=options.kv_config,
        broker_identities=options.broker_identity,
        accounts=options.accounts,
        tls=tls,
        quotas=options.quotas,
    )
    return run(_serve(config))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    defaults = NameServerConfig()
    parser = argparse.ArgumentParser(prog="python -m namesrv", description="LedgerMQ's name server")
    parser.add_argument("--host", default=defaults.host, help="address to listen on (default %(default)s)")
    parser.add_argument(
        "--port", type=int, default=defaults.port, help="port to listen on (default %(default)s)"
    )
    parser.add_argument("--kv-config", type=Path, help="file that keeps the key-value table")
    parser.add_argument(
        "--broker-identity",
        action="append",
        default=[],
        metavar="NAME=IDENTITY[,IDENTITY…]",
        help="who may register this broker name, as host:ADDRESS, certificate:PATTERN or account:KEY; repeat"
        " it for each name. With it, no other name can be registered; without it, any host may register any",
    )
    parser.add_argument(
        FILE_OPTION,
        type=Path,
        metavar="FILE",
        help="accounts that sign requests (TOML, chmod 600); those of administrators then need one marked"
        " admin",
    )
    add_tls = parser.add_argument_group("TLS on the same port").add_argument
    add_tls(
        "--tls-mode", choices=get_args(TlsMode), help="default: permissive with --tls-cert, else disabled"
    )
    add_tls("--tls-cert", type=Path, metavar="FILE", help="certificate chain (PEM)")
    add_tls("--tls-key", type=Path, metavar="FILE", help="its private key, unless it is in the same file")
    add_tls("--tls-ca", type=Path, metavar="FILE", help="authorities of the clients' certificates (PEM)")
    add_tls(
        "--tls-client-auth",
        choices=get_args(ClientAuth),
        default="none",
        help="certificates of clients: none, optional (verified if there is one), require",
    )
    _add_quotas(parser, defaults.quotas)
    parser.add_argument("--log-format", choices=FORMATS, default="text", help="text, or a JSON object a line")
    parser.add_argument("--log-level", choices=LEVELS, default="INFO", help="default %(default)s")
    options = parser.parse_args(arguments)
    try:
        options.broker_identity = parse_broker_identities(options.broker_identity)
    except BrokerIdentityError as error:
        parser.error(str(error))
    options.quotas = _quotas(options, defaults.quotas)
    return options


def _add_quotas(parser: argparse.ArgumentParser, defaults: QuotaRules) -> None:
    add = parser.add_argument_group("quotas of each client address; 0: unlimited").add_argument
    add(
        "--address-requests",
        type=_limit,
        default=defaults.address.requests_per_s,
        metavar="N",
        help="requests a second (default %(default)s)",
    )
    add(
        "--address-connections",
        type=_limit,
        default=defaults.address.connections_max,
        metavar="N",
        help="default %(default)s",
    )
    add("--quotas-on-loopback", action="store_true", help="clients of this machine have quotas, too")
    add(
        "--quota-exempt",
        type=_exempt,
        default=(),
        metavar="NETWORKS",
        help="addresses and networks without quotas, separated by ,",
    )


def _limit(text: str) -> int:
    if not text.isdecimal() or int(text) > LIMIT_MAX:
        raise argparse.ArgumentTypeError(f"{text} is no number from 0 to {LIMIT_MAX}")
    return int(text)


def _exempt(text: str) -> tuple[Network, ...]:
    try:
        return networks(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _quotas(options: argparse.Namespace, defaults: QuotaRules) -> QuotaRules:
    address = replace(
        defaults.address,
        requests_per_s=options.address_requests,
        connections_max=options.address_connections,
    )
    return QuotaRules(address, on_loopback=options.quotas_on_loopback, exempt=options.quota_exempt)


async def _serve(config: NameServerConfig) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        server = NameServer(config)
        await server.start()
    except (OSError, KvConfigError, AclError, BrokerIdentityError, TlsFilesError) as error:
        _log.error("name server cannot start: %s", error)
        return 1
    await stopped.wait()
    await server.stop()
    _log.info("name server stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
