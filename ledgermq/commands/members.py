"""`ledgermq cluster`: prepares a cluster for several machines, and renews the certificates by which its
members authenticate each other.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledgermq.app import Subcommands
from ledgermq.commands.local import Tls
from ledgermq.errors import WRONG_USAGE, UserError
from ledgermq.options import DEFAULT_DATA_DIR, DEFAULT_NAMESRV, DataDir, Namesrv
from ledgermq.output import remark

if TYPE_CHECKING:
    from ledgermq.machines.files import Cluster

app = typer.Typer(
    name="cluster",
    cls=Subcommands,
    help="Prepare a cluster for several machines, and renew the certificates of its members.",
    no_args_is_help=True,
    add_completion=False,
)
_IN_FORCE = "It is in force ten minutes after the files were copied (replicationTlsAgeMaxMs)."
_PROGRAM = Path("/opt/ledgermq/bin/ledgermq")


def _number(text: str, default: str, most: int) -> Any:
    return typer.Option(min=1, max=most, help=f"With --machines: {text}", show_default=default)


def _port(text: str, *, least: int = 0) -> Any:
    return typer.Option(min=least, max=65530, metavar="PORT", help=text)


Machines = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=IP,…", help="All machines: a=10.0.0.1,b=10.0.0.2; repeatable."),
]
Members = Annotated[
    list[str] | None,
    typer.Option(
        "--node", metavar="ID=IP", help="One group only: a member, such as n0=10.0.0.1; repeatable."
    ),
]
Home = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Where each machine will have its folder.",
        show_default="/var/lib/ledgermq; with --node here",
    ),
]
Program = Annotated[
    Path, typer.Option(metavar="FILE", help="With --machines: the command there, for systemd.")
]


@app.command()
def init(
    machines: Machines = None,
    groups: Annotated[int | None, _number("replication groups.", "as many as machines", 9)] = None,
    replicas: Annotated[int | None, _number("members of each group.", "3", 9)] = None,
    namesrvs: Annotated[int | None, _number("name servers, on the first ones.", "2", 9)] = None,
    node: Members = None,
    data: DataDir = DEFAULT_DATA_DIR,
    name: Annotated[str, typer.Option(help="Name of the first broker, and so of its group.")] = "broker-a",
    home: Home = None,
    port: Annotated[
        int, _port("For clients; replication 3 above; the next group 10 above.", least=1)
    ] = 10911,
    namesrv_port: Annotated[int, _port("With --machines: name servers.", least=1)] = 9876,
    admin_port: Annotated[int, _port("Web page and HTTP interface, on machines with a name server.")] = 8080,
    grpc_port: Annotated[int, _port("RocketMQ 5's gRPC clients, on every machine; 0: none.")] = 8081,
    tls: Annotated[Tls, typer.Option(help="With --machines: TLS for clients.")] = Tls.DISABLED,
    program: Program = _PROGRAM,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    namesrv_tls: Annotated[
        bool,
        typer.Option(
            "--namesrv-tls",
            help="With --node: certificates for the name servers too, which know the brokers by theirs.",
        ),
    ] = False,
) -> None:
    """Make an authority, and for each machine a folder to copy: configuration, certificates, systemd unit.

    Only its own folder belongs on a machine. The key of the authority (certificates/ca.key) belongs on none.
    With --node, instead of --machines, each folder is that of one broker of a group.
    """
    if (machines is None) == (node is None):
        raise UserError(
            "name the machines by --machines, or the members of one group by --node.", WRONG_USAGE
        )
    if node is not None:
        if groups or replicas or namesrvs:
            raise UserError("--groups, --replicas and --namesrvs need --machines.", WRONG_USAGE)
        _init_group(_addresses(node), data.absolute(), name, namesrv, port, home or Path(), namesrv_tls)
        return
    from ledgermq.machines.files import write_machines
    from ledgermq.machines.plan import DEFAULT_HOME, MachinesPlan, counts_for, parse_machines

    addresses = parse_machines(machines or [])
    plan = MachinesPlan(
        addresses,
        counts_for(len(addresses), groups, replicas, namesrvs),
        home=(home or DEFAULT_HOME).absolute(),
        first_broker=name,
        namesrv_port=namesrv_port,
        broker_port=port,
        admin_port=admin_port,
        grpc_port=grpc_port,
        client_tls=tls.value,
    )
    write_machines(data.absolute(), plan, program)
    for machine, address in addresses.items():
        _say_where(data.absolute() / machine, address, plan.home)
    remark(f"Name servers for clients: {plan.namesrv_addr}")
    if plan.counts.replicas == 2:
        remark("A group of two members stops when one of them does; take three machines.")


def _say_where(folder: Path, address: str, home: Path) -> None:
    remark(f"{folder}: copy it to {address} as {home}. Start there: ledgermq machine up --home {home}")


def _init_group(
    addresses: Mapping[str, str],
    folder: Path,
    name: str,
    namesrv: str,
    port: int,
    home: Path,
    knows_brokers: bool,
) -> None:
    from ledgermq.local.plan import NAME_SERVER
    from ledgermq.machines.one_group import GroupPlan, write_group

    plan = GroupPlan(folder, name, namesrv, port, home, addresses, knows_brokers)
    write_group(plan)
    for member in plan.addresses:
        remark(f"{plan.folder / member}: copy it to {plan.addresses[member]} as {home}.")
    if plan.knows_brokers:
        remark(
            f"{plan.folder / NAME_SERVER}: copy it to {' and '.join(plan.namesrv_hosts)}. Start there, in it:"
        )
        remark(f"python -m namesrv --host ADDRESS {shlex.join(plan.namesrv_options())}")
    remark(f"Start each there, in {home}: python -m broker --config {home / 'broker.toml'}")


@app.command(name="add-member")
def add_member(
    node: Annotated[
        str,
        typer.Argument(
            metavar="ID=IP", help="n3=10.0.0.4; of a cluster over machines a machine, d=10.0.0.4."
        ),
    ],
    data: DataDir = DEFAULT_DATA_DIR,
    program: Program = _PROGRAM,
) -> None:
    """Make the folder of one more member of a group from `cluster init`, to copy to its machine.

    Where `cluster init --machines` made the folders: that of one more machine, with a new member of each
    group. A node then starts empty and waits; `ledgermq member add` or `replace` makes it a member.
    """
    from ledgermq.machines.files import Cluster

    ((member, address),) = _addresses([node]).items()
    cluster = Cluster.load(data.absolute())
    if cluster is not None:
        _add_machine(cluster, data.absolute(), member, address, program)
        return
    from ledgermq.machines.one_group import grown_plan, write_joining

    plan = grown_plan(data.absolute(), member, address)
    write_joining(plan)
    remark(f"{plan.folder / member}: copy it to {address} as {plan.home}.")
    remark(f"Start it there, in {plan.home}: python -m broker --config {plan.home / 'broker.toml'}")
    if plan.knows_brokers:
        remark("The name servers know the brokers: start them again, one after the other, with")
        remark(shlex.join(plan.namesrv_options()))
    remark(f"Then: ledgermq member add {member} {address}:{plan.replication_port}")


def _add_machine(cluster: "Cluster", folder: Path, name: str, address: str, program: Path) -> None:
    from ledgermq.machines.files import write_machine
    from ledgermq.machines.plan import parse_machines

    parse_machines([f"{name}={address}"])
    machine, members = cluster.added(name, address)
    write_machine(folder, machine, members, program)
    _say_where(folder / name, address, machine.home)
    for each in members:
        where = f"{address}:{each.replication_port}"
        remark(f"Then: ledgermq member add {each.id} {where} --group {each.broker_name}")


@app.command(name="add-group")
def add_group(
    machines: Annotated[
        str | None,
        typer.Option(metavar="NAME,…", help="Where its members run.", show_default="three of them"),
    ] = None,
    data: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Add a replication group to a cluster from `cluster init --machines`, to copy to its machines.

    `ledgermq machine up` starts the new nodes as soon as their files are there; nothing is stopped.
    """
    from ledgermq.machines.files import write_machine

    broker, grown = _machines_in(data).with_group(machines.split(",") if machines else None)
    for machine, members in grown.items():
        write_machine(data.absolute(), machine, members, None)
        for member in members:
            where = f"{data.absolute() / machine.name}/{{{member.id},certificates,machine.toml}}"
            remark(f"{where}: copy them to {machine.address} into {machine.home}, machine.toml last.")
    source = next(iter(grown)).brokers[0]
    remark(f"When `ledgermq status` shows {broker}: ledgermq replication copy-settings {source} {broker}")


@app.command(name="remove-group")
def remove_group(
    broker: Annotated[str, typer.Argument(metavar="GROUP", help="A replication group, such as broker-b.")],
    data: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Take a drained group out of the files of a cluster from `cluster init --machines`.

    `ledgermq machine up` stops its nodes as soon as the new machine.toml is there. Their files stay.
    """
    from ledgermq.local.plan import write_whole
    from ledgermq.machines.folders import writing
    from ledgermq.machines.plan import MACHINE_FILE

    smaller = _machines_in(data).without_group(broker)
    with writing(data):
        for machine in smaller:
            path = data.absolute() / machine.name / MACHINE_FILE
            write_whole(path, machine.to_toml())
            remark(f"{path}: copy it to {machine.address} into {machine.home}.")
    remark(f"Before that: `ledgermq replication left {broker}` says whether something is left in it.")


def _machines_in(data: Path) -> "Cluster":
    """Raises: UserError."""
    from ledgermq.machines.files import Cluster

    cluster = Cluster.load(data.absolute())
    if cluster is None:
        raise UserError(f"there is no machine in {data}: `ledgermq cluster init --machines` makes them.")
    return cluster


def _addresses(given: list[str]) -> Mapping[str, str]:
    """Raises UserError."""
    addresses: dict[str, str] = {}
    for text in given:
        node, equals, address = text.partition("=")
        if not equals or not node or not address:
            raise UserError(f"--node {text} is not of the form n0=10.0.0.1.")
        if node in addresses:
            raise UserError(f"--node {node} is given twice.")
        addresses[node] = address
    return addresses


@app.command()
def renew(
    nodes: Annotated[list[str] | None, typer.Argument(metavar="[NODE]...", show_default="all")] = None,
    data: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Make new certificates and keys for members, with the names that they have."""
    from ledgermq.machines.folders import hand_out, member_files, writing

    with writing(data):
        renewed = member_files(data).renew(*(nodes or ()))
        hand_out(data, renewed)
    remark(f"New certificates: {', '.join(renewed)}. {_IN_FORCE}")


@app.command(name="add-authority")
def add_authority(data: DataDir = DEFAULT_DATA_DIR) -> None:
    """Make a new authority beside the old one: the first step of a replacement; `renew` is the next."""
    from ledgermq.machines.folders import hand_out, member_files, writing

    with writing(data):
        member_files(data).add_authority()
        hand_out(data)
    remark(f"Every ca.pem has the new authority and those before it. {_IN_FORCE}")
    remark("Then: ledgermq cluster renew")


@app.command(name="remove-old-authorities")
def remove_old_authorities(data: DataDir = DEFAULT_DATA_DIR) -> None:
    """Trust only the newest authority: the last step, once all members use certificates of it."""
    from ledgermq.machines.folders import hand_out, member_files, writing

    with writing(data):
        member_files(data).remove_old_authorities()
        hand_out(data)
    remark(f"Every ca.pem has the newest authority only. {_IN_FORCE}")
