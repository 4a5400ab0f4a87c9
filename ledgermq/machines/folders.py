"""What the folders for machines have in common: a member's broker.toml, its certificates, and how both are
written and handed out again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from broker.config import BrokerConfig, ConfigError, load_config
from ledgermq.errors import UserError
from ledgermq.local.node_files import replication_keys
from ledgermq.local.plan import REPLICATION_PORT_STEP, Scalar, to_toml, write_whole
from ledgermq.members import MemberFiles

CERTIFICATES = "certificates"
CONFIG = "broker.toml"


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """A member of a group. `peers`: each member and its IPv4 address; their ports are the same. Paths are
    those on the member's machine. `more`: further broker keys.
    """

    id: str
    broker_name: str
    peers: Mapping[str, str]
    port: int
    namesrv: str
    store: Path
    certificates: Path
    more: Mapping[str, Scalar] = field(default_factory=dict)
    is_joining: bool = False
    """Its group runs already."""

    @property
    def address(self) -> str:
        return self.peers[self.id]

    @property
    def replication_port(self) -> int:
        return self.port + REPLICATION_PORT_STEP

    def values(self) -> Mapping[str, Scalar]:
        """Its broker.toml."""
        peers = ";".join(f"{peer}-{address}:{self.replication_port}" for peer, address in self.peers.items())
        return {
            "brokerName": self.broker_name,
            "brokerIP1": self.address,
            "bindAddress": self.address,
            "listenPort": self.port,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(self.store),
            "dLegerPeers": peers,
            "dLegerSelfId": self.id,
            **({"dLegerJoin": True} if self.is_joining else {}),
            **replication_keys(self.certificates, self.id),
            **self.more,
        }

    def write(self, folder: Path) -> None:
        """Raises: UserError when the broker would refuse it; OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / CONFIG, to_toml(self.values()))
        read_config(folder / CONFIG)


def read_config(path: Path) -> BrokerConfig:
    """Raises: UserError with the broker's own words."""
    try:
        return load_config(path)
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


def hand_out(folder: Path, members: Iterable[str] | None = None) -> None:
    """Copy the files of these members, or of all, to the folders for machines that have earlier ones."""
    wanted = None if members is None else set(members)
    for copies in sorted(folder.glob(f"*/{CERTIFICATES}")):
        for key in sorted(copies.glob("*.key")):
            if wanted is None or key.stem in wanted:
                member_files(folder).copy_member(key.stem, copies)
