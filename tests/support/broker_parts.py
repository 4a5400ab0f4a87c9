"""The parts of a broker over a FakeLog, for tests of its features."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from broker.config import BrokerConfig, config_from
from broker.consume.feature import consumers_of
from broker.feature import Feature, install, join, make_core
from broker.monitoring.statistics import BrokerStatistics
from broker.state.state import ReplicatedState
from broker.store.message_log import LogMetrics, OpenedLog
from dledger.core.membership import Configuration, ConfigurationEntry, Member
from dledger.core.status import NodeStatus
from dledger.core.types import ResponseCode, Role
from dledger.environment import Environment, monotonic_ms
from dledger.server import DLedgerServer
from dledger.transport import OlderNode
from remoting.connection import Connection
from remoting.router import Router
from tests.support.fake_log import FakeLog

NOW_MS = 1_700_000_000_000


@dataclass(slots=True)
class FakeEngine(DLedgerServer):
    """The part of an engine that the broker itself asks; nothing runs."""

    term: int = 3
    leader_id: str | None = "n0"
    client_addresses: Mapping[str, str] = field(default_factory=dict)
    node_status: NodeStatus = field(
        default_factory=lambda: NodeStatus(Role.LEADER, 3, "n0", 0, 9, 9, 9, 0, (), (), {}, ())
    )
    transfer_code: ResponseCode = ResponseCode.SUCCESS
    transferees: list[str] = field(default_factory=list)
    connected: frozenset[str] = frozenset()
    configuration: Configuration | None = None
    is_configuration_committed: bool = True
    configuration_index: int = 7
    is_of_one_release: bool = True
    proposal_code: ResponseCode = ResponseCode.SUCCESS
    member_listeners: list[Callable[[], None]] = field(default_factory=list)
    proposed: list[tuple[Configuration, Callable[[ResponseCode], None]]] = field(default_factory=list)
    undisputed: bool = True
    newer_generation: int | None = None
    refused: list[OlderNode] = field(default_factory=list)
    reads: list[Callable[[ResponseCode, int], None]] = field(default_factory=list)
    """Reads that wait, while `are_reads_held`."""
    are_reads_held: bool = False
    read_code: ResponseCode = ResponseCode.SUCCESS

    def read_index(self, on_done: Callable[[ResponseCode, int], None]) -> ResponseCode:
        """The round ends in the next turn of the loop, unless the test holds it."""
        self.reads.append(on_done)
        if not self.are_reads_held:
            asyncio.get_running_loop().call_soon(self.end_reads)
        return ResponseCode.SUCCESS

    def end_reads(self, index: int = -1) -> None:
        waiting, self.reads = self.reads, []
        for on_done in waiting:
            on_done(self.read_code, index)

    def is_connected(self, peer: str) -> bool:
        return peer in self.connected

    def has_lease(self) -> bool:
        return self.undisputed

    def status(self) -> NodeStatus:
        return self.node_status

    @property
    def members(self) -> ConfigurationEntry:
        assert self.configuration is not None, "the parts give it one"
        return ConfigurationEntry(self.configuration_index, 3, self.configuration)

    def on_members_change(self, listener: Callable[[], None]) -> None:
        self.member_listeners.append(listener)

    def older_nodes(self) -> list[OlderNode]:
        return self.refused

    def become_outdated(self) -> None:
        self.newer_generation = 1
        for listener in self.member_listeners:
            listener()

    def set_members(self, configuration: Configuration) -> None:
        """The log names others."""
        self.configuration = configuration
        for listener in self.member_listeners:
            listener()

    @property
    def commit_index(self) -> int:
        return 9 if self.is_configuration_committed else 6

    def speaks_newest_protocol(self, configuration: Configuration) -> bool:
        return self.is_of_one_release

    def propose_configuration(
        self, new: Configuration, on_done: Callable[[ResponseCode], None]
    ) -> ResponseCode:
        """What is proposed is in the log at once, and committed when the test says so."""
        if self.proposal_code is ResponseCode.SUCCESS:
            self.proposed.append((new, on_done))
            self.set_members(new)
        return self.proposal_code

    def transfer_leadership(self, transferee: str) -> ResponseCode:
        self.transferees.append(transferee)
        return self.transfer_code


class BrokerParts:
    """A broker's core, and what its features add. The clocks, and what an open log says of itself, can be
    replaced at any time.
    """

    def __init__(self, config: BrokerConfig, log: FakeLog, engine: FakeEngine | None, router: Router) -> None:
        self.clock: Callable[[], int] = lambda: NOW_MS
        self.monotonic_ms: Callable[[], int] = monotonic_ms
        self.end_position: Callable[[], int | None] = lambda: None
        self.position_of: Callable[[int], int] = lambda index: 0
        self.stored_ms_of: Callable[[int], int | None] = lambda index: None
        opened = OpenedLog(
            log=log,
            engine=engine,
            last_index=-1,
            end_position=lambda: self.end_position(),
            metrics=LogMetrics(),
            position_of=lambda index: self.position_of(index),
            stored_ms_of=lambda index: self.stored_ms_of(index),
        )
        if engine is not None and engine.configuration is None:
            members = tuple(Member(peer.id, peer.host, peer.port) for peer in config.peers)
            engine.configuration = Configuration(members)
        environment = Environment(
            monotonic_ms=lambda: self.monotonic_ms(), wall_clock_ms=lambda: self.clock()
        )
        state = ReplicatedState(config, log, lambda: NOW_MS)
        state.restore()
        statistics = BrokerStatistics(config.broker_cluster_name, lambda: NOW_MS)
        core = make_core(config, environment, opened, state, router)
        self.core = replace(core, statistics=statistics)
        self.config, self.log, self.engine, self.state = config, log, engine, state
        self.router, self.clients, self.statistics = router, core.clients, statistics
        self.store_host = core.store_host
        self.consumers = consumers_of(self.core)
        self.features = Feature()
        """All that were added, but for their handlers."""

    def add(self, *features: Feature) -> None:
        """As the broker installs them."""
        self.features = join((self.features, install(self.router, *features)))

    def close_connection(self, connection: Connection) -> None:
        """As the server reports it."""
        for closed in self.features.connection_closed:
            closed(connection)


def make_parts(
    tmp_path: Path, log: FakeLog, engine: FakeEngine | None = None, **values: object
) -> BrokerParts:
    """Parts whose state is restored and listens to the log. Needs a running loop."""
    config = config_from({"storePathRootDir": str(tmp_path), **values})
    return BrokerParts(config, log, engine, Router())
