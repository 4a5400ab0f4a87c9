"""One simulated cluster: hosts, network, disks, clocks and clients on one thread, decided by one seed."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dledger.core.membership import Configuration, MemberRole
from dledger.core.types import NO_INDEX, Role
from tests.simulation.clock import NodeClock, VirtualClock
from tests.simulation.damage import Damage
from tests.simulation.faults import Faults
from tests.simulation.host import Host
from tests.simulation.invariants import Checker, require
from tests.simulation.members import MemberChanges, member
from tests.simulation.network import Network, NetworkOptions
from tests.simulation.options import Family, Options, draw_of
from tests.simulation.reads import Readers
from tests.simulation.surroundings import DiskOptions, NodeFactory, Surroundings, make_node
from tests.simulation.workload import Operation, Outcome, Workload
from tests.support.memory_log import MemoryLog

LIVENESS_LIMIT_MS = 60_000
QUIET_MS = 6_000
RETRY_MS = 20
EVENTS_MAX = 400_000
SAFETY_EVENTS_MAX = 60_000

LogFactory = Callable[[Options], MemoryLog]


def make_memory_log(options: Options) -> MemoryLog:
    return MemoryLog(options.file_bytes)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did, for counts and for comparing two runs of one seed."""

    events: int
    elections: int
    committed: int
    acknowledged: int
    messages: int
    converged_after_ms: int
    virtual_ms: int
    faults: Mapping[str, int]
    """How often each kind of fault struck."""


class World:
    """A cluster that stands still until `run_for` or `run_until` moves its clock."""

    def __init__(
        self,
        options: Options,
        *,
        factory: NodeFactory = make_node,
        make_log: LogFactory = make_memory_log,
        is_tracing: bool = False,
    ) -> None:
        self.options = options
        self.rng = random.Random(options.seed)
        self.clock = VirtualClock()
        self.network = Network(self.clock, self.rng, options.network)
        self.network.is_encoded = options.is_encoded
        self.checker = Checker(is_tracing=is_tracing)
        self.surroundings = Surroundings(
            self.clock, self.network, self.checker, self.rng, options.disk, factory
        )
        self.hosts: dict[str, Host] = {}
        for number in range(options.nodes + options.members.spares):
            config = options.config_of(number)
            first = None
            if number >= options.nodes:
                first = Configuration.of_voters(config.peers).with_member(
                    member(config.self_id, MemberRole.LEARNER)
                )
            host = Host(self.surroundings, config, self._draw_clock(), make_log(options), first)
            if first is not None:
                host.impair("its disk is empty", is_vote_lost=True)
            self.hosts[host.name] = host
            self.network.attach(host.name, host)
        self.checker.hosts = self.hosts
        self.workload = Workload(self.clock, self.rng, options.workload, list(self.hosts.values()))
        readers_rng = random.Random(f"{options.seed} readers")
        self.readers = Readers(
            self.clock, readers_rng, options.read_interval_ms, self.workload.hosts, self.checker
        )
        self.faults = Faults(self.clock, self.rng, options.faults, self.network, self.hosts)
        self.damage = Damage(self.clock, options.seed, options.damage, self.hosts)
        self.members = MemberChanges(self.clock, options.seed, options.members, self.hosts)
        self.surroundings.on_moment = self.faults.on_moment
        self.events = 0

    def _draw_clock(self) -> NodeClock:
        skew_ppm = self.options.skew_ppm
        return NodeClock(self.rng.randint(0, 1 << 32), 1_000_000 + self.rng.randint(-skew_ppm, skew_ppm))

    # ---- moving time

    def start(self) -> None:
        self.damage.before_start()
        for host in self.hosts.values():
            host.start()

    def run_for(self, duration_ms: int) -> None:
        end_us = self.clock.now_us + 1_000 * duration_ms
        while self.clock.run_next(end_us):
            self._count()

    def run_until(self, condition: Callable[[], bool], what: str, limit_ms: int = 10_000) -> None:
        """Runs until the condition holds; an InvariantError naming `what` if it does not in time."""
        end_us = self.clock.now_us + 1_000 * limit_ms
        while not condition():
            require(self.clock.run_next(end_us), "not within", limit_ms, "ms:", what, self.describe())
            self._count()

    def _count(self) -> None:
        self.events += 1
        require(self.events < EVENTS_MAX, "more than", EVENTS_MAX, "events")

    # ---- what scripts ask

    def up(self) -> Iterator[Host]:
        return (host for host in self.hosts.values() if host.is_up)

    def leader(self) -> Host | None:
        """The live leader of the highest term, None without one."""
        leaders = [host for host in self.up() if host.node.role is Role.LEADER]
        return max(leaders, key=lambda host: host.node.term, default=None)

    def is_converged(self) -> bool:
        """One leader that every live node follows, all with the same committed end."""
        leader = self.leader()
        if leader is None or leader.node.commit_index != leader.node.end_index:
            return False
        first = leader.node
        return all(
            (host.node.term, host.node.leader_id, host.node.end_index, host.node.commit_index)
            == (first.term, leader.name, first.end_index, first.commit_index)
            and host.store.disk.end_index == first.end_index
            for host in self._members(leader)
        )

    def _members(self, leader: Host) -> list[Host]:
        """The live members of the group by the leader's log."""
        return [host for host in self.up() if host.name in leader.configuration.ids]

    def is_sound(self) -> bool:
        """Every member has its promises, and no change of the members is left half done."""
        leader = self.leader()
        if leader is not None and leader.node.members.has_steps:
            return False
        members = list(self.up()) if leader is None else self._members(leader)
        return all(host.impairment is None and host.node.is_sound for host in members)

    def describe(self) -> str:
        return "; ".join(
            f"{host.name} {host.node.role.name} t{host.node.term} {host.node.begin_index}.."
            f"{host.node.end_index} c{host.node.commit_index} leader {host.node.leader_id}"
            f"{' impaired' if host.node.is_impaired else ''}"
            if host.is_up
            else f"{host.name} down"
            for host in self.hosts.values()
        )

    # ---- the two phases of a seeded run

    def run(self) -> Summary:
        """Safety under faults, then liveness without them. Raises on whatever must not happen."""
        self.start()
        self.workload.start()
        self.readers.start()
        self.faults.start()
        self.damage.start()
        self.members.start()
        self._run_safety_phase()
        self.workload.stop()
        self.readers.stop()
        self.damage.stop()
        self.members.stop()
        self.faults.stop()
        self.network.options = NetworkOptions()
        self.surroundings.disk = DiskOptions()
        healed_ms = self.clock.now_us // 1_000
        self._become_writable()
        self.run_until(self.is_converged, "all nodes at one end", LIVENESS_LIMIT_MS)
        self.run_until(self.is_sound, "all nodes healed", LIVENESS_LIMIT_MS)
        converged_after_ms = self.clock.now_us // 1_000 - healed_ms
        self._stay_quiet()
        self._check_history()
        self.readers.check_answered()
        acknowledged = len(self.workload.acknowledged())
        return Summary(
            self.events,
            self.checker.elections,
            self.checker.commit_index + 1,
            acknowledged,
            self.network.sent,
            converged_after_ms,
            self.clock.now_us // 1_000,
            self.faults.counts + self.network.counts + self.damage.counts + self.members.counts,
        )

    def _run_safety_phase(self) -> None:
        """A seed that makes a storm of repeated pushes is cut short."""
        end_us = self.clock.now_us + 1_000 * self.options.safety_ms
        while self.events < SAFETY_EVENTS_MAX and self.clock.run_next(end_us):
            self._count()

    def _become_writable(self) -> None:
        """Within the bound some leader must acknowledge a new batch."""
        attempts: list[Operation] = []

        def attempt() -> None:
            leader = self.leader()
            is_waiting = attempts and attempts[-1].code is None and self._is_alive(attempts[-1])
            if leader is not None and not is_waiting:
                operation = self.workload.propose(leader, 1)
                if operation.first_index != NO_INDEX:
                    attempts.append(operation)
            if not is_written():
                self.clock.schedule(1_000 * RETRY_MS, attempt)

        def is_written() -> bool:
            return any(operation.outcome is Outcome.ACKNOWLEDGED for operation in attempts)

        attempt()
        self.run_until(is_written, "an acknowledged write", LIVENESS_LIMIT_MS)

    def _is_alive(self, operation: Operation) -> bool:
        return self.hosts[operation.node].incarnation == operation.incarnation

    def _stay_quiet(self) -> None:
        """A healthy idle cluster keeps its leader, and sends heartbeats and little else."""
        preferred = self.options.preferred_leader
        if preferred is not None:
            name = f"n{preferred}"
            self.run_until(lambda: self._leads(name), "the preferred leader leads", LIVENESS_LIMIT_MS)
            self.run_until(self.is_converged, "all nodes at one end", LIVENESS_LIMIT_MS)
        self.run_for(self.options.network.slow_max_us // 1_000)  # what the faults delayed arrives first
        if self.options.members.spares:
            self.run_for(self.options.config_of(0).departure_ms)  # removed members still get the log
        self.run_until(self.is_converged, "all nodes at one end", LIVENESS_LIMIT_MS)
        elections, sent = self.checker.elections, self.network.sent
        self.run_for(QUIET_MS)
        require(self.checker.elections == elections, "elections in a healthy cluster", self.describe())
        require(self.is_converged(), "diverged while idle", self.describe())
        config = self.options.config_of(0)
        beat_ms = min(config.heartbeat_interval_ms, config.commit_interval_ms)
        allowed = 6 * len(self.hosts) * (QUIET_MS // beat_ms + 2)
        require(self.network.sent - sent <= allowed, "idle cluster sent", self.network.sent - sent, allowed)

    def _leads(self, name: str) -> bool:
        leader = self.leader()
        return leader is not None and leader.name == name

    def _check_history(self) -> None:
        """Nothing acknowledged is lost, everything accepted is answered, nothing is invented or doubled."""
        self.checker.check_logs()
        bodies = self.checker.bodies()
        proposed: dict[bytes, Operation] = {}
        for operation in self.workload.operations:
            proposed.update(dict.fromkeys(operation.bodies, operation))
            require(
                operation.answers == 1 or not self._is_alive(operation),
                operation.node, "never answered", operation.first_index, operation.bodies,
            )  # fmt: skip
            if operation.outcome is Outcome.ACKNOWLEDGED:
                for index, body in enumerate(operation.bodies, operation.first_index):
                    require(bodies.get(index) == body, operation.node, "lost acknowledged", index, body)
        client_bodies = [body for body in bodies.values() if body.startswith(b"#")]
        require(len(client_bodies) == len(set(client_bodies)), "a body is committed twice")
        require(all(body in proposed for body in client_bodies), "a body nobody proposed is committed")


def run_seed(
    seed: int,
    *,
    factory: NodeFactory = make_node,
    is_tracing: bool = False,
    family: Family = Family.SOUND,
) -> Summary:
    """Runs one seed of a family. Raises what its run raises."""
    return World(draw_of(family, seed), factory=factory, is_tracing=is_tracing).run()
