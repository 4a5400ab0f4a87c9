"""The files of a group whose members run on several machines (`ledgermq cluster`): one folder for each
member, to be copied to its machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker.config import ConfigError, load_config
from ledgermq.errors import UserError
from ledgermq.local.node_files import replication_keys
from ledgermq.local.plan import REPLICATION_PORT_STEP, Scalar, to_toml, write_whole
from ledgermq.members import MemberFiles

CERTIFICATES = "certificates"


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group of members, each with an IPv4 address. `home`: where a member has its folder on its machine."""

    folder: Path
    broker_name: str
    namesrv: str
    port: int
    home: Path
    addresses: Mapping[str, str]

    def values(self, node: str) -> Mapping[str, Scalar]:
        """The broker.toml of a member."""
        replication_port = self.port + REPLICATION_PORT_STEP
        peers = ";".join(f"{peer}-{address}:{replication_port}" for peer, address in self.addresses.items())
        return {
            "brokerName": self.broker_name,
            "brokerIP1": self.addresses[node],
            "bindAddress": self.addresses[node],
            "listenPort": self.port,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(self.home / "store"),
            "dLegerPeers": peers,
            "dLegerSelfId": node,
            **replication_keys(self.home / CERTIFICATES, node),
        }


def write_group(plan: GroupPlan) -> None:
    """Raises UserError: the folder has such files already, the broker would refuse them, or they cannot be
    written.
    """
    existing = [node for node in plan.addresses if (plan.folder / node / "broker.toml").exists()]
    if existing:
        raise UserError(f"{plan.folder / existing[0]} is there already; choose another folder with --data.")
    with writing(plan.folder):
        files = MemberFiles(plan.folder / CERTIFICATES)
        files.complete(plan.broker_name, {node: (address,) for node, address in plan.addresses.items()})
        for node in plan.addresses:
            files.copy_member(node, plan.folder / node / CERTIFICATES)
            config = plan.folder / node / "broker.toml"
            write_whole(config, to_toml(plan.values(node)))
            try:
                load_config(config)
            except ConfigError as error:
                raise UserError(f"the configuration cannot be used: {error}.") from error


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
