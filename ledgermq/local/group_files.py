"""The files of a group whose members run on several machines (`ledgermq cluster`): one folder for each
member, to be copied to its machine; also of a member that joins later.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker.config import ConfigError, load_config
from ledgermq.errors import UserError
from ledgermq.local.node_files import KnownBroker, namesrv_tls_options, replication_keys
from ledgermq.local.plan import NAME_SERVER, REPLICATION_PORT_STEP, Scalar, to_toml, write_whole
from ledgermq.members import MemberFiles
from remoting.client.routes import name_server_addresses

CERTIFICATES = "certificates"


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
        folder = Path(CERTIFICATES)
        broker = KnownBroker(self.broker_name, self.broker_name, self.addresses)
        return namesrv_tls_options(folder, [broker], "permissive")

    def values(self, node: str) -> Mapping[str, Scalar]:
        """The broker.toml of a member."""
        peers = ";".join(
            f"{peer}-{address}:{self.replication_port}" for peer, address in self.addresses.items()
        )
        return {
            "brokerName": self.broker_name,
            "brokerIP1": self.addresses[node],
            "bindAddress": self.addresses[node],
            "listenPort": self.port,
            "namesrvAddr": self.namesrv,
            "namesrvTlsEnable": self.knows_brokers,
            "storePathRootDir": str(self.home / "store"),
            "dLegerPeers": peers,
            "dLegerSelfId": node,
            **({"dLegerJoin": True} if node in self.joining else {}),
            **replication_keys(self.home / CERTIFICATES, node),
        }


def write_group(plan: GroupPlan) -> None:
    """Raises UserError: the folder has such files already, the broker would refuse them, or they cannot be
    written.
    """
    existing = [node for node in plan.addresses if (plan.folder / node / "broker.toml").exists()]
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
            config = plan.folder / node / "broker.toml"
            write_whole(config, to_toml(plan.values(node)))
            try:
                load_config(config)
            except ConfigError as error:
                raise UserError(f"the configuration cannot be used: {error}.") from error


def grown_plan(folder: Path, node: str, address: str) -> GroupPlan:
    """The group of a folder that `cluster init` made, with one more member. Its settings are those of the
    members that are there. Raises UserError.
    """
    found = {path.parent.name: path for path in sorted(folder.glob("*/broker.toml"))}
    if not found:
        raise UserError(f"there is no group in {folder}: `ledgermq cluster init` makes one.")
    if node in found:
        raise UserError(f"{found[node]} is there already.")
    try:
        configs = {member: load_config(path) for member, path in found.items()}
    except ConfigError as error:
        raise UserError(f"the group's configuration cannot be used: {error}.") from error
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


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Only this user may read new files and folders. Raises UserError instead of OSError."""
    earlier = os.umask(0o077)
    try:
        yield
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be written: {error.strerror}.") from error
    finally:
        os.umask(earlier)


def member_files(folder: Path) -> MemberFiles:
    """The certificates in a folder that `cluster init` or `up` made. Raises UserError when it has none."""
    if not (folder / CERTIFICATES / "ca.pem").exists():
        raise UserError(f"there are no certificates in {folder / CERTIFICATES}.")
    return MemberFiles(folder / CERTIFICATES)


def hand_out(folder: Path, nodes: Iterable[str] | None = None) -> None:
    """Copy the files of these members, or of all, to the folders that `cluster init` made for them."""
    found = {path.parent.name: path for path in folder.glob(f"*/{CERTIFICATES}")}
    for node in found if nodes is None else nodes:
        if node in found:
            member_files(folder).copy_member(node, found[node])
