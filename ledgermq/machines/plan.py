"""A cluster of several groups over several machines (`ledgermq cluster init --machines`): which members and
name servers each machine has. Nothing here but `load_machine` uses a file.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ledgermq.errors import WRONG_USAGE, UserError
from ledgermq.local.node_files import KnownBroker, client_keys
from ledgermq.local.plan import (
    GROUPS_MAX,
    HOST,
    METRICS_PORT_STEP,
    NAME_SERVER,
    NODES_MAX,
    NUMBERS_PER_GROUP,
    PORTS_PER_NODE,
    REPLICATION_PORT_STEP,
    Scalar,
    broker_name_of,
    checked_ports,
    node_name,
    numbers_of,
    read_toml,
    to_toml,
)
from ledgermq.machines.folders import CERTIFICATES, MemberPlan

MACHINE_FILE: Final = "machine.toml"
MACHINES_MAX: Final = GROUPS_MAX
"""With which a cluster begins: as many groups, so that every machine has a member and leads one."""
DEFAULT_HOME: Final = Path("/var/lib/ledgermq")
REPLICAS: Final = 3
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")
_HEAD: Final = (
    "# What runs on this machine: made by `ledgermq cluster init`, read by `ledgermq machine up`.\n"
)


class Machine(BaseModel):
    """The file machine.toml: what runs on one machine. Port 0: not there."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)
    version: Literal[1] = 1
    name: str
    address: str
    home: Path
    """The folder on the machine."""
    brokers: tuple[str, ...]
    """All groups of the cluster, in their order."""
    nodes: tuple[str, ...]
    """Those of this machine: for each a folder with its broker.toml, which names its group."""
    namesrv_addr: str
    """All name servers of the cluster."""
    namesrv_port: int = Field(ge=0, le=65535)
    admin_address: str = HOST
    """Any but one of loopback needs tokens."""
    admin_port: int = Field(ge=0, le=65535)
    grpc_port: int = Field(ge=0, le=65535)
    client_tls: Literal["disabled", "permissive", "enforcing"] = "disabled"

    def to_toml(self) -> str:
        return _HEAD + to_toml(self.model_dump(mode="json", by_alias=True))

    @property
    def certificates(self) -> Path:
        return self.home / CERTIFICATES

    @property
    def namesrv_member(self) -> str:
        """The name of its name server's certificate."""
        return f"{NAME_SERVER}-{self.name}"

    @property
    def certified(self) -> tuple[str, ...]:
        """Whose certificates belong on the machine."""
        return (*self.nodes, *((self.namesrv_member,) if self.namesrv_port else ()))

    @property
    def grpc_metrics_port(self) -> int:
        return self.grpc_port + METRICS_PORT_STEP

    def known_brokers(self) -> list[KnownBroker]:
        """Also groups and members that may be added later: only this cluster's authority makes their
        certificates.
        """
        names = [broker_name_of(self.brokers[0], group) for group in range(GROUPS_MAX)]
        return [KnownBroker(name, name, map(node_name, numbers_of(at))) for at, name in enumerate(names)]

    def ports(self, nodes: Mapping[str, int]) -> dict[int, str]:
        """Every port of the machine with its purpose. `nodes`: those for clients. Raises: UserError."""
        grpc = [(self.grpc_port, "gRPC clients"), (self.grpc_metrics_port, "metrics of the gRPC endpoint")]
        wanted = [
            *([(self.namesrv_port, "the name server")] if self.namesrv_port else []),
            *([(self.admin_port, "the admin")] if self.admin_port else []),
            *(grpc if self.grpc_port else []),
        ]
        for node, port in nodes.items():
            wanted.append((port, f"clients of {node}"))
            wanted.append((port + REPLICATION_PORT_STEP, f"replication of {node}"))
            wanted.append((port + METRICS_PORT_STEP, f"metrics of {node}"))
        return checked_ports(wanted)


def load_machine(folder: Path) -> Machine:
    """Raises: UserError."""
    path = folder / MACHINE_FILE
    if not path.exists():
        raise UserError(
            f"there is no {path}: copy the folder of this machine there, which `ledgermq cluster init "
            "--machines` made, or name its place with --home."
        )
    try:
        return Machine.model_validate(read_toml(path), by_alias=True, by_name=False)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from error


def parse_machines(given: Iterable[str]) -> dict[str, str]:
    """Machine -> IPv4 address, of `a=10.0.0.1,b=10.0.0.2`; an address alone is its own name.

    Raises: UserError.
    """
    addresses: dict[str, str] = {}
    for text in (each.strip() for one in given for each in one.split(",")):
        name, equals, address = text.partition("=")
        address = address if equals else name
        if not _NAME.fullmatch(name) or name == CERTIFICATES:
            raise UserError(f"--machines {text}: {name!r} cannot be the name of a machine.", WRONG_USAGE)
        try:
            ipaddress.IPv4Address(address)
        except ValueError:
            raise UserError(
                f"--machines {text} is not of the form a=10.0.0.1, with an IPv4 address.", WRONG_USAGE
            ) from None
        if name in addresses or address in addresses.values():
            raise UserError(f"--machines {text} is given twice.", WRONG_USAGE)
        addresses[name] = address
    return addresses


@dataclass(frozen=True, slots=True)
class Counts:
    """How many groups, members of each, and name servers there are."""

    groups: int
    replicas: int
    namesrvs: int


@dataclass(frozen=True, slots=True)
class MachinesPlan:
    """`home`: the folder on each machine. `program`: the command there, for its systemd unit."""

    addresses: Mapping[str, str]
    counts: Counts
    home: Path = DEFAULT_HOME
    first_broker: str = "broker-a"
    namesrv_port: int = 9876
    broker_port: int = 10911
    admin_port: int = 8080
    grpc_port: int = 8081
    client_tls: Literal["disabled", "permissive", "enforcing"] = "disabled"

    @property
    def brokers(self) -> list[str]:
        return [broker_name_of(self.first_broker, group) for group in range(self.counts.groups)]

    @property
    def namesrvs(self) -> tuple[str, ...]:
        """The machines that have one."""
        return tuple(self.addresses)[: self.counts.namesrvs]

    @property
    def namesrv_addr(self) -> str:
        return ";".join(f"{self.addresses[each]}:{self.namesrv_port}" for each in self.namesrvs)

    def placed(self, group: int) -> dict[str, str]:
        """Member of the group -> its machine. The first machine of group g is the g-th, and the others follow
        it; numbers go by the order of machines, so that n0, n10, n20 are on one of three.
        """
        machines = placed_on(list(self.addresses), group, self.counts.replicas)
        return {
            node_name(number): machine for number, machine in zip(numbers_of(group), machines, strict=False)
        }

    def preferred(self, group: int) -> str:
        """The member that leads the group when it can: each machine's turn."""
        wanted = list(self.addresses)[group % len(self.addresses)]
        return next(node for node, machine in self.placed(group).items() if machine == wanted)

    def machine(self, name: str) -> Machine:
        has_namesrv = name in self.namesrvs
        return Machine(
            name=name,
            address=self.addresses[name],
            home=self.home,
            brokers=tuple(self.brokers),
            nodes=tuple(member.id for member in self.members(name)),
            namesrv_addr=self.namesrv_addr,
            namesrv_port=self.namesrv_port if has_namesrv else 0,
            admin_port=self.admin_port if has_namesrv else 0,
            grpc_port=self.grpc_port,
            client_tls=self.client_tls,
        )

    def members(self, name: str) -> list[MemberPlan]:
        """Those of one machine."""
        found = []
        for group, broker in enumerate(self.brokers):
            placed = self.placed(group)
            peers = {node: self.addresses[machine] for node, machine in placed.items()}
            port = self.broker_port + PORTS_PER_NODE * group
            for node, machine in placed.items():
                if machine == name:
                    found.append(self._member(node, broker, peers, port, self.preferred(group)))
        return found

    def _member(
        self, node: str, broker: str, peers: Mapping[str, str], port: int, preferred: str
    ) -> MemberPlan:
        more = machine_keys(self.home / CERTIFICATES, node, port, preferred, self.client_tls)
        more["grpcEndpointAddresses"] = ",".join(self.addresses.values())
        home = self.home / node
        return MemberPlan(
            node, broker, peers, port, self.namesrv_addr, home / "store", self.home / CERTIFICATES, more
        )


def machine_keys(
    certificates: Path, node: str, port: int, preferred: str | None, client_tls: str
) -> dict[str, Scalar]:
    """The broker keys that a member has on such a machine, and one of `cluster init --node` has not."""
    return {
        "namesrvTlsEnable": True,
        "metricsPort": port + METRICS_PORT_STEP,
        **({} if preferred is None else {"preferredLeaderId": preferred}),
        **({} if client_tls == "disabled" else {"tlsMode": client_tls, **client_keys(certificates, node)}),
    }


def placed_on(machines: Sequence[str], group: int, replicas: int) -> list[str]:
    """On which of the machines a group has its members: from the g-th one on, in the order of machines."""
    count = len(machines)
    return [machines[at] for at in sorted((group + further) % count for further in range(replicas))]


def counts_for(machines: int, groups: int | None, replicas: int | None, namesrvs: int | None) -> Counts:
    """None: as many as are sensible for so many machines. Raises: UserError."""
    if not 1 <= machines <= MACHINES_MAX:
        raise UserError(
            f"{machines} machines: a cluster begins with 1 to {MACHINES_MAX}; `ledgermq cluster add-member` "
            "makes the folders of further ones.",
            WRONG_USAGE,
        )
    counts = Counts(groups or machines, replicas or min(machines, REPLICAS), namesrvs or min(machines, 2))
    for option, count in (("replicas", counts.replicas), ("namesrvs", counts.namesrvs)):
        if count > machines:
            raise UserError(f"--{option} {count} are more than the {machines} machines.", WRONG_USAGE)
    if (reached := counts.groups - 1 + counts.replicas) < machines:
        raise UserError(
            f"{machines - reached} of the {machines} machines would have no member of any group: name more "
            "--groups or --replicas, or fewer machines.",
            WRONG_USAGE,
        )
    return counts


def next_member(group: int, there: Iterable[str]) -> str:
    """An id that no member of the group has had. Raises: UserError."""
    used = [number for number in numbers_of(group) if node_name(number) in set(there)]
    number = max(used, default=group * NUMBERS_PER_GROUP - 1) + 1
    if number not in numbers_of(group):
        raise UserError(f"group {group + 1} has had {NODES_MAX} members: no id is left for another one.")
    return node_name(number)
