"""A group whose nodes are of the release before, and are replaced by this one, one after the other.

The simulated node of release 0.1.0 is this program with a transport that knows protocol 2 only, as that one
does: it answers a Hello with nothing, and reads no answer. It must never get what only protocol 3 or a higher
format level has. `tests/integration/test_rolling_upgrade.py` runs the real one.
"""

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from broker.app import Broker
from commitlog.entry_store import EntryStore
from dledger.codec import PROTOCOL_VERSION, version_needed
from dledger.core.membership import CHANGING_MEMBERS_LEVEL, FIXED_MEMBERS_LEVEL
from dledger.core.messages import Message
from dledger.core.types import ResponseCode
from dledger.server import DLedgerServer
from dledger.transport import Address, Transport, _Inbound
from tests.node_simulation.faults import is_leader
from tests.node_simulation.invariants import Checker, engine_of
from tests.node_simulation.machine import Machine, Process
from tests.node_simulation.options import UpgradeOptions
from tests.node_simulation.programs import NodeProgram
from tests.simulation.clock import VirtualClock
from tests.simulation.invariants import InvariantError, require

POLL_MS = 100
STOP_MS = 8_000
"""A node that has not stopped by itself is killed."""
INSTALLING_MS = 1_000
"""No release is replaced by another within less."""
COMMITTED_MIN = 2
"""A group without entries is a new one, which raises its level by itself when all nodes are of this release;
the upgrade begins later.
"""


class OldTransport(Transport):
    """Of release 0.1.0."""

    def opened(self, inbound: _Inbound) -> None:
        inbound._answer = lambda frame: None  # type: ignore[method-assign]  # neither a Welcome nor a Refused
        super().opened(inbound)

    def takes_generation(self, node_id: str, generation: int, dialled: Address | None) -> bool:
        """A Welcome is ignored: this is the first that is asked of one."""
        return True


class OldServer(DLedgerServer):
    """Of release 0.1.0, which cannot read what needs more."""

    def on_messages(self, sender: str, messages: list[Message]) -> None:
        for message in messages:
            if version_needed(message) > PROTOCOL_VERSION:
                self._fail(InvariantError(f"{sender} sends what release 0.1.0 cannot read: {message!r:.300}"))
        super().on_messages(sender, messages)


@dataclass(frozen=True, slots=True)
class OldNodeProgram(NodeProgram):
    """One broker node of the release before."""

    def make_broker(self, process: Process) -> Broker:
        broker = NodeProgram.make_broker(self, process)
        engine = engine_of(broker)
        engine.__class__ = OldServer
        engine._transport.__class__ = OldTransport
        engine._was_empty = False  # it raises no level, not even alone
        level = engine.members.configuration.format_level
        require(level == FIXED_MEMBERS_LEVEL, process.machine.name, "of 0.1.0 finds format level", level)
        store = engine._store
        assert isinstance(store, EntryStore)
        require(store._has_old_format, process.machine.name, "of 0.1.0 finds files of format 2")
        return broker


@dataclass(slots=True)
class Upgrades:
    """The operator, who replaces one node after the other, and may go back until he has ended the upgrade."""

    clock: VirtualClock
    options: UpgradeOptions
    rng: random.Random
    nodes: dict[str, Machine]
    checker: Checker
    trace: Callable[[str, str], None]
    on_finished: Callable[[], None]
    counts: dict[str, int] = field(default_factory=dict)
    _is_running: bool = False
    _has_finished: bool = False
    """There is no way back: the level was raised, or may be."""
    _replaced: Machine | None = None

    def start(self) -> None:
        self._is_running = True
        self._later(self._step)

    def stop(self) -> None:
        """No further node is replaced; who wants to end the upgrade does so, if all are of this release."""
        self._is_running = False

    def is_over(self) -> bool:
        return not self._may_finish() or self._is_level_raised()

    def _is_level_raised(self) -> bool:
        last = self.checker.configuration
        return last is not None and last.configuration.format_level >= CHANGING_MEMBERS_LEVEL

    def _later(self, call: Callable[[], None]) -> None:
        self.clock.schedule(1_000 * self.rng.randint(POLL_MS, 2 * self.options.step_ms), call)

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def _old(self) -> list[Machine]:
        return [machine for machine in self.nodes.values() if is_old(machine)]

    def _may_finish(self) -> bool:
        return self.options.is_finished and not self._old() and self._replaced is None

    def _step(self) -> None:
        if self._is_level_raised():
            self._count("upgrade finished")
            if self._is_running:
                self.on_finished()
            return
        self._later(self._step)
        old = self._old()
        draw = self.rng.random()
        if self._replaced is not None or self.checker.commit_index < COMMITTED_MIN:
            return
        if self._has_finished or self._may_finish():
            if draw >= self.options.back_probability or self._has_finished or not self._is_running:
                self._finish()
            else:
                self._replace(self.rng.choice(list(self.nodes.values())))
        elif self._is_running and draw < self.options.early_probability:
            self._finish()
        elif self._is_running:
            new = [machine for machine in self.nodes.values() if machine not in old]
            is_back = bool(new) and (not old or self.rng.random() < self.options.back_probability)
            if not is_back or self.options.back_probability:
                self._replace(self.rng.choice(new if is_back else old))

    # -- one node

    def _replace(self, machine: Machine) -> None:
        self._count("downgraded" if not is_old(machine) else "upgraded")
        self._replaced = machine
        machine.is_gone = True  # nothing starts it again but the operator
        machine.resume()
        if machine.process is not None and self.rng.random() < self.options.clean_probability:
            machine.process.loop.signal(signal.SIGTERM)
            self.clock.schedule(1_000 * STOP_MS, lambda: self._kill(machine))
        else:
            self._kill(machine)
        self._await_stopped(machine)

    def _kill(self, machine: Machine) -> None:
        if machine.is_up and machine.is_gone:
            machine.stop_by_force(is_power_lost=self.rng.random() < 0.5)

    def _await_stopped(self, machine: Machine) -> None:
        if machine.is_up:
            self.clock.schedule(1_000 * POLL_MS, lambda: self._await_stopped(machine))
            return
        assert isinstance(machine.program, NodeProgram)
        program = NodeProgram if is_old(machine) else OldNodeProgram
        machine.program = program(machine.program.config, machine.program.on_stopped)
        self.trace(machine.name, f"is to run {program.__name__}")
        down_ms = self.rng.randint(INSTALLING_MS, INSTALLING_MS + self.options.down_max_ms)
        self.clock.schedule(1_000 * down_ms, lambda: self._begin(machine))

    def _begin(self, machine: Machine) -> None:
        machine.is_gone = False
        machine.start()
        self._replaced = None

    # -- the last step

    def _finish(self) -> None:
        """`upgrade-finish`, which a leader of this release refuses while a member is of another one."""
        leaders = [machine for machine in self.nodes.values() if is_leader(machine) and not is_old(machine)]
        if not leaders:
            return
        leader = self.rng.choice(leaders)
        assert leader.process is not None
        assert leader.process.broker is not None
        leader.process.loop.call_soon(self._propose, engine_of(leader.process.broker))

    def _propose(self, engine: DLedgerServer) -> None:
        current = engine.members.configuration
        if current.format_level >= CHANGING_MEMBERS_LEVEL:
            return
        if self._replaced is not None and not self._has_finished:
            return  # the leader stood still, and a node is replaced meanwhile
        is_early = bool(self._old())
        wanted = replace(current, format_level=CHANGING_MEMBERS_LEVEL)
        code = engine.propose_configuration(wanted, lambda code: None)
        if code is ResponseCode.SUCCESS:
            self._has_finished = True
        elif is_early:
            self._count("upgrade-finish refused: a member is of the release before")


def is_old(machine: Machine) -> bool:
    return isinstance(machine.program, OldNodeProgram)
