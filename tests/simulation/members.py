"""Changes of the members while faults strike: random ones, proposed at whichever node believes that it leads.

Nodes beyond the first members wait with empty disks, as joining ones do. A removed node stays up, is stopped
for ever, or gets an empty disk, after which it may be added again under its name.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dledger.core.membership import (
    CHANGING_MEMBERS_LEVEL,
    Configuration,
    ConfigurationError,
    Member,
    MemberRole,
)
from dledger.core.types import ResponseCode, Role
from tests.simulation.clock import VirtualClock
from tests.simulation.host import Host


@dataclass(frozen=True, slots=True)
class MembersOptions:
    """`spares`: nodes that are no members at first. `interval_ms`: mean virtual milliseconds between changes,
    0 = never. `reckless_probability`: how often a change is wanted that no leader may make in one step.
    """

    spares: int = 0
    interval_ms: int = 0
    wipe_probability: float = 0.0
    reckless_probability: float = 0.0
    voters_min: int = 1


def draw_members(seed: int) -> MembersOptions:
    """The options of a seed; always the same ones."""
    rng = random.Random(f"{seed} members")
    return MembersOptions(
        spares=rng.choice((1, 2, 3, 4)),
        interval_ms=rng.choice((50, 150, 400, 1_000)),
        wipe_probability=rng.choice((0.0, 0.3, 0.7)),
        reckless_probability=rng.choice((0.0, 0.1, 0.3)),
        voters_min=rng.choice((1, 2, 3)),
    )


def member(name: str, role: MemberRole = MemberRole.VOTER, replaces: str | None = None) -> Member:
    """Simulated hosts find each other by name."""
    return Member(name, "", 0, role, replaces)


class MemberChanges:
    """Changes until `stop`."""

    def __init__(
        self, clock: VirtualClock, seed: int, options: MembersOptions, hosts: Mapping[str, Host]
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._rng = random.Random(f"{seed} members run")
        self._options = options
        self._hosts = hosts
        self._is_running = False

    def start(self) -> None:
        self._is_running = True
        if self._options.interval_ms:
            self._repeat()

    def stop(self) -> None:
        self._is_running = False

    def _repeat(self) -> None:
        def strike() -> None:
            if self._is_running:
                self._strike()
                self._repeat()

        self._clock.schedule(self._rng.randint(0, 2_000 * self._options.interval_ms), strike)

    def _strike(self) -> None:
        if self._rng.random() < self._options.wipe_probability:
            self._wipe_one()
        leaders = [host for host in self._hosts.values() if host.is_up and host.node.role is Role.LEADER]
        if not leaders:
            return
        leader = self._rng.choice(leaders)
        current = leader.node.members.configuration
        if current.format_level < CHANGING_MEMBERS_LEVEL:
            self._propose(leader, "level", replace(current, format_level=CHANGING_MEMBERS_LEVEL))
            return
        kind = self._rng.choice(("add", "add learner", "replace", "remove", "remove", "promote", "demote"))
        try:
            wanted = self._wanted(kind, current)
        except ConfigurationError:
            return
        if wanted is not None and self._rng.random() < self._options.reckless_probability:
            wanted = self._more(wanted)
        if wanted is not None:
            self._propose(leader, kind, wanted)

    def _propose(self, leader: Host, kind: str, wanted: Configuration) -> None:
        code = leader.propose_configuration(wanted)
        self.counts[f"members: {kind}" if code is ResponseCode.SUCCESS else f"members: {code.name}"] += 1

    def _wanted(self, kind: str, current: Configuration) -> Configuration | None:
        """Raises ConfigurationError where no voter would be left."""
        strangers = [name for name in self._hosts if current.member(name) is None]
        voters, learners = list(current.voters), [e.id for e in current.members if not e.is_voter]
        may_shrink = len(voters) > self._options.voters_min
        pick: Callable[[list[str]], str] = self._rng.choice
        if kind.startswith("add") and strangers:
            role = MemberRole.LEARNER if kind == "add learner" else MemberRole.JOINING
            return current.with_member(member(pick(strangers), role))
        if kind == "replace" and strangers:
            return current.with_member(member(pick(strangers), MemberRole.JOINING, pick(voters)))
        if kind == "remove" and (may_shrink or learners):
            return current.without(pick(voters if may_shrink else learners))
        if kind == "demote" and may_shrink:
            return current.with_member(member(pick(voters), MemberRole.LEARNER))
        if kind == "promote" and learners:
            return current.with_member(member(pick(learners), MemberRole.JOINING))
        return None

    def _more(self, wanted: Configuration) -> Configuration:
        """More than one voter differs: no leader may make this in one step."""
        names = self._rng.sample(list(self._hosts), self._rng.randint(1, len(self._hosts)))
        return replace(wanted, members=tuple(member(name) for name in names))

    def _wipe_one(self) -> None:
        """A removed node gets an empty disk. None of which any other node may still believe that it votes:
        its promises count there, and a majority may be without theirs.
        """
        live = [host for host in self._hosts.values() if host.is_up]
        free = [host for host in live if host.node.role is not Role.LEADER and not self._is_counted(host)]
        if not free or len(live) < len(self._hosts):
            return
        host = self._rng.choice(free)
        self.counts["members: removed one gets an empty disk"] += 1
        newest = max((other.newest for other in live), key=lambda entry: (entry.term, entry.index))
        host.crash(self._rng)
        host.wipe()
        # As an operator writes its configuration file before it joins again.
        voters = Configuration.of_voters(newest.configuration.voters)
        host.first = voters.with_member(member(host.name, MemberRole.LEARNER))
        self._clock.schedule(1_000 * self._rng.randint(0, 500), lambda: self._up(host))

    def _is_counted(self, host: Host) -> bool:
        """Its removal may not be committed, or another node may not know of it."""
        others = [other for other in self._hosts.values() if other is not host]
        is_final = any(
            other.is_up and other.node.role is Role.LEADER and other.node.is_configuration_committed
            for other in others
        )
        return not is_final or any(host.name in other.configuration.ids for other in others)

    def _up(self, host: Host) -> None:
        if self._is_running and not host.is_up:
            host.start()
