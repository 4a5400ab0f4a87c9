"""The words in which scripted scenarios are told, over a world without chance faults."""

from collections.abc import Callable

from dledger.core.messages import Message, VoteRequest, VoteResponse
from dledger.core.types import NO_INDEX, ResponseCode
from tests.simulation.host import Host
from tests.simulation.network import NetworkOptions
from tests.simulation.options import FaultOptions, Options, WorkloadOptions
from tests.simulation.surroundings import DiskOptions, NodeFactory, make_node
from tests.simulation.workload import Operation, Outcome
from tests.simulation.world import World


class Script:
    """A cluster with a still network (1 ms) and quick disks, started, without a leader yet."""

    def __init__(self, nodes: int = 3, *, factory: NodeFactory = make_node, **config: int) -> None:
        options = Options(
            seed=1,
            nodes=nodes,
            config=config,
            network=NetworkOptions(delay_min_us=1_000, delay_max_us=1_000),
            disk=DiskOptions(write_min_us=1_000, write_max_us=1_000),
            faults=FaultOptions(checkpoint_ms=0),
            workload=WorkloadOptions(body_bytes_max=16),
        )
        self.world = World(options, factory=factory)
        self.hosts = self.world.hosts
        self.messages: list[tuple[str, str, Message]] = []
        self._drop: Callable[[str, str, Message], bool] | None = None
        self._candidate: str | None = None
        self.world.network.filter = self._pass
        self.world.start()

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    # ---- the network

    def _pass(self, sender: str, to: str, message: Message) -> bool:
        if self._candidate is not None and isinstance(message, VoteRequest) and sender != self._candidate:
            return False
        if self._drop is not None and self._drop(sender, to, message):
            return False
        self.messages.append((sender, to, message))
        return True

    def drop(self, rule: Callable[[str, str, Message], bool] | None) -> None:
        """From now on loses the messages for which rule(sender, to, message) holds."""
        self._drop = rule

    def isolate(self, *names: str) -> None:
        self.world.network.split(names)

    def heal(self) -> None:
        self.world.network.heal()

    # ---- time

    def run(self, duration_ms: int) -> None:
        self.world.run_for(duration_ms)

    def until(self, condition: Callable[[], bool], what: str, limit_ms: int = 10_000) -> None:
        self.world.run_until(condition, what, limit_ms)

    def until_converged(self, limit_ms: int = 10_000) -> None:
        self.until(self.world.is_converged, "all nodes at one end", limit_ms)

    # ---- roles

    def elect(self, name: str) -> Host:
        """Lets nobody else ask for votes until `name` leads and has committed its first entry."""
        host = self.lead(name)
        self.until(lambda: host.node.commit_index >= host.node.term_start_index, "a committed term start")
        return host

    def lead(self, name: str) -> Host:
        """As `elect`, without waiting for a commit."""
        self.let_only(name)
        self.until(lambda: self.leads(name), f"{name} leads", 20_000)
        self.let_only(None)
        return self.hosts[name]

    def let_only(self, candidate: str | None) -> None:
        """From now on only this node's requests for votes arrive (None: everybody's)."""
        self._candidate = candidate

    def leads(self, name: str) -> bool:
        host = self.hosts[name]
        return host.is_up and host.node.term_start_index != NO_INDEX

    # ---- appends

    def propose(self, name: str, count: int = 1) -> Operation:
        """Appends at a leader; it must be taken."""
        operation = self.world.workload.propose(self.hosts[name], count)
        assert operation.outcome is not Outcome.REFUSED, operation
        return operation

    def write(self, name: str, count: int = 1) -> Operation:
        """Appends and waits for the acknowledgement."""
        operation = self.propose(name, count)
        self.until(lambda: operation.code is not None, "an answer")
        assert operation.code is ResponseCode.SUCCESS, operation
        return operation

    def committed_bodies(self) -> list[bytes]:
        """The committed client bodies in log order."""
        bodies = self.world.checker.bodies()
        return [bodies[index] for index in sorted(bodies) if bodies[index].startswith(b"#")]

    # ---- what was sent

    def sent(self, kind: type[Message] | type[VoteResponse], since: int = 0) -> int:
        """How many messages of a kind passed the filter, from the since-th message on."""
        return sum(isinstance(message, kind) for _, _, message in self.messages[since:])


def power_loss(*hosts: Host) -> None:
    """The nodes lose what was not synced."""
    for host in hosts:
        host.crash()
