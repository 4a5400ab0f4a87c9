"""What every world of whole nodes is made of: machines on one clock and one network, and how a run goes."""

import errno
import logging
import os
import random
from asyncio import events
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

from commitlog.errors import CorruptLogError, DamagedQueueError, DamagedRecordError
from dledger.core.types import NO_INDEX
from tests.node_simulation.clocks import MachineClock
from tests.node_simulation.faults import Faults, is_leader
from tests.node_simulation.invariants import Checker, engine_of, node_of
from tests.node_simulation.machine import Machine, Process, Program, Surroundings
from tests.node_simulation.net import Network
from tests.node_simulation.options import Options
from tests.node_simulation.programs import LISTEN_PORT, REPLICATION_PORT
from tests.node_simulation.retentions import Retained
from tests.node_simulation.stalls import Stalls
from tests.simulation.clock import VirtualClock
from tests.simulation.invariants import InvariantError, require

LIVENESS_LIMIT_MS = 120_000
EVENTS_MAX = 20_000_000
READER = "reader"
READERS_MAX = 5
SummaryT = TypeVar("SummaryT")


class ReplicaGroup:
    """The nodes of one group, and what is so of them now."""

    def __init__(self, nodes: dict[str, Machine], checker: Checker, retained: Retained) -> None:
        self.nodes = nodes
        self.checker = checker
        self.retained = retained

    def turned(self, machine: Machine) -> None:
        """After every turn of a node's loop. Raises InvariantError."""
        self.checker.turned(machine)
        self.retained.turned(machine)

    def members(self) -> list[Machine]:
        """Those whom the last committed configuration has."""
        last = self.checker.configuration
        if not self.checker.are_members_changing or last is None:
            return list(self.nodes.values())
        return [self.nodes[each] for each in last.configuration.ids if each in self.nodes]

    def leader(self) -> Machine | None:
        """The running leader of the highest term, None without one."""
        leaders = [machine for machine in self.nodes.values() if is_leader(machine)]
        return max(leaders, key=_term, default=None)

    def is_writable(self) -> bool:
        leader = self.leader()
        return (
            leader is not None
            and leader.process is not None
            and leader.process.broker is not None
            and leader.process.broker.core.log.is_writable()
        )

    def is_converged(self) -> bool:
        """All nodes run, and their disks hold one log, committed to its end."""
        leader = self.leader()
        ends = set()
        for machine in self.members():
            if machine.process is None or machine.process.broker is None:
                return False
            node = node_of(machine.process.broker)
            ends.add((node.term, node.leader_id, node.end_index, node.commit_index, node.persisted_index))
        if leader is None or len(ends) != 1:
            return False
        _, leader_id, end_index, commit_index, persisted_index = ends.pop()
        return leader_id == leader.name and end_index == commit_index == persisted_index

    def is_repaired(self) -> bool:
        """What was damaged is whole again."""
        damaged = [self.nodes[name] for name in sorted(self.checker.damaged) if name in self.nodes]
        return all(self.checker.missing(machine) == NO_INDEX for machine in damaged)

    def describe(self) -> str:
        return "; ".join(map(_describe, self.nodes.values()))


class Cluster(Generic[SummaryT]):
    """Built from options alone. A world says what runs on the machines, and what must hold."""

    faults: Faults

    def __init__(self, options: Options, *, is_tracing: bool) -> None:
        self.options = options
        self.rng = random.Random(options.seed)
        self.clock = VirtualClock()
        self.network = Network(self.clock, self.rng, options.network)
        self.network.user_timeout_ports.add(REPLICATION_PORT)
        self.lines: list[str] = []
        self.events = 0
        self._is_tracing = is_tracing
        self._failure: BaseException | None = None
        self.stalls = Stalls(options.seed, options.stalls)
        self.network.after_connecting = self.stalls.after_connecting
        self.surroundings = Surroundings(
            self.clock, self.network, self.rng, options.disk,
            self._on_error, self._on_exit, self._after_turn, self.trace, self.stalls,
        )  # fmt: skip

    # -- what a world says

    def describe(self) -> str:
        """What is so now, for an error."""
        raise NotImplementedError

    def _group_of(self, name: str) -> ReplicaGroup | None:
        """To which the node belongs; None: it is no node."""
        raise NotImplementedError

    def _run(self) -> SummaryT:
        raise NotImplementedError

    def _all_machines(self) -> Iterable[Machine]:
        raise NotImplementedError

    def _after_turn(self, machine: Machine) -> None:
        raise NotImplementedError

    # -- machines

    def _machine(self, name: str, ip: str, program: Program) -> Machine:
        skew_ppm = self.options.skew_ppm
        clock = MachineClock(self.rng.randint(0, 1 << 40), 1_000_000 + self.rng.randint(-skew_ppm, skew_ppm))
        return Machine(name, ip, program, self.surroundings, clock)

    def trace(self, name: str, text: str) -> None:
        if self._is_tracing:
            self.lines.append(f"{self.clock.now_us:>11} {name} {text}")

    def _on_error(self, machine: Machine, error: BaseException) -> None:
        self.trace(machine.name, f"fails: {error!r}")
        self.fail(InvariantError(f"{machine.name}: {error!r}", error))

    def fail(self, error: BaseException) -> None:
        """The run ends with this after the event under way."""
        if self._failure is None:
            self._failure = error

    def _on_exit(self, machine: Machine, code: int) -> None:
        self.faults.restart_later(machine, self.rng.randint(100, 1_000))

    def _stopped(self, process: Process, error: BaseException) -> None:
        """A node stopped by itself: only a disk that failed or was damaged is a reason."""
        name = process.machine.name
        self.trace(name, f"stops: {error!r}")
        is_of_disk = name in self.faults.failing_disks and isinstance(error, OSError)
        if not is_of_disk and not self.explains(name, error):
            self.fail(InvariantError(f"{name} stops: {error!r}", error))

    def explains(self, name: str, error: BaseException) -> bool:
        """Whether the node may say that its files are wrong: they are, or could not be read."""
        group = self._group_of(name)
        if group is None:
            return False
        is_failing = name in self.faults.failing_disks
        if isinstance(error, DamagedQueueError):
            return is_failing or name in group.checker.ever_damaged
        is_unreadable = is_failing and os.strerror(errno.EIO) in str(error)
        return is_of_damage(error) and (name in group.checker.damaged or is_unreadable)

    # -- moving time

    def run(self) -> SummaryT:
        """Safety under faults, then liveness without them. Raises on whatever must not happen."""
        watch = _LogWatch(self)
        watch.install()
        try:
            return self._run()
        finally:
            watch.remove()
            self._bury()

    def run_for(self, duration_ms: int) -> None:
        end_us = self.clock.now_us + 1_000 * duration_ms
        while self.clock.run_next(end_us):
            self._count()

    def run_until(self, condition: Callable[[], bool], what: str, limit_ms: int | None = None) -> int:
        """Runs until the condition holds, looked at ten times a second; how long it took, in ms.

        InvariantError naming `what` if it does not hold in time: LIVENESS_LIMIT_MS when no limit is given.
        """
        limit_ms = LIVENESS_LIMIT_MS if limit_ms is None else limit_ms
        begin_us = self.clock.now_us
        while not condition():
            elapsed_ms = (self.clock.now_us - begin_us) // 1_000
            require(elapsed_ms < limit_ms, "not within", limit_ms, "ms:", what, self.describe())
            self.run_for(100)
        return (self.clock.now_us - begin_us) // 1_000

    def _count(self) -> None:
        self.events += 1
        if self._failure is not None:
            raise self._failure
        require(self.events < EVENTS_MAX, "more than", EVENTS_MAX, "events")

    # -- the end

    def _read_group_back(
        self, group: ReplicaGroup, read: Callable[..., Coroutine[Any, Any, int]], ips: str
    ) -> None:
        """A reader takes everything from its first offset on. A leader may find only now, while it is read,
        that a bit of a queue was turned over, and stop, and one that was handing over may have done so: then
        all is read again at the next one. `read`: a workload's `read_back`; `ips`: the addresses of readers
        but for the last number.
        """
        for number in range(1, READERS_MAX + 1):
            leader = group.leader()
            assert leader is not None
            address = f"{leader.ip}:{LISTEN_PORT}"
            reader = self._machine(f"{READER}{number}", f"{ips}.{number}", partial(read, address=address))
            if self._read_at_leader(group, leader, reader):
                return
            self.run_until(group.is_converged, "all nodes at one end")
        require(False, "no leader stayed while it was read")

    def _read_at_leader(self, group: ReplicaGroup, leader: Machine, reader: Machine) -> bool:
        ended: list[int] = []

        def exited(machine: Machine, code: int) -> None:
            if machine is reader:
                ended.append(code)
            else:
                self._on_exit(machine, code)

        self.surroundings.on_exit = exited
        lives = leader.lives
        reader.start()

        def is_over() -> bool:
            return bool(ended) or leader.lives != lives or (group.leader() or leader) is not leader

        self.run_until(is_over, "everything is read again")
        if not ended:
            reader.stop_by_force(is_power_lost=False)
        return bool(ended)

    def _bury(self) -> None:
        """Ends every process, so that nothing is left for Python to warn of."""
        events._set_running_loop(None)
        for process in [machine.process for machine in self._all_machines()]:
            if process is not None:
                process.loop.kill()
                process.loop.bury()


def is_of_damage(error: BaseException) -> bool:
    """Whether this says that files are not what was written."""
    return isinstance(error, ValueError | CorruptLogError | DamagedRecordError)


def _term(machine: Machine) -> int:
    assert machine.process is not None
    assert machine.process.broker is not None
    return node_of(machine.process.broker).term


def _describe(machine: Machine) -> str:
    if machine.process is None:
        return f"{machine.name} down"
    if machine.process.broker is None:
        return f"{machine.name} starting"
    engine = engine_of(machine.process.broker)
    status = engine.status()
    return (
        f"{machine.name} {status.role.name} t{status.term} {status.begin_index}..{status.end_index}"
        f" c{status.commit_index} p{status.persisted_index} leader {status.leader_id}"
        f" {status.impairment or ''}"
    )


class _LogWatch(logging.Handler):
    """What the product logs as a fault of its own fails the run; a trace shows everything it logs."""

    def __init__(self, cluster: Cluster[Any]) -> None:
        super().__init__()
        self._cluster = cluster
        self._root = logging.getLogger()
        self._level = self._root.level

    def install(self) -> None:
        self._root.addHandler(self)
        self._root.setLevel(logging.INFO if self._cluster._is_tracing else logging.ERROR)

    def remove(self) -> None:
        self._root.removeHandler(self)
        self._root.setLevel(self._level)

    def emit(self, record: logging.LogRecord) -> None:
        loop = events._get_running_loop()
        self._cluster.trace(getattr(loop, "name", "?"), f"{record.levelname} {record.getMessage()}")
        error = record.exc_info[1] if record.exc_info else None
        name = getattr(loop, "name", "?")
        if error is not None and self._cluster.explains(name, error):
            return
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self._cluster.fail(InvariantError(f"logged: {record.getMessage()}: {error!r}", error))
