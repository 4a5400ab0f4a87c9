"""Several groups on the same hosts, two name servers, and groups that come and go, under faults.

Each group is checked by itself, as that of a world with one; the history of the clients is one for all.
"""

import random
from collections.abc import Sequence
from functools import partial
from itertools import count

from commitlog.record import Record
from ledgermq.local.plan import GroupPlan, NodePlan
from remoting.client.routes import leaders_of
from remoting.route import PERM_WRITE, TopicRoute
from tests.histories.checker import check
from tests.histories.operations import Queue
from tests.node_simulation.clients import History
from tests.node_simulation.cluster import Cluster, ReplicaGroup
from tests.node_simulation.damage import Damage
from tests.node_simulation.groups_operator import GroupsOperator, Sites
from tests.node_simulation.hosts import Host, HostFaults
from tests.node_simulation.invariants import Checker
from tests.node_simulation.losses import Disks
from tests.node_simulation.machine import DiskOptions, Machine, Program
from tests.node_simulation.net import NetworkOptions
from tests.node_simulation.options import GroupsOptions, Options
from tests.node_simulation.programs import (
    LISTEN_PORT,
    NAME_SERVER_PORT,
    ROOT,
    NodeProgram,
    name_server_program,
    node_config,
)
from tests.node_simulation.retentions import Retained
from tests.node_simulation.workloads_groups import GroupsWorkload
from tests.node_simulation.world import START_MS, Summary
from tests.simulation.invariants import require

EXPIRY_MS = 15_000
"""After so long without a registration a name server forgets a node that lost power."""
NODES_PER_GROUP_MAX = 10


class NumberedGroup(ReplicaGroup):
    """One of several. `preferred`: the node that is to lead."""

    def __init__(self, number: int, nodes: dict[str, Machine], preferred: str, checker: Checker) -> None:
        super().__init__(nodes, checker, Retained(None, checker, 0))
        self.name = name_of(number)
        self.preferred = preferred

    def is_led_as_preferred(self) -> bool:
        leader = self.leader()
        return leader is not None and leader.name == self.preferred


def name_of(number: int) -> str:
    return f"broker-{chr(ord('a') + number)}"


class GroupsHistory(History):
    """Queues are named by topic and group; what a node shows is held against its group's log."""

    def __init__(self, world: "GroupsWorld") -> None:
        first = world.groups[0]
        super().__init__(world.clock, first.checker, first.retained)
        self._world = world

    def queue(self, address: str, topic: str, queue_id: int) -> Queue:
        return Queue(f"{topic}@{self._group(address).name}", queue_id)

    def shown(self, address: str, record: Record) -> None:
        self._group(address).checker.shown(address, record)

    def _group(self, address: str) -> NumberedGroup:
        return self._world.by_ip[address.partition(":")[0]]


class GroupsWorld(Cluster[Summary]):
    """Built from options alone; two worlds of the same options do the same."""

    faults: HostFaults

    def __init__(self, options: Options, *, is_tracing: bool = False) -> None:
        super().__init__(options, is_tracing=is_tracing)
        assert options.groups is not None
        self.of_groups: GroupsOptions = options.groups
        self.hosts = [Host() for _ in range(options.nodes)]
        self.groups: list[NumberedGroup] = []
        self.removed: list[NumberedGroup] = []
        self.nodes: dict[str, Machine] = {}
        """Of all groups that are there."""
        self.by_ip: dict[str, NumberedGroup] = {}
        self._by_node: dict[str, NumberedGroup] = {}
        self._numbers = count()
        self.surroundings.before_end = self._before_end
        program = partial(name_server_program, expiry_ms=EXPIRY_MS)
        self.name_servers = [
            self._machine(f"ns{number}", f"10.0.1.{number + 1}", program)
            for number in range(self.of_groups.name_servers)
        ]
        for number, machine in enumerate(self.name_servers):
            self.hosts[number % len(self.hosts)].machines.append(machine)
        self._namesrv = [f"{machine.ip}:{NAME_SERVER_PORT}" for machine in self.name_servers]
        for _ in range(self.of_groups.groups):
            self._make_group()
        self.history = GroupsHistory(self)
        self.workload = GroupsWorkload(options, self.history, self._namesrv)
        self.operator = GroupsOperator(
            self.of_groups,
            random.Random(f"{options.seed} operator"),
            Sites(self._names, self._add_group, self._remove_group, self._count_fault, self.trace),
            self._namesrv,
            options.workload.queues,
        )
        programs: dict[str, Program] = {**self.workload.programs(), "operator": self.operator}
        self.clients = {
            name: self._machine(name, f"10.0.2.{number + 1}", program)
            for number, (name, program) in enumerate(programs.items())
        }
        self.faults = HostFaults(
            self.clock, self.rng, options.faults, self.network, self.nodes, self.name_servers, self.clients,
            Damage(self.rng, self.nodes, self.groups[0].checker), self.stalls, options.stalls.close_ms,
            hosts=self.hosts, options_of_hosts=self.of_groups,
            rng_of_hosts=random.Random(f"{options.seed} hosts"),
            peers_of=lambda machine: self._by_node[machine.name].nodes,
        )  # fmt: skip
        self.faults.on_client_crash = self.workload.crashed

    # -- groups

    def _make_group(self) -> NumberedGroup:
        """As `ledgermq up` plans it: each group prefers a leader on another host."""
        number = next(self._numbers)
        ids = [f"n{NODES_PER_GROUP_MAX * number + each}" for each in range(len(self.hosts))]
        peers = {name: f"10.1.{number}.{each + 1}" for each, name in enumerate(ids)}
        plans = tuple(NodePlan(name, each, LISTEN_PORT, ROOT) for each, name in enumerate(ids))
        preferred = GroupPlan(number, name_of(number), name_of(number), plans).preferred_leader
        nodes: dict[str, Machine] = {}
        for name, host in zip(ids, self.hosts, strict=True):
            config = node_config(
                name, peers, self.options.config, queues=self.options.workload.queues,
                brokerName=name_of(number), preferredLeaderId=preferred, namesrvAddr=";".join(self._namesrv),
            )  # fmt: skip
            nodes[name] = self._machine(name, peers[name], NodeProgram(config, self._stopped))
            host.machines.append(nodes[name])
        disks = Disks(nodes, ROOT, config.data_file_bytes)
        group = NumberedGroup(number, nodes, preferred, Checker(nodes, disks))
        self.groups.append(group)
        self.nodes |= nodes
        self.by_ip |= dict.fromkeys(peers.values(), group)
        self._by_node |= dict.fromkeys(ids, group)
        return group

    def _names(self) -> Sequence[str]:
        return [group.name for group in self.groups]

    def _add_group(self) -> str:
        group = self._make_group()
        for machine in group.nodes.values():
            self.faults.restart_later(machine, self.rng.randint(0, 1_000))
        return group.name

    def _remove_group(self, name: str) -> None:
        group = next(each for each in self.groups if each.name == name)
        self.groups.remove(group)
        self.removed.append(group)
        self.faults.retire(group.nodes.values())
        for each in group.nodes:
            del self.nodes[each]
        unread = self.workload.unread_of(name)
        require(not unread, name, "is removed, and not consumed:", sorted(unread)[:5])

    def _count_fault(self, kind: str) -> None:
        self.faults.count(kind)

    # -- what machines tell

    def _group_of(self, name: str) -> NumberedGroup | None:
        return self._by_node.get(name)

    def _after_turn(self, machine: Machine) -> None:
        group = self._by_node.get(machine.name)
        if group is not None:
            try:
                group.turned(machine)
            except Exception as error:  # noqa: BLE001 (it comes out of the run, not out of a node's loop)
                self.fail(error)

    def _before_end(self, machine: Machine, is_power_lost: bool) -> None:
        group = self._by_node.get(machine.name)
        if group is not None:
            group.checker.ends(machine, is_power_lost)

    # -- what is so now

    def describe(self) -> str:
        groups = [f"{group.name}: {group.describe()}" for group in self.groups]
        return "; ".join([*groups, f"routes {self.operator.routes}", self.workload.describe()])

    def is_writable(self) -> bool:
        return all(group.is_writable() for group in self.groups)

    def is_converged(self) -> bool:
        return all(group.is_converged() for group in self.groups)

    def _are_routes_right(self) -> bool:
        """Every name server has just the groups that are there, with their leaders."""
        return all(self._is_right(self.operator.routes.get(each)) for each in self._namesrv)

    def _is_right(self, route: TopicRoute | None) -> bool:
        if route is None:
            return False
        leaders = {
            group.name: f"{leader.ip}:{LISTEN_PORT}"
            for group in self.groups
            if (leader := group.leader()) is not None
        }
        writable = {data.broker_name for data in route.queue_datas if data.perm & PERM_WRITE}
        known = {data.broker_name: len(data.broker_addrs) for data in route.broker_datas}
        return (
            leaders_of(route.broker_datas) == leaders
            and writable == set(leaders)
            and known == {group.name: len(group.nodes) for group in self.groups}
        )

    # -- the two phases

    def _run(self) -> Summary:
        for machine in self._all_machines():
            machine.start()
        self.run_for(START_MS)
        self.operator.began_ms = self.clock.now_us // 1_000
        self.faults.start()
        self.run_for(self.options.safety_ms)
        self.faults.stop()
        self.network.options = NetworkOptions()
        self.surroundings.disk = DiskOptions()
        writable_after_ms = self.run_until(self.is_writable, "writable leaders")
        self.run_until(lambda: self.operator.is_over, "groups are added and removed")
        self.workload.stop()
        self.run_until(self.workload.is_done, "everything acknowledged is consumed")
        self.run_until(self._are_removed_gone, "removed groups have no process")
        self.run_until(self._are_leaders_preferred, "the preferred nodes lead")
        self._check_leaders_are_spread()
        self.run_until(self._are_routes_right, "each name server has the groups that are there")
        converged_after_ms = self.run_until(self.is_converged, "all nodes at one end")
        self._read_back()
        self.run_until(self.is_converged, "all nodes at one end")
        for group in self.groups:
            group.checker.check_logs()
        report = check(self.history.operations)
        require(report.is_clean, report)
        checkers = [group.checker for group in (*self.groups, *self.removed)]
        return Summary(
            self.events, sum(each.elections for each in checkers),
            sum(each.commit_index + 1 for each in checkers), len(self.history.operations),
            self.workload.count_acknowledged(), self.faults.counts | self.stalls.counts,
            writable_after_ms, converged_after_ms, self.clock.now_us // 1_000, str(report),
        )  # fmt: skip

    def _are_removed_gone(self) -> bool:
        return not any(machine.is_up for group in self.removed for machine in group.nodes.values())

    def _are_leaders_preferred(self) -> bool:
        return all(group.is_led_as_preferred() for group in self.groups)

    def _check_leaders_are_spread(self) -> None:
        """Over the hosts, when no group had left."""
        preferred = {group.preferred for group in (*self.groups, *self.removed)}
        counts = [sum(each.name in preferred for each in host.machines) for host in self.hosts]
        require(max(counts) - min(counts) <= 1, "leaders are not spread over the hosts:", sorted(preferred))

    def _read_back(self) -> None:
        for number, group in enumerate(self.groups):
            self._read_group_back(group, self.workload.read_back, f"10.0.{20 + number}")

    def _all_machines(self) -> list[Machine]:
        removed = [machine for group in self.removed for machine in group.nodes.values()]
        return [*self.name_servers, *self.nodes.values(), *self.clients.values(), *removed]
