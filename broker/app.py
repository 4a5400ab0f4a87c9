"""Composition root of one broker: makes its parts, and starts and stops them in order.

Start: store lock, log (recovered), state (snapshot), processors, then the log joins its group, background
services, the server for clients, and last the name servers hear of the node. Stop: the same backwards, but
services stop before the server, so that what they still answer reaches the clients.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from broker.admin import cleaning as admin_cleaning
from broker.admin import config as admin_config
from broker.admin import consumers as admin_consumers
from broker.admin import group_progress as admin_progress
from broker.admin import groups as admin_groups
from broker.admin import lists as admin_lists
from broker.admin import node as admin_broker
from broker.admin import offsets as admin_offsets
from broker.admin import queues as admin_queues
from broker.admin import replication as admin_replication
from broker.admin import stats as admin_stats
from broker.admin import topics as admin_topics
from broker.admin import unsupported
from broker.config import BrokerConfig
from broker.consume import assignment, offsets, pull
from broker.consume import client_requests as clients
from broker.consume import queue_locks as locks
from broker.consume.clients import ClientRegistry
from broker.context import BrokerContext
from broker.monitoring.put_watch import PutWatch
from broker.monitoring.statistics import BrokerStatistics
from broker.pop import processor as pop
from broker.registration import Registration
from broker.send import processor as send
from broker.send import replies, send_back
from broker.state.state import ReplicatedState
from broker.store import queries as query
from broker.store import retention
from broker.store.message_log import open_log
from broker.store.store_lock import StoreLock
from broker.timer import delay
from broker.timer import processor as timers
from broker.transactions import processor as transactions
from commitlog.record import host_bytes
from dledger.environment import Environment
from remoting.client.aio import RemotingClient
from remoting.router import Router
from remoting.server import RemotingServer

if TYPE_CHECKING:
    from broker.monitoring.exporter import Exporter

PROCESSORS = (
    send,
    pull,
    clients,
    offsets,
    locks,
    send_back,
    query,
    delay,
    timers,
    transactions,
    pop,
    assignment,
    replies,
    admin_topics,
    admin_groups,
    admin_broker,
    retention,
    admin_cleaning,
    admin_config,
    admin_offsets,
    admin_consumers,
    admin_queues,
    admin_progress,
    admin_lists,
    admin_stats,
    admin_replication,
    unsupported,
)
"""Each has `register(context)`; the last takes what no other does."""

APPLY_LOOK_S = 0.01

logger = logging.getLogger(__name__)


class Broker:
    """One node. Made and used on a running event loop.

    Making it recovers the log. Raises StoreLockedError, CorruptLogError, CorruptHardStateError, OSError.
    """

    def __init__(self, config: BrokerConfig, environment: Environment | None = None) -> None:
        self.config = config
        environment = environment or Environment()
        clock = environment.wall_clock_ms
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Gets its result when the node cannot go on: a failed write, or a broken invariant."""
        self._lock = StoreLock(config.store_path_root_dir, environment.fs)
        store_host = host_bytes(config.broker_ip, config.listen_port)
        try:
            opened = open_log(config, store_host, environment, self._fail)
        except BaseException:
            self._lock.release()
            raise
        self._log = opened.log
        self._last_index = opened.last_index
        self._state = ReplicatedState(config, self._log, clock, environment.fs)
        self._state.restore(opened.last_index)
        self._client = RemotingClient()
        self.context = BrokerContext(
            config=config,
            log=self._log,
            state=self._state,
            clients=ClientRegistry(),
            router=Router(),
            remoting_client=self._client,
            clock=clock,
            store_host=store_host,
            started_at_ms=clock(),
            statistics=BrokerStatistics(config.broker_cluster_name, environment.monotonic_ms),
            environment=environment,
            engine=opened.engine,
            end_position=opened.end_position,
            removal=opened.removal,
            position_of=opened.position_of,
            measures=opened.measures,
            puts=PutWatch(config.slow_put_ms),
            stored_ms_of=opened.stored_ms_of,
        )
        for module in PROCESSORS:
            module.register(self.context)
        self._registration = Registration(config, self._state, self._log, self._client, self._engine_term)
        self._server = RemotingServer(self.context.router, config.bind_address, config.listen_port)
        for listener in self.context.close_listeners:
            self._server.on_connection_closed(listener)
        self.exporter = _make_exporter(self.context, self._server)

    async def start(self) -> None:
        """Serve. Raises OSError when an address cannot be bound; call `stop` then too."""
        await self._log.start()
        await self._wait_applied()
        await self._state.start()
        for service in self.context.services:
            await service.start()
        await self._server.start()
        if self.exporter is not None:
            await self.exporter.start()
        await self._registration.start()
        config = self.config
        logger.info(
            "%s of %s serves clients at %s", config.dledger_self_id, config.group, config.broker_address
        )

    async def stop(self) -> None:
        """Take the node off the name servers, answer who waits, close all connections, leave the group, and
        bring everything to the disk.
        """
        await self._registration.stop()
        if self.exporter is not None:
            await self.exporter.stop()
        for service in reversed(self.context.services):
            await service.stop()
        await self._server.stop()
        await self.context.cancel_tasks()
        await self._state.stop()
        try:
            await self._log.stop()
        finally:
            await self._client.close()
            self._lock.release()

    async def _wait_applied(self) -> None:
        """A plain log takes puts at once: first let the state see every change that is on the disk. (A
        group's leader is not writable before that.)
        """
        if self.context.engine is None:
            while self._log.applied_index < self._last_index and not self.failure.done():
                await asyncio.sleep(APPLY_LOOK_S)

    def term(self) -> int | None:
        """The term this node is in; None for a plain log, which has none."""
        return None if self.context.engine is None else self.context.engine.term

    def _engine_term(self) -> int:
        return self.term() or 0

    def _fail(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_result(error)


def _make_exporter(context: BrokerContext, server: RemotingServer) -> "Exporter | None":
    """None where no port is given: the library, which brings a web server of its own, is then not loaded."""
    if not context.config.metrics_port:
        return None
    from broker.monitoring.exporter import Exporter

    return Exporter(context, server)
