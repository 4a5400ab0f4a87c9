"""`python -m admin_api --namesrv 127.0.0.1:9876 --port 8080` serves the admin interface until SIGTERM."""

import gc

if __name__ == "__main__":
    gc.disable()  # imports make tens of thousands of objects and no garbage

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

from admin_api.app import create_app
from admin_api.audit.log import AuditError, AuditLog
from admin_api.http_server import Server, fit_to_open_files, server_config
from admin_api.security.policy import (
    ENVIRONMENT_KEY,
    Policy,
    PolicyError,
    TokensError,
    load_tokens,
    policy_for,
)
from admin_api.settings import Settings, SettingsError, with_environment
from remoting.acl import AclError, signer_from
from remoting.client.tls import ClientTls, client_tls_from
from sockets.listening import bound
from sockets.tls import TlsFilesError
from telemetry.log_lines import FORMATS, LEVELS, Whereabouts, log_to_stderr

NICE_MAX: Final = 19
_AUTOGROUP: Final = Path("/proc/self/autogroup")


def lower_priority(nice: int) -> None:
    """Lowers this process's share of the CPU by `nice` (0: not at all, 19: what others leave).

    Linux desktops weigh whole sessions against one another (sched(7), autogroup) and a process only within
    its own, so that the session is lowered too where it is this process's alone.
    """
    if nice == 0 or not hasattr(os, "nice"):
        return
    os.nice(nice)
    if os.getsid(0) != os.getpid():
        return
    try:
        # Of the session: it does not follow the process's own.
        level = int(_AUTOGROUP.read_text().split()[-1])
        _AUTOGROUP.write_text(str(min(level + nice, NICE_MAX)))
    except (OSError, ValueError, IndexError):
        return  # a kernel that weighs no sessions


def main() -> int:
    """Exit code 0 after a stop, 1 when it cannot or must not serve, 2 when it was called wrongly;
    a sentence on stderr gives the reason.
    """
    parser = _parser()
    args = parser.parse_args()
    if args.tls_key is not None and args.tls_cert is None:
        parser.error("--tls-key is the key of a certificate: give --tls-cert, too")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    log_to_stderr(args.log_format, args.log_level, Whereabouts("admin"))
    lower_priority(args.nice)
    try:
        tokens = load_tokens(args.tokens, os.environ)
        policy = policy_for(args.host, tokens, args.allowed_host)
        signer_from(os.environ)
        tls = _cluster_tls(args) or client_tls_from(os.environ)
        if tls is not None:
            tls.credentials()
        settings = with_environment(Settings(namesrv=args.namesrv, tls=tls), os.environ)
        audit = AuditLog(args.audit)
    except (TokensError, PolicyError, AclError, TlsFilesError, SettingsError, AuditError) as error:
        print(error, file=sys.stderr)
        return 1
    for warning in tokens.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    try:
        return _serve(args, settings, policy, audit)
    finally:
        audit.close()


def _cluster_tls(args: argparse.Namespace) -> ClientTls | None:
    """TLS towards brokers and name servers; None where no option asks for it."""
    files = (args.broker_tls_ca, args.broker_tls_cert, args.broker_tls_key)
    if not args.broker_tls and files == (None, None, None):
        return None
    return ClientTls(*files, checks_host_name=not args.broker_tls_any_host)


def _stop(_number: int, _frame: FrameType | None) -> None:
    """Before it serves, and after it did: uvicorn then raises once more the signal that it stopped for."""
    sys.exit(0)


def _serve(args: argparse.Namespace, wanted: Settings, policy: Policy, audit: AuditLog) -> int:
    settings, backlog = fit_to_open_files(wanted)
    app = create_app(settings, policy=policy, audit_log=audit)
    tls = {"ssl_certfile": args.tls_cert, "ssl_keyfile": args.tls_key}
    config = server_config(app, settings, backlog, host=args.host, port=args.port, **tls)
    try:
        config.load()
    except OSError as error:
        named = " ".join(str(path) for path in tls.values() if path is not None)
        print(f"{named} cannot be used for HTTPS: {error.strerror or error}", file=sys.stderr)
        return 1
    try:
        listener = bound(args.host, args.port)
    except OSError as error:
        print(f"cannot listen on {args.host}:{args.port}: {error.strerror or error}", file=sys.stderr)
        return 1
    Server(config, app).run(sockets=[listener])
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m admin_api", description=__doc__)
    add = parser.add_argument
    add("--namesrv", required=True, metavar="HOST:PORT", help="the name server; several: HOST:PORT;HOST:PORT")
    add("--host", default="127.0.0.1", help="the address to listen on (default %(default)s)")
    add("--port", type=int, default=8080, help="the port to listen on (default %(default)s)")
    add("--tokens", type=Path, metavar="FILE", help=f"TOML file of tokens (or environment {ENVIRONMENT_KEY})")
    add("--audit", type=Path, metavar="FILE", help="where every change is written (default: memory only)")
    add("--allowed-host", action="append", default=[], metavar="NAME", help="a further name it is called by")
    add("--tls-cert", type=Path, metavar="FILE", help="certificate chain (PEM): serve HTTPS")
    add("--tls-key", type=Path, metavar="FILE", help="its private key, unless it is in the same file")
    add("--broker-tls", action="store_true", help="speak TLS to brokers and name servers")
    add("--broker-tls-ca", type=Path, metavar="FILE", help="authorities of their certificates (PEM)")
    add("--broker-tls-cert", type=Path, metavar="FILE", help="certificate to show them (PEM)")
    add("--broker-tls-key", type=Path, metavar="FILE", help="its private key, unless it is in the same file")
    add("--broker-tls-any-host", action="store_true", help="do not check for which host a certificate is")
    levels = range(NICE_MAX + 1)
    text = "give way to others on this machine: 0 (default, not at all) to 19"
    add("--nice", type=int, choices=levels, default=0, metavar="N", help=text)
    add("--log-format", choices=FORMATS, default="text", help="text, or a JSON object a line")
    add("--log-level", choices=LEVELS, default="WARNING", help="default %(default)s")
    return parser


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    sys.exit(main())
