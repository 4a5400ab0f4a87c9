"""Members that change while the group runs: changes drawn at random, and what becomes of machines.

A machine that is added starts with an empty disk and a configuration file that says so (`dLegerJoin`). One
that is removed is switched off, or goes on for ever, or comes back with an empty disk and the file it had.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dledger.core.membership import CHANGING_MEMBERS_LEVEL, Configuration, Member, MemberRole
from dledger.core.types import ResponseCode
from dledger.server import DLedgerServer
from tests.node_simulation.damage import Damage
from tests.node_simulation.faults import is_leader
from tests.node_simulation.invariants import Checker, engine_of
from tests.node_simulation.machine import Machine
from tests.node_simulation.options import MembershipOptions
from tests.node_simulation.programs import NodeProgram
from tests.simulation.clock import VirtualClock

KINDS = ("add", "add", "learner", "promote", "remove", "remove leader", "replace", "replace dead", "move")
WATCH_MS = 1_000
WRONG_S = 3
"""So long a machine may be no member, or not at its address, before it follows the configuration."""
GONE_AFTER_US = 3_000_000


@dataclass(slots=True)
class Machines:
    """What a world offers for them. `make`: a machine with an empty disk, which joins when it is started.
    `move`: one that is down gets another address. `retire`: it is a member no more.
    `recall`: and may become one again. `rewrite`: its configuration file says that it joins these members.
    """

    nodes: dict[str, Machine]
    removed: list[Machine]
    port: int
    make: Callable[[str, Configuration], Machine]
    new_ip: Callable[[], str]
    move: Callable[[Machine, str], None]
    retire: Callable[[Machine], None]
    recall: Callable[[Machine], None]
    rewrite: Callable[[Machine, Configuration], None]


@dataclass(slots=True)
class MemberChanges:
    """The operator. He decides by what the leader says, and tries again another time when he is refused."""

    clock: VirtualClock
    options: MembershipOptions
    rng: random.Random
    machines: Machines
    checker: Checker
    damage: Damage
    trace: Callable[[str, str], None]
    counts: dict[str, int] = field(default_factory=dict)
    is_paused: Callable[[], bool] = lambda: False
    """Whether nothing is changed now, and no machine moved."""
    is_reserved: Callable[[str], bool] = lambda name: False
    """Whether another operator has a machine, who alone decides when it leaves or comes back."""
    _is_running: bool = False
    _wrong_s: dict[str, int] = field(default_factory=dict)
    """By machine, for how long no configuration has had it, or it has not been where it is said to be."""
    _made: int = 0
    _emptied: set[str] = field(default_factory=set)
    """Machines that came back with an empty disk and the file they had."""

    def start(self) -> None:
        self._is_running = True
        self._made = len(self.machines.nodes)
        self._repeat()
        self._watch()

    def stop(self) -> None:
        """No further changes; those under way go on."""
        self._is_running = False

    def _repeat(self) -> None:
        if self._is_running:
            self.clock.schedule(1_000 * self.rng.randint(0, 2 * self.options.change_ms), self._strike)

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    # -- changes

    def _strike(self) -> None:
        leaders = [machine for machine in self.machines.nodes.values() if is_leader(machine)]
        if self._is_running and leaders and not self.is_paused():
            leader = self.rng.choice(leaders)
            assert leader.process is not None
            assert leader.process.broker is not None
            engine = engine_of(leader.process.broker)
            kind = self.rng.choice(KINDS)
            new = self._change(kind, leader, engine.members.configuration)
            if new is not None and self._keeps_majority(new):
                leader.process.loop.call_soon(self._propose, kind, engine, new)
        self._repeat()

    def _propose(self, kind: str, engine: DLedgerServer, new: Configuration) -> None:
        """`_watch` has the machines follow what comes of it."""

        machines = self.machines.nodes
        if not all(each in machines for each in new.ids) or not self._keeps_majority(new):
            self._count("member change given up")  # the leader stood still, and machines have left meanwhile
            return
        self.trace(kind, f"{engine.config.self_id} proposes {new}")

        def done(code: ResponseCode) -> None:
            self._count(f"member change: {kind}" if code is ResponseCode.SUCCESS else "member change failed")

        if engine.propose_configuration(new, done) is not ResponseCode.SUCCESS:
            self._count("member change refused")

    def _keeps_majority(self, new: Configuration) -> bool:
        """Whether a majority of these machines will run again."""
        machines = self.machines.nodes
        running = [each for each in new.voters if each in machines and not machines[each].is_gone]
        return 2 * len(running) > len(new.voters)

    def _change(self, kind: str, leader: Machine, old: Configuration) -> Configuration | None:
        """The configuration of its first step; None when this group cannot have it."""
        if old.format_level < CHANGING_MEMBERS_LEVEL:
            return replace(old, format_level=CHANGING_MEMBERS_LEVEL)
        rng, voters = self.rng, old.voters
        others = [each for each in old.members if each.id != leader.name]
        if kind in ("add", "learner"):
            role = MemberRole.LEARNER if kind == "learner" else MemberRole.JOINING
            member = self._new_member(old, role) if len(voters) < self.options.voters_max else None
            return None if member is None else old.with_member(member)
        if kind == "promote":
            learners = [each for each in old.members if each.role is MemberRole.LEARNER]
            return (
                old.with_member(replace(rng.choice(learners), role=MemberRole.JOINING)) if learners else None
            )
        if kind == "remove leader":
            return old.without(leader.name) if len(voters) > 1 else None
        if not others:
            return None
        victim = rng.choice(others)
        if kind == "remove":
            return None if voters == (victim.id,) else old.without(victim.id)
        if kind == "move":
            return self._moved(old, victim)
        return self._replaced(kind, old, victim)

    def _new_member(self, old: Configuration, role: MemberRole, replaces: str | None = None) -> Member | None:
        """On a machine that was a member once, with its old disk or an empty one, or on a new one."""
        removed = [
            machine
            for machine in self.machines.removed
            if old.member(machine.name) is None and not self.is_reserved(machine.name)
        ]
        if removed and self.rng.random() < 0.5:
            machine = self.rng.choice(removed)
            self.machines.recall(machine)
            self._rewrite(machine, old)
        elif len(self.machines.nodes) < self.options.machines_max:
            self._made += 1
            machine = self.machines.make(f"n{self._made - 1}", old)
        else:
            return None
        self._wrong_s[machine.name] = 0
        self._up_as_member(machine)
        return Member(machine.name, machine.ip, self.machines.port, role, replaces)

    def _rewrite(self, machine: Machine, members: Configuration) -> None:
        """After a recovery: one that has no entry of the group's generation yet takes it from those that its
        file names.
        """
        if self.checker.decision is not None:
            if machine.is_up:
                machine.stop_by_force(is_power_lost=False)
            self.machines.rewrite(machine, members)

    def _moved(self, old: Configuration, member: Member) -> Configuration:
        return old.with_member(replace(member, host=self.machines.new_ip()))

    def _up(self, machine: Machine) -> None:
        if not machine.is_up and not machine.is_gone:
            machine.start()

    def _up_as_member(self, machine: Machine) -> None:
        """Also with an empty disk and a file from when it was the only one: with the members in the file."""
        machine.is_gone = False
        if not machine.is_up and self._is_whole_group(machine):
            self.machines.move(machine, machine.ip)
        self._up(machine)

    def _replaced(self, kind: str, old: Configuration, victim: Member) -> Configuration | None:
        machine = self.machines.nodes.get(victim.id)
        if machine is None or not victim.is_voter:
            return None
        is_dead = kind == "replace dead"
        if is_dead and not self._may_die(machine, old):
            return None
        member = self._new_member(old, MemberRole.JOINING, victim.id)
        if member is not None and is_dead:
            machine.stop_by_force(is_power_lost=True)
            self.damage.strike(machine, "wipe")
            machine.is_gone = True
        return None if member is None else old.with_member(member)

    def _may_die(self, machine: Machine, old: Configuration) -> bool:
        """Whether the others are a majority without it, and stay one."""
        is_majority = 2 * (len(old.voters) - 1) > len(old.voters)
        return machine.is_up and is_majority and self.damage.may_strike(machine, old.voters)

    # -- machines

    def _watch(self) -> None:
        """Has the machines follow the configuration: those that are no members leave, others move."""
        if self.checker.in_use and not self.is_paused():
            self._bring_back()
            known = self.checker.known_ids()
            for name, machine in list(self.machines.nodes.items()):
                member = self.checker.newest.configuration.member(name)
                has_place = name in known or self.is_reserved(name)
                is_right = has_place and (member is None or member.host in ("", machine.ip))
                self._wrong_s[name] = 0 if is_right else self._wrong_s.get(name, 0) + 1
                if self._wrong_s[name] > WRONG_S:
                    self._put_right(machine, member)
        self.clock.schedule(1_000 * WATCH_MS, self._watch)

    def _bring_back(self) -> None:
        """A machine that was to be replaced gets an empty disk when in the end nothing came of that."""
        newest = self.checker.newest.configuration
        replaced = {each.replaces for each in newest.members}
        for name, machine in self.machines.nodes.items():
            is_needed = newest.member(name) is not None and name not in replaced
            if machine.is_gone and is_needed and not self._is_running:
                self._rewrite(machine, newest)
                self._up_as_member(machine)

    def _put_right(self, machine: Machine, member: Member | None) -> None:
        if member is None or member.host in ("", machine.ip):
            self._leave(machine)
            return
        self._count("member moved")
        self._wrong_s[machine.name] = 0
        if machine.is_up:
            machine.stop_by_force(is_power_lost=False)
        self.machines.move(machine, member.host)
        self.clock.schedule(self.rng.randint(0, 500_000), lambda: self._up(machine))

    def _leave(self, machine: Machine) -> None:
        self.trace(machine.name, "is a member no more")
        self.machines.retire(machine)
        if self.rng.random() < self.options.left_running_probability:
            self._count("removed member left running")
            self._up(machine)
            return
        is_stranger = self.rng.random() < self.options.stranger_probability
        self.clock.schedule(
            self.rng.randint(0, GONE_AFTER_US), lambda: self._switch_off(machine, is_stranger=is_stranger)
        )

    def _switch_off(self, machine: Machine, *, is_stranger: bool) -> None:
        if machine not in self.machines.removed or self.is_reserved(machine.name):
            return
        if machine.is_up:
            machine.stop_by_force(is_power_lost=True)
        if is_stranger and not self._is_whole_group(machine):
            machine.is_gone = False
            self._emptied.add(machine.name)
            self._count("stranger with an old configuration")
            self.checker.wiped.add(machine.name)
            for path in machine.fs.paths():
                machine.fs.remove(path)
            machine.start()

    def _is_whole_group(self, machine: Machine) -> bool:
        """Whether all members of its file would be empty then: these are another group, as any new one."""
        assert isinstance(machine.program, NodeProgram)
        config = machine.program.config
        ids = {peer.id for peer in config.peers}
        return not config.dledger_join and ids <= self._emptied | {machine.name}
