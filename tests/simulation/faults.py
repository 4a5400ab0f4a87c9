"""The faults of the safety phase: each kind at random moments, with its own mean interval."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from dledger.core.types import Role
from tests.simulation.clock import VirtualClock
from tests.simulation.host import Host
from tests.simulation.network import Network
from tests.simulation.options import FaultOptions
from tests.simulation.surroundings import Moment


class Faults:
    """Breaks things until `stop`, then mends everything."""

    def __init__(
        self,
        clock: VirtualClock,
        rng: random.Random,
        options: FaultOptions,
        network: Network,
        hosts: dict[str, Host],
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._options = options
        self._network = network
        self._hosts = hosts
        self._is_running = False
        self.counts: Counter[str] = Counter()
        """How often each kind has struck."""

    def start(self) -> None:
        options = self._options
        self._is_running = True
        for interval_ms, fault in (
            (options.crash_ms, self._crash),
            (options.partition_ms, self._partition),
            (options.pause_ms, self._pause),
            (options.transfer_ms, self._transfer),
            (options.disk_full_ms, self._change_room),
            (options.retention_ms, self._delete_prefix),
            (options.checkpoint_ms, self._checkpoint),
            (options.spurious_hint_ms, self._spurious_hint),
        ):
            if interval_ms:
                self._repeat(interval_ms, fault)

    def stop(self) -> None:
        """No more faults: links mended, disks with room, every node started."""
        self._is_running = False
        self._network.heal()
        for host in self._hosts.values():
            host.paused_until_us = 0
            if host.is_up:
                host.set_disk_full(False)
            else:
                host.start()

    def _repeat(self, interval_ms: int, fault: Callable[[], None]) -> None:
        def strike() -> None:
            if self._is_running:
                fault()
                self._repeat(interval_ms, fault)

        self._clock.schedule(self._rng.randint(0, 2_000 * interval_ms), strike)

    # ---- whom it strikes

    def _up(self) -> list[Host]:
        return [host for host in self._hosts.values() if host.is_up]

    def _victim(self) -> Host | None:
        up = self._up()
        leaders = [host for host in up if host.node.role is Role.LEADER]
        if leaders and self._rng.random() < self._options.leader_bias:
            return self._rng.choice(leaders)
        return self._rng.choice(up) if up else None

    # ---- the kinds

    def _crash(self) -> None:
        draw, options = self._rng.random(), self._options
        up = self._up()
        self._rng.shuffle(up)
        if draw < options.crash_all_probability:
            victims = up
        elif draw < options.crash_all_probability + options.crash_majority_probability:
            victims = up[: len(self._hosts) // 2 + 1]
        else:
            victim = self._victim()
            victims = [] if victim is None else [victim]
        for host in victims:
            self._crash_one(host)

    def on_moment(self, host: Host, moment: Moment) -> None:
        """A host says that a crash would come at the worst time; sometimes it does, soon."""
        options = self._options
        probability = {
            Moment.VOTING: options.crash_voting_probability,
            Moment.LEADING: options.crash_leading_probability,
            Moment.CUTTING: options.crash_cutting_probability,
        }[moment]
        if self._is_running and probability and self._rng.random() < probability:
            is_cutting = moment is Moment.CUTTING  # soon over
            delay_us = 0 if is_cutting else self._rng.randint(0, options.crash_delay_max_us)
            self._clock.schedule(delay_us, partial(self._crash_later, host, host.incarnation, is_cutting))

    def _crash_later(self, host: Host, incarnation: int, is_cutting: bool) -> None:
        if self._is_running and host.is_up and host.incarnation == incarnation:
            self._crash_one(host, is_within_batch=is_cutting)

    def _crash_one(self, host: Host, *, is_within_batch: bool = False) -> None:
        self.counts["crash"] += 1
        host.crash(self._rng, is_within_batch=is_within_batch)
        down_us = 1_000 * self._rng.randint(0, self._options.down_max_ms)
        self._clock.schedule(down_us, partial(self._start, host))

    def _start(self, host: Host) -> None:
        if self._is_running and not host.is_up:
            host.start()

    def _partition(self) -> None:
        names = list(self._hosts)
        self._rng.shuffle(names)
        victim = self._victim()
        kind = self._rng.choice(("one", "halves", "inbound", "outbound", "link", "bridge"))
        if victim is None or len(names) == 1:
            return
        others = [name for name in names if name != victim.name]
        if kind == "bridge" and self._options.is_ring:
            kind = "ring"
        self.counts[f"partition: {kind}"] += 1
        if kind == "one":
            self._network.isolate(victim.name)
        elif kind == "halves":
            self._network.split(names[: self._rng.randint(1, len(names) - 1)])
        elif kind == "ring":
            self._cut_to_ring(names)
        elif kind == "bridge":
            for one in others[: len(others) // 2]:
                for other in others[len(others) // 2 :]:
                    self._network.cut(one, other)
                    self._network.cut(other, one)
        else:
            for other in others if kind != "link" else others[:1]:
                pair = (victim.name, other) if kind != "inbound" else (other, victim.name)
                self._network.cut(*pair)
        self._clock.schedule(1_000 * self._rng.randint(0, self._options.partition_max_ms), self._heal)

    def _cut_to_ring(self, names: Sequence[str]) -> None:
        """Each of five nodes reaches a majority, and no two the same (Jepsen's majorities ring); of three,
        each reaches the next one only.
        """
        unreached = range(2, len(names) - 1) or (2,)
        for at, name in enumerate(names):
            for step in unreached:
                self._network.cut(name, names[(at + step) % len(names)])

    def _heal(self) -> None:
        if self._is_running:
            self._network.heal()

    def _pause(self) -> None:
        victim = self._victim()
        if victim is not None:
            self.counts["pause"] += 1
            victim.pause(1_000 * self._rng.randint(1, self._options.pause_max_ms))

    def _transfer(self) -> None:
        victim = self._victim()
        if victim is not None:
            self.counts["leadership transfer"] += 1
            victim.transfer_leadership(self._rng.choice([*self._hosts, "nobody"]))

    def _change_room(self) -> None:
        victim = self._victim()
        if victim is not None:
            is_full = self._rng.random() < 0.5
            self.counts["full disk"] += is_full
            victim.set_disk_full(is_full)

    def _delete_prefix(self) -> None:
        victim = self._victim()
        if victim is None:
            return
        highest = min(victim.node.commit_index, victim.store.disk.end_index)
        if victim.store.begin_index < highest:
            self.counts["retention"] += 1
            victim.delete_before(self._rng.randint(victim.store.begin_index + 1, highest))

    def _checkpoint(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.save_checkpoint()

    def _spurious_hint(self) -> None:
        victim = self._victim()
        if victim is None:
            return
        peer = self._rng.choice([name for name in self._hosts if name != victim.name] or ["nobody"])
        self.counts["false news of a connection"] += 1
        hint = self._rng.choice((victim.peer_connected, victim.peer_disconnected))
        hint(peer)
