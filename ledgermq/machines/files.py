"""Writes the folders of a plan's machines, and that of a machine that is added to a running cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.config import BrokerConfig
from ledgermq.errors import UserError
from ledgermq.local.plan import write_whole
from ledgermq.machines.folders import CERTIFICATES, CONFIG, MemberPlan, read_config, writing
from ledgermq.machines.plan import (
    MACHINE_FILE,
    Machine,
    MachinesPlan,
    load_machine,
    machine_keys,
    next_member,
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


def write_machine(folder: Path, machine: Machine, members: Sequence[MemberPlan], program: Path) -> None:
    """The folder of one machine. Raises: UserError."""
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
