"""One group whose members run on several machines (`ledgermq cluster init --node`): a folder for each member,
to be copied to its machine; also of a member that joins later. What runs the name servers is not said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ledgermq.errors import UserError
from ledgermq.local.node_files import KnownBroker, namesrv_tls_options
from ledgermq.local.plan import NAME_SERVER, REPLICATION_PORT_STEP
from ledgermq.machines.folders import CERTIFICATES, CONFIG, MemberPlan, read_config, writing
from ledgermq.members import MemberFiles
from remoting.client.routes import name_server_addresses


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group of members, each with an IPv4 address. `home`: where a member has its folder on its machine.

    knows_brokers: the name servers have certificates too, and know the brokers by theirs.
    """

    folder: Path
    broker_name: str
    namesrv: str
    port: int
    home: Path
    addresses: Mapping[str, str]
    knows_brokers: bool = False
    joining: frozenset[str] = frozenset()
    """Members that join a group that runs already."""

    @property
    def replication_port(self) -> int:
        return self.port + REPLICATION_PORT_STEP

    @property
    def namesrv_hosts(self) -> tuple[str, ...]:
        return tuple(each.rpartition(":")[0].strip("[]") for each in name_server_addresses(self.namesrv))

    def namesrv_options(self) -> tuple[str, ...]:
        """Of `python -m namesrv`, in a folder with the files of the name servers."""
        broker = KnownBroker(self.broker_name, self.broker_name, self.addresses)
        return namesrv_tls_options(Path(CERTIFICATES), NAME_SERVER, [broker], "permissive")

    def member(self, node: str) -> MemberPlan:
        return MemberPlan(
            node,
            self.broker_name,
            self.addresses,
            self.port,
            self.namesrv,
            self.home / "store",
            self.home / CERTIFICATES,
            {"namesrvTlsEnable": self.knows_brokers},
            node in self.joining,
        )


def write_group(plan: GroupPlan) -> None:
    """Raises UserError: the folder has such files already, the broker would refuse them, or they cannot be
    written.
    """
    existing = [node for node in plan.addresses if (plan.folder / node / CONFIG).exists()]
    if existing:
        raise UserError(f"{plan.folder / existing[0]} is there already; choose another folder with --data.")
    _write(plan, plan.addresses)


def write_joining(plan: GroupPlan) -> None:
    """Only the folders of the members that join. Raises UserError, as `write_group`."""
    _write(plan, plan.joining)


def _write(plan: GroupPlan, nodes: Iterable[str]) -> None:
    with writing(plan.folder):
        files = MemberFiles(plan.folder / CERTIFICATES)
        hosts: dict[str, tuple[str, ...]] = {node: (plan.addresses[node],) for node in nodes}
        if plan.knows_brokers:
            hosts[NAME_SERVER] = plan.namesrv_hosts
        files.complete(plan.broker_name, hosts)
        if plan.knows_brokers:
            files.copy_member(NAME_SERVER, plan.folder / NAME_SERVER / CERTIFICATES)
        for node in nodes:
            files.copy_member(node, plan.folder / node / CERTIFICATES)
            plan.member(node).write(plan.folder / node)


def grown_plan(folder: Path, node: str, address: str) -> GroupPlan:
    """The group of a folder that `cluster init` made, with one more member. Its settings are those of the
    members that are there. Raises UserError.
    """
    found = {path.parent.name: path for path in sorted(folder.glob(f"*/{CONFIG}"))}
    if not found:
        raise UserError(f"there is no group in {folder}: `ledgermq cluster init` makes one.")
    if node in found:
        raise UserError(f"{found[node]} is there already.")
    configs = {member: read_config(path) for member, path in found.items()}
    first = next(iter(configs.values()))
    return GroupPlan(
        folder,
        first.broker_name,
        first.namesrv_addr,
        first.listen_port,
        first.store_path_root_dir.parent,
        {**{member: config.broker_ip for member, config in configs.items()}, node: address},
        first.namesrv_tls_enable,
        frozenset({node}),
    )
