"""What the parts of one broker share. Made by app.Broker; a processor module gets it in its
`register(context)`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from broker.config import BrokerConfig
from broker.consume.clients import RunningGroups
from broker.consume.offset_resets import OffsetResets
from broker.consume.queue_reader import ReadWatch
from broker.monitoring.put_watch import PutWatch
from broker.monitoring.statistics import BrokerStatistics
from broker.sql92.filters import SqlFilters
from broker.state.state import ReplicatedState
from broker.store.replication import LogMeasures, ReplicationEngine
from commitlog.log import MessageLog
from commitlog.log_removal import LogRemoval
from dledger.environment import Environment
from remoting.client.aio import RemotingClient
from remoting.connection import Connection
from remoting.router import Router

if TYPE_CHECKING:
    from broker.consume.clients import ClientRegistry
    from broker.store.retention import Retention


class Service(Protocol):
    """Background work of a processor: started after the log, stopped before it, in the reverse order."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


@dataclass(slots=True)
class BrokerContext:
    """The parts every processor may use. `clock` gives milliseconds since 1970."""

    config: BrokerConfig
    log: MessageLog
    state: ReplicatedState
    clients: "ClientRegistry"
    router: Router
    remoting_client: RemotingClient
    clock: Callable[[], int]
    store_host: bytes
    """brokerIP1:listenPort as a record holds it (4 address bytes, 4-byte port)."""
    started_at_ms: int
    statistics: BrokerStatistics
    """What came and went, in all and by topic and group: since the start, and over the last minute, hour and
    day."""
    puts: PutWatch = field(default_factory=lambda: PutWatch(0))
    """How long the steps of a put take."""
    reads: ReadWatch = field(default_factory=ReadWatch)
    """What the reads of consumers found, and took."""
    waiting: dict[str, Callable[[], int | None]] = field(default_factory=dict)
    """How many things of each kind wait for something; None while that is not known. Processors add theirs.
    """
    environment: Environment = field(default_factory=Environment)
    engine: ReplicationEngine | None = None
    """The replication engine beside the log; None for a plain log."""
    end_position: Callable[[], int | None] = lambda: None
    """First byte after the log's last entry, committed or not; None when not known."""
    removal: LogRemoval | None = None
    """Deletes the log's oldest files; None for a log that keeps everything."""
    retention: "Retention | None" = None
    log_holds: list[Callable[[], int | None]] = field(default_factory=list)
    """Each names the position of the earliest record that somebody still needs, None for none: no file from
    there on is deleted. Every node asks its own, so they go by what all nodes know alike: replicated state
    and queues."""
    measures: LogMeasures = field(default_factory=LogMeasures)
    position_of: Callable[[int], int] = lambda index: 0
    """Where an entry of the replicated log begins."""
    stored_ms_of: Callable[[int], int | None] = lambda index: None
    """When an entry was stored, in ms since 1970; None when it cannot be read."""
    offset_resets: OffsetResets = field(init=False)
    running_groups: RunningGroups = field(init=False)
    log_rewriters: list[Callable[[int], None]] = field(default_factory=list)
    """Each has the leader write anew what it holds before this position, if it can."""
    may_prepare: Callable[[], bool] = lambda: True
    """Whether half messages may be taken: not while too many transactions are open."""
    may_time: Callable[[int], bool] = lambda out_ms: True
    """Whether a timer message that is due then may be taken: not while too many wait."""
    sql_filters: SqlFilters = field(default_factory=SqlFilters)
    """Compiled filters by properties, for every processor that reads queues for a consumer."""
    close_listeners: list[Callable[[Connection], None]] = field(default_factory=list)
    """Called with every client connection that has closed; processors append theirs."""
    runtime_figures: list[Callable[[], dict[str, str]]] = field(default_factory=list)
    """What processors add to the answer to GET_BROKER_RUNTIME_INFO."""
    services: list[Service] = field(default_factory=list)
    """Processors append what is to be started and stopped with the broker."""
    _tasks: dict[asyncio.Task[Any], None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.offset_resets = OffsetResets(lambda: self.config.reset_marks_max)
        self.running_groups = RunningGroups(self.clients, self.environment.monotonic_ms)

    def is_undisputed(self) -> bool:
        """Of a node that leads: whether no other one can well lead already and know more than it does."""
        return self.engine is None or self.engine.is_undisputed()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a short piece of work beside the handler; it is cancelled when the broker stops. The work must
        handle its own errors.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
