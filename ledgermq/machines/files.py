"""Writes the folders of a plan's machines, and what changes in them when a machine or a group is added to a
running cluster, or a group is removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.config import BrokerConfig
from ledgermq.errors import UserError
from ledgermq.local.plan import (
    GROUPS_MAX,
    PORTS_PER_NODE,
    broker_name_of,
    group_of,
    node_name,
    numbers_of,
    write_whole,
)
from ledgermq.machines.folders import CERTIFICATES, CONFIG, MemberPlan, read_config, writing
from ledgermq.machines.plan import (
    MACHINE_FILE,
    REPLICAS,
    Machine,
    MachinesPlan,
    load_machine,
    machine_keys,
    next_member,
    placed_on,
)
from ledgermq.machines.unit import UNIT_FILE, unit_text
from ledgermq.members import MemberFiles


def write_machines(folder: Path, plan: MachinesPlan, program: Path) -> None:
    """A folder for each machine, and one for the authority. Raises UserError: there is such a folder already,
    ports collide, the broker would refuse a configuration, or a file cannot be written.
    """
    existing = [name for name in plan.addresses if (folder / name).exists()]
    if existing:
        raise UserError(f"{folder / existing[0]} is there already; choose another folder with --data.")
    for name in plan.addresses:
        write_machine(folder, plan.machine(name), plan.members(name), program)


def write_machine(
    folder: Path, machine: Machine, members: Sequence[MemberPlan], program: Path | None
) -> None:
    """The folder of one machine, or what these members add to it. `program`: None where the unit stays.

    Raises: UserError.
    """
    machine.ports({member.id: member.port for member in members})
    own = folder / machine.name
    with writing(folder):
        files = MemberFiles(folder / CERTIFICATES)
        hosts = (machine.address,)
        for member in members:
            files.complete(member.broker_name, {member.id: hosts})
        if machine.namesrv_port:
            files.complete(machine.brokers[0], {machine.namesrv_member: hosts})
        for certified in machine.certified:
            files.copy_member(certified, own / CERTIFICATES)
        for member in members:
            member.write(own / member.id)
        if program is not None:
            write_whole(own / UNIT_FILE, unit_text(machine.name, machine.home, program))
        write_whole(own / MACHINE_FILE, machine.to_toml())  # the last one: who has it has them all


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines in a folder that `cluster init --machines` made, and the configuration of each node."""

    machines: Mapping[str, Machine]
    configs: Mapping[str, BrokerConfig]

    @staticmethod
    def load(folder: Path) -> Cluster | None:
        """None: there are none. Raises: UserError."""
        found = sorted(path.parent for path in folder.glob(f"*/{MACHINE_FILE}"))
        machines = {each.name: load_machine(each) for each in found}
        configs = {
            node: read_config(folder / name / node / CONFIG)
            for name, machine in machines.items()
            for node in machine.nodes
        }
        return Cluster(machines, configs) if machines else None

    def added(self, name: str, address: str) -> tuple[Machine, list[MemberPlan]]:
        """One more machine with a new member of each group, to join while the cluster runs. It has no name
        server: clients and brokers know those that are there. Raises: UserError.
        """
        for each in self.machines.values():
            if name == each.name or address == each.address:
                raise UserError(f"there is a machine {each.name} with the address {each.address} already.")
        first = next(iter(self.machines.values()))
        members = [self._joining(first, at, broker, address) for at, broker in enumerate(first.brokers)]
        changed = {
            "name": name,
            "address": address,
            "nodes": tuple(member.id for member in members),
            "namesrv_port": 0,
            "admin_port": 0,
        }
        return first.model_copy(update=changed), members

    def _joining(self, first: Machine, group: int, broker: str, address: str) -> MemberPlan:
        there = {node: config for node, config in self.configs.items() if config.broker_name == broker}
        node = next_member(group, there)
        config = next(iter(there.values()))
        more = machine_keys(
            first.certificates, node, config.listen_port, config.preferred_leader_id, first.client_tls
        )
        if config.grpc_endpoints:
            more["grpcEndpointAddresses"] = f"{config.grpc_endpoints},{address}"
        return MemberPlan(
            node,
            broker,
            {**{each: known.broker_ip for each, known in there.items()}, node: address},
            config.listen_port,
            first.namesrv_addr,
            first.home / node / "store",
            first.certificates,
            more,
            is_joining=True,
        )

    def with_group(
        self, machines: Sequence[str] | None = None
    ) -> tuple[str, dict[Machine, list[MemberPlan]]]:
        """The broker name of one more group, every machine as it is then, and the new group's members there.
        `machines`: where they run; None: as `cluster init` would place them. Raises: UserError.
        """
        number = len(next(iter(self.machines.values())).brokers)
        if machines is None:
            machines = placed_on(list(self.machines), number, min(REPLICAS, len(self.machines)))
        unknown = [name for name in machines if name not in self.machines]
        if unknown:
            raise UserError(f"there is no machine {unknown[0]}; there are {', '.join(self.machines)}.")
        if number == GROUPS_MAX:
            raise UserError(f"the cluster had {GROUPS_MAX} groups, and can have no more.")
        first = next(iter(self.machines.values()))
        broker = broker_name_of(first.brokers[0], number)
        ids = [node_name(each) for each in numbers_of(number)[: len(machines)]]
        peers = {node: self.machines[name].address for node, name in zip(ids, machines, strict=True)}
        preferred = ids[number % len(ids)]
        grown: dict[Machine, list[MemberPlan]] = {}
        for name, machine in self.machines.items():
            nodes = [node for node, at in zip(ids, machines, strict=True) if at == name]
            changed = {"brokers": (*machine.brokers, broker), "nodes": (*machine.nodes, *nodes)}
            members = [self._new_member(machine, node, broker, peers, number, preferred) for node in nodes]
            grown[machine.model_copy(update=changed)] = members
        return broker, grown

    def _new_member(
        self, machine: Machine, node: str, broker: str, peers: Mapping[str, str], group: int, preferred: str
    ) -> MemberPlan:
        known = next(iter(self.configs.values()))
        first_port = known.listen_port - PORTS_PER_NODE * group_of(known.dledger_self_id)
        port = first_port + PORTS_PER_NODE * group
        more = machine_keys(machine.certificates, node, port, preferred, machine.client_tls)
        if known.grpc_endpoints:
            more["grpcEndpointAddresses"] = known.grpc_endpoints
        store = machine.home / node / "store"
        return MemberPlan(node, broker, peers, port, machine.namesrv_addr, store, machine.certificates, more)

    def without_group(self, broker: str) -> list[Machine]:
        """The machines that had a member of the group, without it. No other group gets its name.

        Raises: UserError.
        """
        left = {node for node, config in self.configs.items() if config.broker_name == broker}
        there = sorted({config.broker_name for config in self.configs.values()})
        if not left:
            raise UserError(f"no machine has a member of {broker}; there are {', '.join(there)}.")
        if len(there) == 1:
            raise UserError(f"{broker} is the only group.")
        return [
            machine.model_copy(update={"nodes": tuple(node for node in machine.nodes if node not in left)})
            for machine in self.machines.values()
            if left & {*machine.nodes}
        ]
