"""Faults of whole hosts: every process on one dies, stands still or is cut off, at the same moment."""

import random
import signal
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.node_simulation.faults import Faults
from tests.node_simulation.machine import Machine
from tests.node_simulation.options import GroupsOptions


@dataclass(slots=True)
class Host:
    """What runs on one computer: a node of each group, and perhaps a name server. Each process has an
    address and a disk of its own.
    """

    machines: list[Machine] = field(default_factory=list)

    def running(self) -> Iterator[Machine]:
        return (machine for machine in self.machines if machine.is_running)

    def up(self) -> Iterator[Machine]:
        return (machine for machine in self.machines if machine.is_up)


class HostFaults(Faults):
    """Those of single processes, and those of hosts. The latter are drawn apart."""

    def __init__(
        self,
        *arguments: Any,
        hosts: list[Host],
        options_of_hosts: GroupsOptions,
        rng_of_hosts: random.Random,
        peers_of: Callable[[Machine], Collection[str]],
    ) -> None:
        super().__init__(*arguments)
        self._hosts = hosts
        self._options_of_hosts = options_of_hosts
        self._rng_of_hosts = rng_of_hosts
        self._find_peers = peers_of

    def start(self) -> None:
        super().start()
        options = self._options_of_hosts
        for interval_ms, fault in (
            (options.host_crash_ms, self._crash_host),
            (options.host_pause_ms, self._pause_host),
            (options.host_cut_ms, self._cut_host_off),
        ):
            if interval_ms:
                self._repeat(interval_ms, fault, self._rng_of_hosts)

    def _peers_of(self, machine: Machine) -> Collection[str]:
        return self._find_peers(machine)

    def _crash_host(self) -> None:
        """The power fails, or the kernel kills everything; the supervisor starts it all again."""
        rng, options = self._rng_of_hosts, self._options
        is_power_lost = rng.random() < options.power_probability
        self.count("host without power" if is_power_lost else "host killed")
        down_ms = rng.randint(0, options.down_max_ms)
        for machine in [*rng.choice(self._hosts).up()]:
            machine.stop_by_force(is_power_lost=is_power_lost)
            self.restart_later(machine, down_ms + rng.randint(0, 300))

    def _pause_host(self) -> None:
        rng = self._rng_of_hosts
        duration_us = 1_000 * rng.randint(1, self._options.pause_max_ms)
        self.count("host paused")
        for machine in [*rng.choice(self._hosts).running()]:
            machine.pause(is_suspended=True)
            self._clock.schedule(duration_us, machine.resume)

    def _cut_host_off(self) -> None:
        """From the other hosts; mostly from the clients, too. In one direction or both."""
        rng, net = self._rng_of_hosts, self._network
        host = rng.choice(self._hosts)
        near = [machine.ip for machine in host.machines]
        far = [machine.ip for other in self._hosts if other is not host for machine in other.machines]
        if rng.random() < 0.7:
            far += [machine.ip for machine in self._clients.values()]
        self.count("host cut off")
        rng.choice((net.cut_both, net.cut_both, net.cut))(near, far)
        self._clock.schedule(1_000 * rng.randint(0, self._options.partition_max_ms), self._heal)

    def retire(self, machines: Iterable[Machine]) -> None:
        """They are stopped, and start no more."""
        self.count("group removed" if not self._is_running else "group removed under faults")
        for machine in machines:
            machine.is_gone = True
            process = machine.process
            if process is not None and process.broker is None:
                machine.stop_by_force(is_power_lost=False)
            elif process is not None:
                process.loop.signal(signal.SIGTERM)
