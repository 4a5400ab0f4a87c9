"""The faults of the safety phase: each kind at random moments, with its own mean interval."""

import errno
import random
import signal
from collections.abc import Callable, Collection, Sequence

from dledger.core.types import Role
from tests.node_simulation.damage import KINDS, Damage
from tests.node_simulation.invariants import engine_of
from tests.node_simulation.machine import Machine
from tests.node_simulation.net import Network
from tests.node_simulation.options import FaultOptions
from tests.node_simulation.stalls import Stalls
from tests.simulation.clock import VirtualClock
from tests.support.memory_fs import SYNCS, WRITES

MID_WRITE_CHANGES_MAX = 30
MID_WRITE_WAIT_US = 2_000_000
FULL = 0.95
JUMP_MAX_MS = 3_600_000
CUTS = ("one", "halves", "inbound", "outbound", "link", "bridge", "ring", "clog", "clients")


class Faults:
    """Breaks things until `stop`, then mends everything."""

    def __init__(
        self,
        clock: VirtualClock,
        rng: random.Random,
        options: FaultOptions,
        network: Network,
        nodes: dict[str, Machine],
        name_servers: Sequence[Machine],
        clients: dict[str, Machine],
        damage: Damage,
        stalls: Stalls,
        close_ms: int,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._options = options
        self._network = network
        self._nodes = nodes
        self._name_servers = name_servers
        self._clients = clients
        self._damage = damage
        self._stalls = stalls
        self._close_ms = close_ms
        self._is_running = False
        self.failing_disks: set[str] = set()
        """Machines whose disk has failed in their present life: they may stop by themselves."""
        self.on_client_crash: Callable[[str], None] = lambda name: None
        self.counts: dict[str, int] = {}

    def start(self) -> None:
        options = self._options
        self._is_running = True
        for interval_ms, fault in (
            (options.crash_ms, self._crash),
            (options.terminate_ms, self._terminate),
            (options.pause_ms, self._pause),
            (options.clock_jump_ms, self._jump),
            (options.partition_ms, self._partition),
            (options.transfer_ms, self._transfer),
            (options.disk_full_ms, self._fill_disk),
            (options.disk_error_ms, self._fail_disk),
            (options.damage_ms, self._damage_disk),
            (options.name_server_ms, self._crash_name_server),
            (options.client_ms, self._crash_client),
        ):
            if interval_ms:
                self._repeat(interval_ms, fault, self._rng)
        self._stalls.start()
        if self._close_ms:
            self._repeat(self._close_ms, self._close_a_socket, self._stalls.rng)

    def stop(self) -> None:
        """No more faults: links mended, disks sound and with room, every process running."""
        self._is_running = False
        self._stalls.stop()
        self._network.heal()
        for machine in [*self._nodes.values(), *self._name_servers, *self._clients.values()]:
            self._mend_disk(machine)
            machine.resume()
            if machine.is_gone:
                continue
            if not machine.is_up:
                machine.start()
            elif machine.process is not None:
                machine.process.changes_until_crash = None

    def restart_later(self, machine: Machine, delay_ms: int) -> None:
        """A process that went down is started again, after so long."""

        def restart() -> None:
            if not machine.is_up and not machine.is_gone:
                machine.start()

        self._clock.schedule(1_000 * delay_ms, restart)

    def _repeat(self, interval_ms: int, fault: Callable[[], None], rng: random.Random) -> None:
        def strike() -> None:
            if self._is_running:
                fault()
                self._repeat(interval_ms, fault, rng)

        self._clock.schedule(rng.randint(0, 2_000 * interval_ms), strike)

    def count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    # -- whom it strikes

    def _up(self) -> list[Machine]:
        return [machine for machine in self._nodes.values() if machine.is_up]

    def _victim(self) -> Machine | None:
        up = self._up()
        leaders = [machine for machine in up if is_leader(machine)]
        if leaders and self._rng.random() < self._options.leader_bias:
            return self._rng.choice(leaders)
        return self._rng.choice(up) if up else None

    # -- processes and machines

    def _crash(self) -> None:
        draw, options = self._rng.random(), self._options
        up = self._up()
        self._rng.shuffle(up)
        if draw < options.crash_all_probability:
            victims = up
        elif draw < options.crash_all_probability + options.crash_majority_probability:
            victims = up[: len(self._nodes) // 2 + 1]
        else:
            victim = self._victim()
            victims = [] if victim is None else [victim]
        for machine in victims:
            self._crash_one(machine)

    def _crash_one(self, machine: Machine) -> None:
        """Now, or when the process is in the midst of writing; that may never be, so now after a while."""
        process = machine.process
        assert process is not None
        is_power_lost = self._rng.random() < self._options.power_probability
        self.count("power failure" if is_power_lost else "kill")
        down_ms = self._rng.randint(0, self._options.down_max_ms)
        if self._rng.random() >= self._options.mid_write_probability:
            machine.stop_by_force(is_power_lost=is_power_lost)
            self.restart_later(machine, down_ms)
            return
        process.changes_until_crash = self._rng.randint(0, MID_WRITE_CHANGES_MAX)
        process.is_power_crash = is_power_lost

        def crash_at_last() -> None:
            if machine.process is process and self._is_running:
                machine.stop_by_force(is_power_lost=is_power_lost)
            self.restart_later(machine, down_ms)

        self._clock.schedule(self._rng.randint(0, MID_WRITE_WAIT_US), crash_at_last)

    def _terminate(self) -> None:
        """SIGTERM: the node stops cleanly, and is started again."""
        victim = self._victim()
        if victim is not None and victim.process is not None:
            self.count("terminate")
            victim.process.loop.signal(signal.SIGTERM)

    def _pause(self) -> None:
        victim = self._victim()
        if victim is None or not victim.is_running:
            return
        self.count("pause")
        victim.pause(is_suspended=self._rng.random() < 0.3)
        self._clock.schedule(1_000 * self._rng.randint(1, self._options.pause_max_ms), victim.resume)

    def _jump(self) -> None:
        victim = self._victim()
        if victim is not None:
            self.count("clock jump")
            victim.clock.jump(self._rng.choice((-1, 1)) * self._rng.randint(1, JUMP_MAX_MS))

    def _crash_name_server(self) -> None:
        up = [machine for machine in self._name_servers if machine.is_up]
        if up:
            victim = up[0] if len(self._name_servers) == 1 else self._rng.choice(up)
            self.count("name server")
            victim.stop_by_force(is_power_lost=self._rng.random() < 0.5)
            self.restart_later(victim, self._rng.randint(0, self._options.down_max_ms))

    def _crash_client(self) -> None:
        machine = self._rng.choice(list(self._clients.values()))
        if machine.is_up:
            self.count("client")
            machine.stop_by_force(is_power_lost=self._rng.random() < 0.5)
            self.on_client_crash(machine.name)
            self.restart_later(machine, self._rng.randint(0, self._options.down_max_ms))

    # -- the network

    def _partition(self) -> None:
        rng = self._rng
        nodes = [machine.ip for machine in self._nodes.values()]
        rng.shuffle(nodes)
        outside = [machine.ip for machine in (*self._name_servers, *self._clients.values())]
        victim = self._victim()
        kind = rng.choice(CUTS)
        if victim is None:
            return
        self.count(f"partition {kind}")
        others = [ip for ip in nodes if ip != victim.ip]
        self._cut(kind, victim.ip, others, nodes, outside)
        self._clock.schedule(1_000 * rng.randint(0, self._options.partition_max_ms), self._heal)

    def _cut(self, kind: str, victim: str, others: list[str], nodes: list[str], outside: list[str]) -> None:
        net, rng = self._network, self._rng
        hosts = nodes + outside
        if kind == "one":
            net.cut_both([victim], hosts if rng.random() < 0.5 else others)
        elif kind == "halves":
            half = nodes[: rng.randint(1, len(nodes))]
            rest = [ip for ip in hosts if ip not in half]
            net.cut_both(half, rest if rng.random() < 0.5 else [ip for ip in nodes if ip not in half])
        elif kind == "inbound":
            net.cut(others, [victim])
        elif kind == "outbound":
            net.cut([victim], others)
        elif kind == "link":
            net.cut_both([victim], others[:1])
        elif kind == "bridge":
            net.cut_both(others[: len(others) // 2], others[len(others) // 2 :])
        elif kind == "ring":
            for at, ip in enumerate(nodes):
                for far in range(2, len(nodes) - 1):
                    net.cut_both([ip], [nodes[(at + far) % len(nodes)]])
        elif kind == "clog":
            for ip in hosts:
                duration_us = 1_000 * rng.randint(0, self._options.partition_max_ms)
                net.clog(*((victim, ip) if rng.random() < 0.5 else (ip, victim)), duration_us)
        else:
            net.cut_both(nodes, rng.sample(outside, rng.randint(1, len(outside))))

    def _close_a_socket(self) -> None:
        """Of a node. By the chance of the stalls: the other faults strike as they do without them."""
        machine = self._stalls.rng.choice(list(self._nodes.values()))
        self._stalls.close_one([endpoint for endpoint in machine.site.endpoints if endpoint.is_in_use])

    def _heal(self) -> None:
        if self._is_running:
            self._network.heal()

    # -- what the driver is asked

    def _transfer(self) -> None:
        victim = self._victim()
        if victim is not None and victim.is_running and victim.process and victim.process.broker:
            engine = engine_of(victim.process.broker)
            target = self._rng.choice(list(self._peers_of(victim)))
            self.count("transfer")
            victim.process.loop.call_soon(engine.transfer_leadership, target)

    def _peers_of(self, machine: Machine) -> Collection[str]:
        """The nodes of its group."""
        return self._nodes

    # -- disks

    def _fill_disk(self) -> None:
        """Until it is freed the file system is nearly full; sometimes really, and then writing fails."""
        victim = self._victim()
        if victim is None:
            return
        self.count("full disk")
        victim.fs.used = FULL
        if self._rng.random() < 0.3:
            self.failing_disks.add(victim.name)
            victim.fs.fail(WRITES, errno.ENOSPC, self._rng.randint(0, 20), is_lasting=True)
        delay_us = 1_000 * self._rng.randint(0, self._options.partition_max_ms)
        self._clock.schedule(delay_us, lambda: self._mend_disk(victim))

    def _mend_disk(self, machine: Machine) -> None:
        machine.fs.used = 0.0
        machine.fs.heal()

    def _fail_disk(self) -> None:
        """One operation fails; the node must stop, and is started again."""
        victim = self._victim()
        if victim is None:
            return
        operations = self._rng.choice((WRITES, SYNCS, {"pread"}, {"rename"}))
        after = self._rng.randint(0, 20)
        if "pread" not in operations or self._damage.may_strike(victim):
            self.count("disk error")
            self.failing_disks.add(victim.name)
            victim.fs.fail(operations, errno.EIO, after)

    def wipe(self, machine: Machine) -> None:
        """Of a machine whose process is down: it gets an empty disk."""
        self._damage.strike(machine, "wipe")

    def _damage_disk(self) -> None:
        """Of one of a minority; mostly the process dies first, and finds the damage at its next start."""
        victim, kind = self._victim(), self._rng.choice(KINDS)
        if victim is None or not self._damage.may_strike(victim):
            return
        self.count(f"damage: {kind}")
        if kind == "flip":
            self._damage.flip_while_running(victim)
            return
        victim.stop_by_force(is_power_lost=False)
        self._damage.strike(victim, kind)
        self.restart_later(victim, self._rng.randint(0, self._options.down_max_ms))


def is_leader(machine: Machine) -> bool:
    process = machine.process
    return (
        process is not None and process.broker is not None and engine_of(process.broker).role is Role.LEADER
    )
