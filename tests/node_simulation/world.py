"""A whole simulated cluster - brokers, name server, clients - and the two phases of a run."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from broker.config import BrokerConfig
from dledger.core.membership import Configuration, MemberRole
from dledger.writer import Durability
from tests.histories.checker import check
from tests.histories.words import Report, Rules
from tests.node_simulation.clients import History
from tests.node_simulation.cluster import READER, Cluster, ReplicaGroup
from tests.node_simulation.damage import Damage
from tests.node_simulation.faults import Faults
from tests.node_simulation.invariants import Checker, engine_of
from tests.node_simulation.losses import Disks, PageCaches, without_lost
from tests.node_simulation.machine import DiskOptions, Machine
from tests.node_simulation.membership import Machines, MemberChanges
from tests.node_simulation.net import NetworkOptions
from tests.node_simulation.options import (
    MembershipOptions,
    Options,
    RecoveryOptions,
    UpgradeOptions,
    draw_options,
    draw_stalling_options,
)
from tests.node_simulation.programs import (
    NAME_SERVER_IP,
    REPLICATION_PORT,
    ROOT,
    NodeProgram,
    name_server_program,
    node_config,
)
from tests.node_simulation.recovery import Recovery
from tests.node_simulation.retentions import FOR_EVER, Retained
from tests.node_simulation.strangers import Stranger, StrangerOptions, credentials_of, old_member
from tests.node_simulation.upgrades import OldNodeProgram, Upgrades, is_old
from tests.node_simulation.workload import PlainWorkload, Workload
from tests.simulation.invariants import require

OLD_MEMBER_IP = "10.0.9.66"
QUIET_MS = 8_000
START_MS = 3_000
STRANDED_MS = 20_000
"""How long the operator waits before he looks again whether a member stays behind."""
WorkloadFactory = Callable[[Options, History], Workload]


@dataclass(frozen=True, slots=True)
class Summary:
    """What happened in a run that broke nothing."""

    events: int
    elections: int
    committed: int
    operations: int
    acknowledged: int
    faults: dict[str, int]
    writable_after_ms: int
    converged_after_ms: int
    virtual_ms: int
    history: str


def plain_workload(options: Options, history: History) -> Workload:
    return PlainWorkload(options.workload, history)


class World(Cluster[Summary]):
    """Built from options alone; two worlds of the same options do the same."""

    def __init__(
        self,
        options: Options,
        *,
        workload: WorkloadFactory = plain_workload,
        is_tracing: bool = False,
    ) -> None:
        super().__init__(options, is_tracing=is_tracing)
        self._settings = dict(options.config)
        names = [f"n{number}" for number in range(options.nodes)]
        self.nodes = {name: self._node(name, number) for number, name in enumerate(names)}
        self.removed: list[Machine] = []
        """Nodes that were members once, off or still running."""
        self.name_server = self._machine("ns", NAME_SERVER_IP, name_server_program)
        self.checker = Checker(self.nodes, self._disks())
        self.surroundings.before_end = self.checker.ends
        self.retained = Retained(options.retention, self.checker, options.skew_ppm)
        self.group = ReplicaGroup(self.nodes, self.checker, self.retained)
        self.history = History(self.clock, self.checker, self.retained)
        self.workload = workload(options, self.history)
        self.clients = {
            name: self._machine(name, f"10.0.2.{number + 1}", program)
            for number, (name, program) in enumerate(self.workload.programs().items())
        }
        damage = Damage(self.rng, self.nodes, self.checker)
        self.faults = Faults(
            self.clock, self.rng, options.faults, self.network, self.nodes, [self.name_server], self.clients,
            damage, self.stalls, options.stalls.close_ms,
        )  # fmt: skip
        self.faults.on_client_crash = self.workload.crashed
        self.changes: MemberChanges | None = None
        self.recovery: Recovery | None = None
        if options.membership is not None:
            self._change_members(options.membership, damage)
        if options.recovery is not None:
            self._recover(options.recovery)
        if self.changes is not None and self.recovery is not None:
            self.changes.is_paused = self.recovery.is_recovering
            self.changes.is_reserved = self.recovery.is_reserved
        self.upgrades: Upgrades | None = None
        if options.upgrade is not None:
            self._upgrade(options.upgrade)
        self.stranger: Stranger | None = None
        self.outsiders: list[Machine] = []
        if options.strangers is not None:
            self._add_strangers(options.strangers)

    def _node(self, name: str, number: int) -> Machine:
        return self._machine(name, f"10.0.0.{number + 1}", NodeProgram(self._config(number), self._stopped))

    def _disks(self) -> Disks:
        config = self._config(0)
        if Durability(config.durability) is Durability.PERSISTED:
            return Disks(self.nodes, ROOT, config.data_file_bytes)
        caches = PageCaches(self.nodes, ROOT, config.data_file_bytes)
        self.surroundings.before_power_loss = caches.loses_power
        return caches

    def _add_strangers(self, options: StrangerOptions) -> None:
        config = self._config(0)
        for name, machine in self.nodes.items():
            machine.credentials = credentials_of(config.group, name, options.age_max_ms)
        self.stranger = Stranger(
            config.group, config.peers, options, random.Random(f"{self.options.seed} stranger")
        )
        self.outsiders.append(self._machine("stranger", "10.0.9.1", self.stranger))
        old = self._machine(
            "n66", OLD_MEMBER_IP, NodeProgram(old_member(config, OLD_MEMBER_IP), self._stopped)
        )
        old.credentials = credentials_of(config.group, "n66", options.age_max_ms)
        self.outsiders.append(old)

    def _config(self, number: int) -> BrokerConfig:
        peers = {f"n{n}": f"10.0.0.{n + 1}" for n in range(self.options.nodes)}
        return self._config_of(f"n{number}", peers)

    def _config_of(self, name: str, peers: dict[str, str], *, joins: bool = False) -> BrokerConfig:
        """A configuration file. `peers`: the addresses of members, its own among them."""
        queues = self.options.workload.queues
        return node_config(name, peers, self._settings, queues=queues, joins=joins)

    # -- members that change

    def _change_members(self, options: MembershipOptions, damage: Damage) -> None:
        rng = random.Random(f"{self.options.seed} member changes")
        self.changes = MemberChanges(
            self.clock, options, rng, self._machines(), self.checker, damage, self.trace
        )
        self.checker.are_members_changing = True

    def _recover(self, options: RecoveryOptions) -> None:
        rng = random.Random(f"{self.options.seed} recoveries")
        self.recovery = Recovery(
            self.clock, options, rng, self._machines(), self.checker, self.network, ROOT, self.trace
        )

    def _upgrade(self, options: UpgradeOptions) -> None:
        for machine in self.nodes.values():
            assert isinstance(machine.program, NodeProgram)
            machine.program = OldNodeProgram(machine.program.config, self._stopped)
        rng = random.Random(f"{self.options.seed} upgrades")
        self.checker.is_old = is_old
        self.checker.are_members_changing = True
        self.upgrades = Upgrades(
            self.clock, options, rng, self.nodes, self.checker, self.trace, self._start_changes
        )

    def _start_changes(self) -> None:
        if self.changes is not None:
            self.changes.start()

    def _machines(self) -> Machines:
        self._free_ips = iter(f"10.0.5.{number}" for number in range(1, 255))
        return Machines(
            self.nodes, self.removed, REPLICATION_PORT, self._make_joining, self._new_ip, self._move,
            self._retire, self._recall, self._rewrite,
        )  # fmt: skip

    def _make_joining(self, name: str, members: Configuration) -> Machine:
        ip = self._new_ip()
        self.checker.joined.add(name)
        self.retained.newcomers.add(name)
        machine = self.nodes[name] = self._machine(name, ip, self._joining(name, ip, members))
        return machine

    def _joining(self, name: str, ip: str, members: Configuration) -> NodeProgram:
        peers = {member.id: member.host for member in members.members}
        return NodeProgram(self._config_of(name, {**peers, name: ip}, joins=True), self._stopped)

    def _rewrite(self, machine: Machine, members: Configuration) -> None:
        machine.program = self._joining(machine.name, machine.ip, members)

    def _new_ip(self) -> str:
        return next(self._free_ips)

    def _move(self, machine: Machine, ip: str) -> None:
        members = self.checker.newest.configuration.members
        peers = {member.id: member.host for member in members}
        config = self._config_of(machine.name, {**peers, machine.name: ip})
        machine.move(ip, NodeProgram(config, self._stopped))

    def _retire(self, machine: Machine) -> None:
        del self.nodes[machine.name]
        self.checker.forget(machine.name)
        self.removed.append(machine)

    def _recall(self, machine: Machine) -> None:
        self.removed.remove(machine)
        self.retained.newcomers.add(machine.name)
        self.nodes[machine.name] = machine

    # -- what machines tell

    def _after_turn(self, machine: Machine) -> None:
        if machine in self.removed or machine.name in self.nodes:
            try:
                if machine in self.removed:
                    self.checker.removed_turned(machine)
                else:
                    self.group.turned(machine)
            except Exception as error:  # noqa: BLE001 (it comes out of the run, not out of a node's loop)
                self.fail(error)

    def _group_of(self, name: str) -> ReplicaGroup:
        return self.group

    # -- what is so now

    def leader(self) -> Machine | None:
        """The running leader of the highest term, None without one."""
        return self.group.leader()

    def is_writable(self) -> bool:
        return self.group.is_writable()

    def is_converged(self) -> bool:
        """All nodes run, and their disks hold one log, committed to its end."""
        return self.group.is_converged()

    def describe(self) -> str:
        return f"{self.group.describe()}; {self.workload.describe()}"

    # -- the two phases

    def _run(self) -> Summary:
        for machine in [self.name_server, *self.nodes.values(), *self.clients.values(), *self.outsiders]:
            machine.start()
        self.run_for(START_MS)
        if self.stranger is not None:
            self.stranger.is_on = True
        self.faults.start()
        operators = [each for each in (self.changes, self.recovery, self.upgrades) if each is not None]
        for operator in operators:
            if operator is not self.changes or self.upgrades is None:
                operator.start()
        self.run_for(self.options.safety_ms)
        self.workload.stop()
        for operator in operators:
            operator.stop()
        self.faults.stop()
        self._keep_messages()
        self.network.options = NetworkOptions()
        self.surroundings.disk = DiskOptions()
        self._replace_stranded()
        writable_after_ms = self.run_until(self.is_writable, "a writable leader")
        if self.recovery is not None:
            self.run_until(self.recovery.is_over, "the group has its members again")
        if self.upgrades is not None:
            self.run_until(self.upgrades.is_over, "the upgrade is over")
        if operators:
            self.run_until(self._are_settled, "only members are there, and every joining one votes")
        self.run_until(self.workload.is_done, "everything acknowledged is consumed")
        self.run_until(self._has_deleted, "every member has deleted what the group decided, and knows it")
        converged_after_ms = self.run_until(self.is_converged, "all nodes at one end")
        self._read_back()
        self.run_until(self.is_converged, "all nodes at one end")
        self.run_until(self.group.is_repaired, "all disks hold what is committed")
        self._check_members()
        self.checker.check_logs()
        self._check_outsiders()
        report = self._judge()
        return Summary(
            self.events, self.checker.elections, self.checker.commit_index + 1, len(self.history.operations),
            self.workload.count_acknowledged(), self._fault_counts(),
            writable_after_ms, converged_after_ms, self.clock.now_us // 1_000,
            str(report),
        )  # fmt: skip

    def _keep_messages(self) -> None:
        """From here on, as an operator may have it: the last reader finds what is not deleted yet."""
        if self.options.retention is not None:
            self._settings |= FOR_EVER
            for machine in (*self.nodes.values(), *self.removed):
                assert isinstance(machine.program, NodeProgram)
                machine.program.config.__dict__.update(FOR_EVER)

    def _has_deleted(self) -> bool:
        return self.retained.is_settled(self.group.members())

    def _replace_stranded(self) -> None:
        """As an operator does: a member that keeps what its group has lost gets an empty disk."""
        caches = self.checker.disks
        if not isinstance(caches, PageCaches):
            return
        for machine in self.nodes.values():
            if machine.is_up and caches.is_stranded(machine, self.checker.committed):
                self.faults.count("stranded member replaced")
                machine.stop_by_force(is_power_lost=False)
                self.faults.wipe(machine)
                machine.start()
        self.clock.schedule(1_000 * STRANDED_MS, self._replace_stranded)

    def _judge(self) -> Report:
        """Of the whole history; where messages are lost, of what producers and the last reader saw."""
        operations = self.history.operations
        if self.checker.disks.lost:
            operations = without_lost(operations, self.checker.disks.lost_bodies, READER)
        self.retained.check_drains(operations)
        rules = Rules(may_expire=self.options.retention is not None)
        report = check(self.retained.located(operations), rules)
        require(report.is_clean, report)
        return report

    def _fault_counts(self) -> dict[str, int]:
        counts = self.faults.counts | self.stalls.counts | (self.stranger.counts if self.stranger else {})
        if self.changes is not None:
            counts |= self.changes.counts
        counts |= {} if self.options.retention is None else self.retained.counts
        for operator in (self.recovery, self.upgrades):
            counts |= {} if operator is None else operator.counts
        if isinstance(self.checker.disks, PageCaches):
            counts |= {"loss by power failures": self.checker.disks.losses}
        return counts

    def _check_members(self) -> None:
        """Those of the last committed configuration are a group in which nothing happens, whatever those do
        who were members once.
        """
        if not self.checker.are_members_changing:
            return
        elections = self.checker.elections
        self.run_for(QUIET_MS)
        require(self.checker.elections == elections, "elections in a healthy group", self.describe())

    def _are_settled(self) -> bool:
        last = self.checker.configuration
        members = set() if last is None else set(last.configuration.ids)
        is_joining = last is not None and any(
            each.role is MemberRole.JOINING or each.replaces is not None
            for each in last.configuration.members
        )
        return members == set(self.nodes) and not is_joining

    def _check_outsiders(self) -> None:
        """No member has believed that another machine is one."""
        for machine in self.nodes.values():
            assert machine.process is not None
            assert machine.process.broker is not None
            known = dict(engine_of(machine.process.broker).client_addresses)
            is_true = all(
                self.nodes[name].ip == address.partition(":")[0]
                for name, address in known.items()
                if name in self.nodes or not self.checker.are_members_changing
            )
            require(is_true, machine.name, "believes", known)

    def _read_back(self) -> None:
        self._read_group_back(self.group, self.workload.read_back, "10.0.3")

    def _all_machines(self) -> list[Machine]:
        nodes = [*self.nodes.values(), *self.removed]
        return [self.name_server, *nodes, *self.clients.values(), *self.outsiders]


def run_seed(seed: int, *, is_stalling: bool = False) -> Summary:
    """Runs one seed. Raises what its run raises."""
    return World((draw_stalling_options if is_stalling else draw_options)(seed)).run()
