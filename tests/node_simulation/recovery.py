"""A majority of a group is gone for good, and an operator goes on with one node, as `ledgermq recover` does.

What was on the other disks only is lost. The group grows again by empty machines. Those of before that still
have their files come back now and then, so few that they cannot elect a leader, and once in a while the
operator forgets to empty one that he adds.
"""

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from broker.config import BrokerConfig
from broker.store.recovery import (
    Plan,
    Remains,
    StoppedStore,
    most_complete,
    plan_decision,
    stopped_store,
)
from dledger.core.membership import CHANGING_MEMBERS_LEVEL, Configuration, Member, MemberRole
from dledger.core.types import NO_INDEX, ResponseCode
from dledger.durable_state import VOTE_FILE_NAME
from dledger.environment import Environment
from dledger.server import DLedgerServer
from tests.node_simulation.faults import is_leader
from tests.node_simulation.invariants import Checker, engine_of
from tests.node_simulation.machine import Machine
from tests.node_simulation.membership import Machines
from tests.node_simulation.net import Network
from tests.node_simulation.options import RecoveryOptions
from tests.node_simulation.programs import NodeProgram
from tests.simulation.clock import VirtualClock
from tests.simulation.invariants import require
from tests.support.memory_fs import PowerLossError

POLL_MS = 100
STOP_MS = 8_000
"""A node that has not stopped by itself is killed."""
COMMITTED_MIN = 5
NOTE = {"by": "operator@simulation"}
ENDS = ("terminate", "kill", "power")
CHANGES_MAX = 25
FORGOTTEN_MS = 3_000
CUT_OFF_MS = 3_000


@dataclass(slots=True)
class Recovery:
    """The operator. `root`: the folder of every store."""

    clock: VirtualClock
    options: RecoveryOptions
    rng: random.Random
    machines: Machines
    checker: Checker
    network: Network
    root: Path
    trace: Callable[[str, str], None]
    counts: dict[str, int] = field(default_factory=dict)
    _voters: int = 0
    """So many the group has again at last."""
    _disasters: int = 0
    _is_running: bool = False
    _is_recovering: bool = False
    _candidate: Machine | None = None
    """The one that is to be the next member: it runs, and has an empty disk."""
    _old: dict[str, Remains] = field(default_factory=dict)
    """By machine, what those of an earlier generation have that kept their files."""

    def start(self) -> None:
        self._is_running = True
        self._voters = len(self.machines.nodes)
        self.checker.may_lose = self.checker.are_members_changing = True
        self._later(self.rng.randint(500, self.options.first_ms), self._strike)
        self._later(1_000, self._grow)
        self._later(1_000, self._return)

    def stop(self) -> None:
        """No further disaster; what was begun goes on."""
        self._is_running = False

    def is_over(self) -> bool:
        """Whether the group is as large as it was, of empty machines and the one that was left."""
        last = self.checker.configuration
        voters = 0 if last is None else len(last.configuration.voters)
        is_large = not self._disasters or voters >= self._voters
        return not self._is_recovering and self._candidate is None and is_large

    def is_recovering(self) -> bool:
        """From the end of a majority until a node leads alone: members do not change."""
        return self._is_recovering

    def is_reserved(self, name: str) -> bool:
        """Whether a machine has files of an earlier generation, or is the next that joins."""
        return name in self._old or (self._candidate is not None and name == self._candidate.name)

    def _later(self, delay_ms: int, call: Callable[[], None]) -> None:
        self.clock.schedule(1_000 * delay_ms, call)

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    # -- the end of a majority

    def _strike(self) -> None:
        if not self._is_running:
            return
        victims = self._victims()
        if not victims:
            self._later(POLL_MS, self._strike)
            return
        self._disasters += 1
        self._is_recovering = True
        if self.options.cut_max_ms:
            ips = [machine.ip for machine in victims]
            others = [machine.ip for machine in self.machines.nodes.values() if machine not in victims]
            self.network.cut_both(ips, others)
        self._later(self.rng.randint(0, self.options.cut_max_ms), lambda: self._lose(victims))

    def _lose(self, victims: list[Machine]) -> None:
        """Before, they may have gone on without the others for a while."""
        self._count("majority gone")
        for machine in victims:
            machine.is_gone = True
            if machine.is_up:
                machine.stop_by_force(is_power_lost=self.rng.random() < 0.5)
        self._later(self.rng.randint(0, self.options.notice_ms), lambda: self._stop_survivors(victims))

    def _victims(self) -> list[Machine]:
        """A majority of the voters, and some of the others; none while a node that would be left has not got
        its place yet.
        """
        last = self.checker.configuration
        nodes = self.machines.nodes
        if last is None or not self.is_over() or self.checker.commit_index < COMMITTED_MIN:
            return []
        voters = last.configuration.voters
        ids = last.configuration.ids
        if last.configuration.format_level < CHANGING_MEMBERS_LEVEL or set(ids) != set(nodes):
            return []
        if len(voters) < 2 or not all(_has_log(machine) for machine in nodes.values()):
            return []
        left = self.rng.randint(1, last.configuration.quorum - 1)
        gone = self.rng.sample(voters, len(voters) - left)
        gone += [name for name in ids if name not in voters and self.rng.random() < 0.5]
        return [nodes[name] for name in gone]

    def _stop_survivors(self, gone: list[Machine]) -> None:
        survivors = [machine for machine in self.machines.nodes.values() if machine not in gone]
        for machine in survivors:
            machine.is_gone = True  # nothing starts it again but the operator
            machine.resume()
            if machine.is_up:
                self._end(machine, self.rng.choice(ENDS))
        self._later(STOP_MS, lambda: self._kill(survivors))
        self._await_stopped(survivors, gone)

    def _end(self, machine: Machine, how: str) -> None:
        assert machine.process is not None
        if how == "terminate":
            machine.process.loop.signal(signal.SIGTERM)
        else:
            machine.stop_by_force(is_power_lost=how == "power")

    def _kill(self, machines: list[Machine]) -> None:
        for machine in machines:
            if machine.is_up and machine.is_gone:
                machine.stop_by_force(is_power_lost=False)

    def _await_stopped(self, survivors: list[Machine], gone: list[Machine]) -> None:
        if any(machine.is_up for machine in survivors):
            self._later(POLL_MS, lambda: self._await_stopped(survivors, gone))
        else:
            self._recover(survivors, gone)

    # -- the decision

    def _recover(self, survivors: list[Machine], gone: list[Machine]) -> None:
        self.network.heal()  # a gone machine may be a new member later, with the address that was cut off
        for machine in [*survivors, *gone]:
            machine.fs.used = 0.0
            machine.fs.heal()
        committed = self.checker.committed
        written = {
            machine.name: [self.checker.disks.has_written(machine, entry) for entry in committed]
            for machine in survivors
        }
        self._lose_votes(survivors)
        chosen = self._choose(survivors)
        own = self._remains(chosen)
        if own.is_alone and own.impairment is None:
            self._go_on_undecided(survivors)
            return
        self._decide(chosen, survivors)
        (first_lost,) = [
            index for index in range(own.begin_index, len(committed) + 1)
            if index == len(committed) or not written[chosen.name][index]
        ][:1]  # fmt: skip
        self._judge(chosen, own, first_lost)
        for machine in [*survivors, *gone]:
            if machine is not chosen:
                self._leave(machine)
        self._stop_removed()
        chosen.is_gone = self._is_recovering = False
        chosen.start()
        if self._is_running and self._disasters < self.options.disasters_max:
            self._later(self.rng.randint(500, self.options.first_ms), self._strike)

    def _go_on_undecided(self, survivors: list[Machine]) -> None:
        """A change that was under way when the others ended has left one voter, who leads when it starts."""
        self._count("recover: nothing to decide")
        self._disasters -= 1
        self._is_recovering = False
        for machine in survivors:
            machine.is_gone = False
            machine.start()
        self._later(self.rng.randint(500, self.options.first_ms), self._strike)

    def _lose_votes(self, survivors: list[Machine]) -> None:
        for machine in survivors:
            paths = [path for path in machine.fs.paths() if path.name == VOTE_FILE_NAME]
            if self.rng.random() < self.options.vote_lost_probability and paths:
                self._count("recover: vote file lost")
                machine.fs.remove(paths[0])

    def _choose(self, survivors: list[Machine]) -> Machine:
        """Mostly the one with the most complete log; never one without any."""
        remains = {machine.name: self._remains(machine) for machine in survivors}
        best = most_complete(list(remains.values()))
        others = [
            each for each in remains.values() if each is not best and each.end_index >= each.begin_index
        ]
        if others and self.rng.random() < self.options.other_probability:
            best = self.rng.choice(others)
            self._count("recover: with another log than the most complete one")
        return self.machines.nodes[best.node_id]

    def _decide(self, machine: Machine, survivors: list[Machine]) -> None:
        """Until the command has done it: it may be killed, or its machine loses power, at any change of a
        file.
        """
        while True:
            crash = self.rng.choice(("", "", "kill", "power"))
            try:
                with self._interrupted(machine, bool(crash)):
                    self._command(machine, survivors)
            except PowerLossError:
                self._count(f"recover: {crash} while it decides")
                machine.fs.end_process()
                if crash == "power":
                    machine.lose_power()
                continue
            break
        self._count("recover")
        if self.rng.random() < 0.5:
            machine.fs.end_process()
            machine.lose_power()  # what the command has decided is durable when it ends

    @contextmanager
    def _interrupted(self, machine: Machine, is_crashing: bool) -> Iterator[None]:
        changes = self.rng.randint(0, CHANGES_MAX) if is_crashing else -1

        def before_change() -> None:
            nonlocal changes
            if changes == 0:
                raise PowerLossError
            changes -= 1

        machine.fs.on_change = before_change
        try:
            yield
        finally:
            machine.fs.on_change = lambda: None

    def _command(self, machine: Machine, survivors: list[Machine]) -> None:
        """What `ledgermq recover decide` calls."""
        with ExitStack() as stack:
            own, *others = [
                stack.enter_context(self._opened(each))
                for each in (machine, *(each for each in survivors if each is not machine))
            ]
            plan = self._plan(machine, own.remains, [each.remains for each in others])
            if plan is not None:
                self.trace(machine.name, f"recover decides: {plan}")
                own.decide(plan, NOTE)

    def _plan(self, machine: Machine, own: Remains, others: list[Remains]) -> Plan | None:
        """None when it was decided before the command was interrupted. Stores with more are not shown to the
        command: it would refuse.
        """
        generation = own.newest.configuration.generation
        if own.is_alone and own.impairment is None and generation == self._disasters:
            return None
        known = [each for each in others if most_complete((own, each)) is own]
        return plan_decision(_config(machine), own, known, is_impaired_trusted=own.impairment is not None)

    @contextmanager
    def _opened(self, machine: Machine) -> Iterator[StoppedStore]:
        with stopped_store(_config(machine), self.root, self._environment(machine)) as store:
            yield store

    def _environment(self, machine: Machine) -> Environment:
        clock, wall = self.clock, machine.clock
        return Environment(
            machine.fs,
            lambda: wall.monotonic_us(clock.now_us) // 1_000,
            lambda: wall.wall_ms(clock.now_us),
            random.Random(self.rng.getrandbits(64)),
        )

    def _remains(self, machine: Machine) -> Remains:
        machine.fs.on_change = lambda: None
        with self._opened(machine) as store:
            return store.remains

    def _judge(self, machine: Machine, before: Remains, first_lost: int) -> None:
        """What the node's disk had is kept, durably, and the decision stands behind it."""
        name, after, checker = machine.name, self._remains(machine), self.checker
        decision = after.newest
        expected = (before.end_index + 1, (name,), self._disasters)
        found = (decision.index, decision.configuration.voters, decision.configuration.generation)
        require(found == expected, name, "is decided on as", found, "not", expected)
        require(after.impairment is None, name, "is decided on, and impaired:", after.impairment)
        require(first_lost > before.commit_index, name, "knew to be committed", before.commit_index)
        require(first_lost <= before.end_index + 1, name, "says that it ends at", before.end_index)
        for index in range(before.begin_index, first_lost):
            is_kept = checker.disks.has(
                machine, checker.committed[index].position, checker.committed[index].data
            )
            require(is_kept, name, "does not keep", index, "durably, of", first_lost)
        lost = checker.recovered(machine, first_lost, decision)
        if lost:
            self._count("recover: acknowledged entries lost")
        if lost and first_lost <= before.end_index:
            self._count("recover: others in the place of lost entries")

    def _leave(self, machine: Machine) -> None:
        """It is a member no more; its disk is gone too, or it keeps its old files."""
        if self.rng.random() < self.options.disk_gone_probability:
            self.machines.retire(machine)
            self._empty(machine)
            return
        remains = self._remains(machine)
        self.machines.retire(machine)
        self._old[machine.name] = remains

    def _stop_removed(self) -> None:
        """Those that were removed before are of an earlier generation from here on, too."""
        for machine in self.machines.removed:
            if machine.name in self._old or not machine.fs.paths():
                continue
            if machine.is_up:
                machine.stop_by_force(is_power_lost=False)
            machine.is_gone = True
            self._old[machine.name] = self._remains(machine)

    def _empty(self, machine: Machine) -> None:
        self._old.pop(machine.name, None)
        self.checker.outdated.pop(machine.name, None)
        self.checker.wiped.add(machine.name)
        machine.fs.on_change = lambda: None
        for path in machine.fs.paths():
            machine.fs.remove(path)

    # -- those of an earlier generation

    def _return(self) -> None:
        """Now and then one that kept its files is started with them."""
        names = [name for name in self._old if self._may_return(name)]
        if names and not self._is_recovering and self.rng.random() < self.options.return_probability:
            name = self.rng.choice(names)
            self._start_old(self._machine_of(name))
        self._later(1_000, self._return)

    def _start_old(self, machine: Machine) -> None:
        remains = self._old[machine.name]
        self._count("member of an earlier generation started")
        self.checker.outdated[machine.name] = (remains.end_index, remains.end_term)
        machine.is_gone = False
        machine.start()

    def _machine_of(self, name: str) -> Machine:
        return next(machine for machine in self.machines.removed if machine.name == name)

    def _may_return(self, name: str) -> bool:
        """Whether those of before that run are no majority with it: that would be a second group, and the
        command warns of it. What has no log or no vote is not of an earlier generation for long.
        """
        remains = self._old[name]
        if name in self.checker.outdated or remains.end_index == NO_INDEX or remains.impairment is not None:
            return False
        running = {name, *self.checker.outdated}
        configurations = [entry.configuration for each in running for entry in self._old[each].configurations]
        return all(2 * len(running.intersection(each.voters)) <= len(each.voters) for each in configurations)

    # -- the group grows again

    def _grow(self) -> None:
        self._later(self.rng.randint(300, 1_500), self._grow)
        leaders = [machine for machine in self.machines.nodes.values() if is_leader(machine)]
        if self._is_recovering or not self._disasters or not leaders:
            return
        leader = self.rng.choice(leaders)
        assert leader.process is not None
        assert leader.process.broker is not None
        engine = engine_of(leader.process.broker)
        configuration = engine.members.configuration
        self._review_candidate(configuration)
        if len(configuration.voters) >= self._voters or any(
            each.role is MemberRole.JOINING for each in configuration.members
        ):
            return
        if self._candidate is None:
            self._candidate = self._new_machine(configuration)
        machine = self._candidate
        leader.process.loop.call_soon(self._add, engine, machine)

    def _review_candidate(self, configuration: Configuration) -> None:
        """It has its vote, or is dead, or the group has grown without it."""
        machine = self._candidate
        if machine is None:
            return
        is_full = len(configuration.voters) >= self._voters
        is_needless = is_full and configuration.member(machine.name) is None
        if configuration.is_voter(machine.name) or machine.is_gone or is_needless:
            self._candidate = None

    def _add(self, engine: DLedgerServer, machine: Machine) -> None:
        member = Member(machine.name, machine.ip, self.machines.port, MemberRole.JOINING)

        def done(code: ResponseCode) -> None:
            self._count("member added after recover" if code is ResponseCode.SUCCESS else "not added")

        self.trace(machine.name, "is added")
        engine.propose_configuration(engine.members.configuration.with_member(member), done)

    def _new_machine(self, configuration: Configuration) -> Machine:
        """One with an empty disk: a new one, or one of before; or the operator forgets to empty that."""
        removed = [each for each in self.machines.removed if configuration.member(each.name) is None]
        if not removed or self.rng.random() < 0.3:
            machine = self.machines.make(f"m{len(self.checker.joined)}", configuration)
            machine.start()
            return machine
        machine = self.rng.choice(removed)
        name = machine.name
        may_forget = name in self._old and (name in self.checker.outdated or self._may_return(name))
        if may_forget and self.rng.random() < self.options.forget_probability:
            self._count("member added with its old files")
            if not machine.is_up:
                self._start_old(machine)
            self._later(FORGOTTEN_MS, lambda: self._begin_empty(machine))
        else:
            self._begin_empty(machine)
        return machine

    def _begin_empty(self, machine: Machine) -> None:
        if machine.is_up:
            machine.stop_by_force(is_power_lost=False)
        self._empty(machine)
        machine.is_gone = False
        self.machines.recall(machine)
        last = self.checker.configuration
        assert last is not None
        self.machines.rewrite(machine, last.configuration)
        machine.start()
        if self.options.early_kill_probability and self.rng.random() < self.options.early_kill_probability:
            self._kill_early(machine)

    def _kill_early(self, machine: Machine) -> None:
        """What it has promised until then is in its vote file only. It starts again cut off from its group:
        those of an earlier generation reach it first.
        """
        broker = None if machine.process is None else machine.process.broker
        if self._candidate is not machine or (broker is not None and _has_log(machine)):
            return
        if broker is None or engine_of(broker).status().term == 0:
            self._later(1, lambda: self._kill_early(machine))
            return
        self._count("new member killed before its first entry")
        machine.stop_by_force(is_power_lost=self.rng.random() < 0.5)
        others = [each.ip for each in self.machines.nodes.values() if each is not machine]
        self.network.cut_both([machine.ip], others)
        self._later(self.rng.randint(0, 500), lambda: self._start_again(machine))
        self._later(CUT_OFF_MS, self.network.heal)

    @staticmethod
    def _start_again(machine: Machine) -> None:
        if not machine.is_up and not machine.is_gone:
            machine.start()


def _config(machine: Machine) -> BrokerConfig:
    assert isinstance(machine.program, NodeProgram)
    return machine.program.config


def _has_log(machine: Machine) -> bool:
    """Whether its node runs with entries and a vote."""
    broker = None if machine.process is None else machine.process.broker
    return broker is not None and (
        engine_of(broker).persisted_index > NO_INDEX and engine_of(broker).status().impairment is None
    )
