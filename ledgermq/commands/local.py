"""`up`, `admin` and `grpc`, which start processes, and `completion` and `version`, which need no cluster."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ledgermq.options import DEFAULT_DATA_DIR, DEFAULT_NAMESRV, DataDir, Namesrv

app = typer.Typer(add_completion=False)


class Durability(StrEnum):
    """When a message is acknowledged."""

    PERSISTED = "persisted"
    REPLICATED = "replicated"


class Tls(StrEnum):
    """Who may connect to brokers and name server."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def _port(text: str, default: int, *, least: int = 1) -> Any:
    return typer.Option(min=least, max=65535, metavar="PORT", show_default=str(default), help=text)


def _file(text: str) -> Any:
    return typer.Option(metavar="FILE", dir_okay=False, help=text)


@app.command()
def version() -> None:
    """Show the version, and whether the C modules are in use."""
    from native import compiled_modules
    from telemetry.release import own_release

    found = ", ".join(compiled_modules())
    print(f"ledgermq {own_release()}, {f'compiled ({found})' if found else 'pure Python'}")


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="For which shell.")]) -> None:
    """Print what makes a shell complete this command: `eval "$(ledgermq completion bash)"`.

    `ledgermq --install-completion` writes it where the shell at hand finds it.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # not in its __all__

    print(get_completion_script(prog_name="ledgermq", complete_var="_LEDGERMQ_COMPLETE", shell=shell.value))


ClientsTls = Annotated[
    Tls | None,
    typer.Option(
        help="TLS for clients with certificates made in DIR/certificates; permissive: plain text too.",
        show_default="disabled",
    ),
]
NodesTls = Annotated[
    bool | None,
    typer.Option(
        "--replication-tls/--no-replication-tls",
        help="Nodes authenticate each other by certificates; else any process here may be a node.",
        show_default="on",
    ),
]


@app.command()
def up(
    data: DataDir = DEFAULT_DATA_DIR,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, max=9, help="Number of brokers of a group; fixed once made.", show_default="3"),
    ] = None,
    groups: Annotated[
        int | None,
        typer.Option(min=1, max=9, help="Number of replication groups; may grow.", show_default="1"),
    ] = None,
    namesrvs: Annotated[
        int | None, typer.Option(min=1, max=9, help="Number of name servers.", show_default="1")
    ] = None,
    namesrv_port: Annotated[int | None, _port("Name server; further ones on the next ports.", 9876)] = None,
    broker_port: Annotated[
        int | None, _port("Node i listens on this + 10·i, its replication 3 above.", 10911)
    ] = None,
    admin_port: Annotated[int | None, _port("Web page and HTTP interface; 0: none.", 8080, least=0)] = None,
    grpc_port: Annotated[int | None, _port("RocketMQ 5's gRPC clients; 0: none.", 8081, least=0)] = None,
    durability: Annotated[
        Durability | None,
        typer.Option(
            help="persisted: acknowledged means on the disks of a majority; replicated: in their memory.",
            show_default="persisted",
        ),
    ] = None,
    tls: ClientsTls = None,
    restart: Annotated[bool, typer.Option(help="Restart a process that ended by itself.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, help="TOML file of broker keys."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One broker key; may be repeated.")
    ] = None,
    replication_tls: NodesTls = None,
) -> None:
    """Start a cluster on this machine, in the foreground: name servers, brokers, admin, gRPC endpoint.

    A cluster already in the folder continues with its data. Once a message can be written, one line is
    printed on stdout: READY and the addresses as JSON.
    """
    from ledgermq.local.cluster import up as run

    run(
        data,
        nodes=nodes,
        groups=groups,
        namesrvs=namesrvs,
        namesrv_port=namesrv_port,
        broker_port=broker_port,
        admin_port=admin_port,
        grpc_port=grpc_port,
        durability=durability,
        tls=tls,
        restart=restart,
        config=config,
        overrides=overrides or [],
        has_replication_tls=replication_tls,
    )


@app.command()
def admin(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback need tokens.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8080,
    tokens: Annotated[Path | None, _file("Tokens and their roles (TOML).")] = None,
    audit: Annotated[Path | None, _file("File for the audit log; without it: in memory.")] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A further host name; repeatable.")
    ] = None,
    tls_cert: Annotated[Path | None, _file("Certificate chain (PEM): serve HTTPS.")] = None,
    tls_key: Annotated[Path | None, _file("Its private key, unless in the same file.")] = None,
    nice: Annotated[
        int, typer.Option(min=0, max=19, help="CPU priority (nice) of this process; 19: lowest.")
    ] = 0,
    broker_tls: Annotated[bool, typer.Option(help="Speak TLS to brokers and name servers.")] = False,
    broker_tls_ca: Annotated[Path | None, _file("Authorities of their certificates (PEM).")] = None,
    broker_tls_cert: Annotated[Path | None, _file("Certificate to show them (PEM).")] = None,
    broker_tls_key: Annotated[Path | None, _file("Its private key, unless in the same file.")] = None,
    broker_tls_any_host: Annotated[
        bool, typer.Option("--broker-tls-any-host", help="Do not check for which host a certificate is.")
    ] = False,
) -> None:
    """Serve the web page and HTTP interface of a cluster, in the foreground. Works on RocketMQ clusters, too.

    Tokens can also come from the environment: LEDGERMQ_ADMIN_TOKENS=name:role:token,...
    """
    from ledgermq.local.processes import AdminOptions, run_admin

    run_admin(
        AdminOptions(
            namesrv=namesrv,
            host=host,
            port=port,
            tokens=tokens,
            audit=audit,
            allowed_hosts=allowed_host or [],
            tls_cert=tls_cert,
            tls_key=tls_key,
            nice=nice,
            broker_tls=broker_tls,
            broker_tls_ca=broker_tls_ca,
            broker_tls_cert=broker_tls_cert,
            broker_tls_key=broker_tls_key,
            broker_tls_any_host=broker_tls_any_host,
        )
    )


@app.command()
def grpc(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8081,
    workers: Annotated[
        int,
        typer.Option(min=1, max=64, help="Processes that share the port. Worker N has metrics port + N."),
    ] = 1,
    tls: Annotated[
        Tls, typer.Option(help="permissive: TLS and plain text on the port; enforcing: TLS only.")
    ] = Tls.PERMISSIVE,
    tls_cert: Annotated[Path | None, _file("Certificate chain (PEM); without it one signs itself.")] = None,
    tls_key: Annotated[Path | None, _file("Its private key, unless in the same file.")] = None,
    tls_ca: Annotated[Path | None, _file("Clients need a certificate of these authorities (PEM).")] = None,
    broker_tls_ca: Annotated[
        Path | None, _file("Speak TLS to brokers and name servers; their authorities (PEM).")
    ] = None,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="Port for Prometheus; 0: none.")] = 0,
    metrics_address: Annotated[str, typer.Option(help="Its address.")] = "127.0.0.1",
    max_request_bytes: Annotated[
        int | None, typer.Option(min=65_536, max=268_435_456, help="Largest request.", show_default="16 MiB")
    ] = None,
    max_calls: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, help="Calls under way on one connection.", show_default="10000"),
    ] = None,
    max_connections: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, help="Connections, with --tls permissive.", show_default="10000"),
    ] = None,
    max_address_connections: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, help="Connections of one client address.", show_default="4000"),
    ] = None,
    default_deadline: Annotated[
        int | None,
        typer.Option(min=1, max=3_600, help="Seconds for a call without a deadline.", show_default="10"),
    ] = None,
) -> None:
    """Serve RocketMQ 5's gRPC clients (Java, Go, Python, Node.js …) of a cluster, in the foreground.

    Start one on each machine: clients can name several. The account for brokers with access control and
    further TLS files come from the environment.
    """
    from ledgermq.local.processes import GrpcOptions, run_grpc

    numbers = {
        "--metrics-port": metrics_port,
        "--max-request-bytes": max_request_bytes,
        "--max-calls": max_calls,
        "--max-connections": max_connections,
        "--max-address-connections": max_address_connections,
        "--default-deadline": default_deadline,
    }
    files = (tls_cert, tls_key, tls_ca, broker_tls_ca)
    run_grpc(GrpcOptions(namesrv, host, port, tls.value, *files, numbers, metrics_address, workers))
