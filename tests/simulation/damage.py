"""Disks that lose a part of the log, term and vote, or everything; never those of a majority at once."""

import random
from collections import Counter
from collections.abc import Callable, Mapping

from dledger.core.types import Role
from tests.simulation.clock import VirtualClock
from tests.simulation.damage_options import DamageOptions
from tests.simulation.host import Host


class Damage:
    """Strikes until `stop`. A node it struck is started again by itself, impaired."""

    def __init__(
        self, clock: VirtualClock, seed: int, options: DamageOptions, hosts: Mapping[str, Host]
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._rng = random.Random(f"{seed} repair run")
        self._options = options
        self._hosts = hosts
        self._is_running = False

    def before_start(self) -> None:
        """Nodes of a new group can't know that they are not old ones with empty disks."""
        if self._options.is_fresh and len(self._hosts) > 1:
            for host in self._hosts.values():
                host.impair("its disk is empty", is_vote_lost=True)

    def start(self) -> None:
        self._is_running = True
        if self._options.interval_ms:
            self._repeat(self._options.interval_ms, self._strike)

    def stop(self) -> None:
        self._is_running = False

    def _repeat(self, interval_ms: int, fault: Callable[[], None]) -> None:
        def strike() -> None:
            if self._is_running:
                fault()
                self._repeat(interval_ms, fault)

        self._clock.schedule(self._rng.randint(0, 2_000 * interval_ms), strike)

    def _strike(self) -> None:
        """At most a minority is impaired at any time, or one of two; it may be struck again."""
        impaired = [host for host in self._hosts.values() if host.impairment is not None]
        impaired_max = 1 if len(self._hosts) == 2 else (len(self._hosts) - 1) // 2
        candidates = list(self._hosts.values()) if len(impaired) < impaired_max else impaired
        if len(impaired) > impaired_max or not candidates:
            return  # a new group that is not formed yet, or of one
        host = self._rng.choice(candidates)
        if host.is_up:
            self.counts["damage of the leader"] += host.node.role is Role.LEADER
            host.crash(self._rng)
            self._clock.schedule(
                1_000 * self._rng.randint(0, self._options.down_max_ms), lambda: self._up(host)
            )
        self._damage(host)

    def _up(self, host: Host) -> None:
        if self._is_running and not host.is_up:
            host.start()

    def _damage(self, host: Host) -> None:
        options = self._options
        weights = (options.shorten_weight, options.vote_weight, options.both_weight, options.wipe_weight)
        (kind,) = self._rng.choices(("log", "vote", "log and vote", "disk"), weights)
        self.counts[f"lost {kind}"] += 1
        if kind == "disk":
            host.wipe()
            return
        if "log" in kind:
            disk = host.store.disk
            lowest = (
                disk.begin_index - 1
                if self._rng.random() < 0.3
                else max(disk.begin_index, disk.end_index - 5)
            )
            host.shorten(self._rng.randint(min(lowest, disk.end_index), disk.end_index))
        if "vote" in kind:
            host.lose_vote()
