"""`ledgermq cluster`: prepares a group for several machines, and renews the certificates by which its members
authenticate each other.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from ledgermq.app import Subcommands
from ledgermq.errors import UserError
from ledgermq.options import DEFAULT_DATA_DIR, DEFAULT_NAMESRV, DataDir, Namesrv
from ledgermq.output import remark

app = typer.Typer(
    name="cluster",
    cls=Subcommands,
    help="Prepare a group for several machines, and renew the certificates of its members.",
    no_args_is_help=True,
    add_completion=False,
)
_IN_FORCE = "It is in force ten minutes after the files were copied (replicationTlsAgeMaxMs)."


@app.command()
def init(
    node: Annotated[
        list[str], typer.Option("--node", metavar="ID=IP", help="A member, such as n0=10.0.0.1; repeatable.")
    ],
    data: DataDir = DEFAULT_DATA_DIR,
    name: Annotated[str, typer.Option(help="Name of the broker, and so of the group.")] = "broker-a",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    port: Annotated[int, typer.Option(min=1, max=65532, help="For clients; replication 3 above.")] = 10911,
    home: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where each machine will have its folder.", show_default="here"),
    ] = Path(),
    namesrv_tls: Annotated[
        bool,
        typer.Option(
            "--namesrv-tls", help="Certificates for the name servers too, which know the brokers by theirs."
        ),
    ] = False,
) -> None:
    """Make an authority, and for each node a folder to copy: broker.toml and certificates.

    Only the folder of a node belongs on its machine. The key of the authority (certificates/ca.key) belongs
    on none of them.
    """
    from ledgermq.local.group_files import GroupPlan, write_group
    from ledgermq.local.plan import NAME_SERVER

    plan = GroupPlan(data.absolute(), name, namesrv, port, home, _addresses(node), namesrv_tls)
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
    node: Annotated[str, typer.Argument(metavar="ID=IP", help="The new member, such as n3=10.0.0.4.")],
    data: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Make the folder of one more member of a group from `cluster init`, to copy to its machine.

    Its node then starts empty and waits; `ledgermq member add` or `replace` makes it a member.
    """
    from ledgermq.local.group_files import grown_plan, write_joining

    ((member, address),) = _addresses([node]).items()
    plan = grown_plan(data.absolute(), member, address)
    write_joining(plan)
    remark(f"{plan.folder / member}: copy it to {address} as {plan.home}.")
    remark(f"Start it there, in {plan.home}: python -m broker --config {plan.home / 'broker.toml'}")
    if plan.knows_brokers:
        remark("The name servers know the brokers: start them again, one after the other, with")
        remark(shlex.join(plan.namesrv_options()))
    remark(f"Then: ledgermq member add {member} {address}:{plan.replication_port}")


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
    from ledgermq.local.group_files import hand_out, member_files, writing

    with writing(data):
        renewed = member_files(data).renew(*(nodes or ()))
        hand_out(data, renewed)
    remark(f"New certificates: {', '.join(renewed)}. {_IN_FORCE}")


@app.command(name="add-authority")
def add_authority(data: DataDir = DEFAULT_DATA_DIR) -> None:
    """Make a new authority beside the old one: the first step of a replacement; `renew` is the next."""
    from ledgermq.local.group_files import hand_out, member_files, writing

    with writing(data):
        member_files(data).add_authority()
        hand_out(data)
    remark(f"Every ca.pem has the new authority and those before it. {_IN_FORCE}")
    remark("Then: ledgermq cluster renew")


@app.command(name="remove-old-authorities")
def remove_old_authorities(data: DataDir = DEFAULT_DATA_DIR) -> None:
    """Trust only the newest authority: the last step, once all members use certificates of it."""
    from ledgermq.local.group_files import hand_out, member_files, writing

    with writing(data):
        member_files(data).remove_old_authorities()
        hand_out(data)
    remark(f"Every ca.pem has the newest authority only. {_IN_FORCE}")
