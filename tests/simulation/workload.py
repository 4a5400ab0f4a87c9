"""Clients of the simulated cluster: batches of uniquely numbered bodies, and what became of each."""

import enum
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dledger.core.types import NO_INDEX, ResponseCode
from tests.simulation.clock import VirtualClock
from tests.simulation.host import Host
from tests.simulation.invariants import require
from tests.simulation.options import WorkloadOptions


class Outcome(enum.Enum):
    """What a client knows. UNKNOWN: accepted, and no answer yet, or an answer that promises nothing."""

    REFUSED = "refused"
    UNKNOWN = "unknown"
    ACKNOWLEDGED = "acknowledged"


@dataclass(slots=True)
class Operation:
    """One batch a client sent."""

    node: str
    bodies: tuple[bytes, ...]
    incarnation: int
    outcome: Outcome = Outcome.UNKNOWN
    first_index: int = NO_INDEX
    code: ResponseCode | None = None
    answers: int = 0

    def answer(self, code: ResponseCode) -> None:
        self.answers += 1
        require(self.answers == 1, self.node, "answers twice", self.first_index, self.code, code)
        self.code = code
        if code is ResponseCode.SUCCESS:
            self.outcome = Outcome.ACKNOWLEDGED


@dataclass(slots=True)
class Workload:
    """Proposes at random nodes, mostly where a leader was last seen, and records every outcome."""

    clock: VirtualClock
    rng: random.Random
    options: WorkloadOptions
    hosts: Sequence[Host]
    operations: list[Operation] = field(default_factory=list)
    is_running: bool = False
    _bodies_made: int = 0

    def start(self) -> None:
        self.is_running = True
        for _ in range(self.options.clients):
            self._later(self._propose_and_go_on)

    def stop(self) -> None:
        self.is_running = False

    def make_bodies(self, count: int) -> tuple[bytes, ...]:
        """Bodies that were never used before."""
        first, self._bodies_made = self._bodies_made, self._bodies_made + count
        sizes_bytes = [self.rng.randint(0, self.options.body_bytes_max) for _ in range(count)]
        return tuple(
            f"#{number}".encode().ljust(size, b".")
            for number, size in zip(range(first, first + count), sizes_bytes, strict=True)
        )

    def propose(self, host: Host, count: int) -> Operation:
        operation = Operation(host.name, self.make_bodies(count), host.incarnation)
        code, first_index = host.propose(operation.bodies, operation.answer)
        if code is ResponseCode.SUCCESS:
            operation.first_index = first_index
            self.operations.append(operation)
        else:
            operation.code, operation.outcome = code, Outcome.REFUSED
        return operation

    def acknowledged(self) -> list[Operation]:
        return [operation for operation in self.operations if operation.outcome is Outcome.ACKNOWLEDGED]

    def _later(self, action: Callable[[], None]) -> None:
        self.clock.schedule(self.rng.randint(0, 2_000 * self.options.interval_ms), action)

    def _propose_and_go_on(self) -> None:
        if not self.is_running:
            return
        host = self._choose()
        if host is not None and host.node.end_index - host.node.commit_index <= self.options.backlog_max:
            self.propose(host, self.rng.randint(1, self.options.batch_max))
        self._later(self._propose_and_go_on)

    def _choose(self) -> Host | None:
        awake = [h for h in self.hosts if h.is_up and h.paused_until_us <= self.clock.now_us]
        leaders = [host for host in awake if host.node.leader_id == host.name]
        if leaders and self.rng.random() < 0.9:
            return self.rng.choice(leaders)
        return self.rng.choice(awake) if awake else None
