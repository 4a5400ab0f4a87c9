"""Composition root of one broker: makes its parts, and starts and stops them in order.

Start: store lock, log (recovered), state (snapshot), features, then the log joins its group, services, the
server for clients, and last the registration at the name servers. Stop: the same backwards, but services stop
before the server, so that what they still answer reaches the clients.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from broker.admin.feature import admin_feature, unsupported_handlers
from broker.config import BrokerConfig
from broker.consume.feature import (
    assignment_feature,
    client_feature,
    consumers_of,
    lock_feature,
    offset_feature,
    pull_feature,
)
from broker.feature import Core, Feature, install, join, make_core
from broker.pop.feature import pop_feature
from broker.registration import Registration
from broker.security.users import security_feature
from broker.send.feature import send_feature
from broker.state.state import ReplicatedState
from broker.store.message_log import StoreLock, open_log
from broker.store.queries import query_feature
from broker.store.retention import retention_feature
from broker.timer.feature import delay_feature, timer_feature
from broker.transactions.feature import transaction_feature
from commitlog.record import host_bytes
from dledger.environment import Environment
from remoting.server import RemotingServer
from remoting.tls import server_tls

if TYPE_CHECKING:
    from broker.monitoring.exporter import Exporter

APPLY_POLL_S = 0.01

logger = logging.getLogger(__name__)


class Broker:
    """One node. Made and used on a running event loop.

    Making it recovers the log. Raises StoreLockedError, CorruptLogError, CorruptHardStateError,
    TlsFilesError, OSError.
    """

    def __init__(self, config: BrokerConfig, environment: Environment | None = None) -> None:
        self.config = config
        environment = environment or Environment()
        tls = server_tls(config.server_tls)  # first: a wrong file is found before a long log is recovered
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
        self._state = ReplicatedState(config, self._log, environment.wall_clock_ms, environment.fs)
        self._state.restore(opened.last_index)
        self.core = make_core(config, environment, opened, self._state)
        self._features = install_features(self.core)
        engine = opened.engine
        term = (lambda: 0) if engine is None else (lambda: engine.term)
        self._registration = Registration(
            config, self._state, self._log, self.core.namesrv_client, term, self.core.members
        )
        self._server = RemotingServer(
            self.core.router, config.bind_address, config.listen_port, tls=tls, shares=self.core.shares
        )
        for closed in self._features.connection_closed:
            self._server.on_connection_closed(closed)
        self.exporter = _exporter(self.core, self._features, self._server)

    async def start(self) -> None:
        """Serve. Raises OSError when an address cannot be bound; call `stop` then too."""
        await self._log.start()
        await self._wait_applied()
        await self._state.start()
        for service in self._features.services:
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
        """Hand leadership over, take the node off the name servers, answer held requests, close all
        connections, leave the group, and bring everything to the disk.
        """
        if self.core.engine is not None and not self.failure.done():
            await self.core.engine.resign()
        await self._registration.stop()
        if self.exporter is not None:
            await self.exporter.stop()
        for service in reversed(self._features.services):
            await service.stop()
        await self._server.stop()
        await self.core.tasks.cancel()
        await self._state.stop()
        try:
            await self._log.stop()
        finally:
            await self.core.client.close()
            await self.core.namesrv_client.close()
            self._lock.release()

    async def _wait_applied(self) -> None:
        """A plain log takes puts at once: first let the state see every change that is on the disk. (A
        group's leader is not writable before that.)
        """
        if self.core.engine is None:
            while self._log.applied_index < self._last_index and not self.failure.done():
                await asyncio.sleep(APPLY_POLL_S)

    def term(self) -> int | None:
        """The term this node is in; None for a plain log, which has none."""
        return None if self.core.engine is None else self.core.engine.term

    def _fail(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_result(error)


def install_features(core: Core) -> Feature:
    """Build every feature behind those that it depends on, and register their handlers.

    Transactions and timers come before sends, which ask them for room. Retention comes behind all that keep
    records in the log, the admin behind all that have figures to show.
    """
    security, refuses_settings = security_feature(core)
    consumers = consumers_of(core)
    timers, may_time = timer_feature(core)
    transactions, may_prepare = transaction_feature(core)
    pop, popped_queues = pop_feature(core, consumers)
    messages = install(
        core.router,
        offset_feature(core, consumers),
        pull_feature(core, consumers),
        client_feature(core, consumers),
        lock_feature(core),
        assignment_feature(core),
        delay_feature(core),
        timers,
        transactions,
        pop,
        send_feature(core, may_prepare, may_time),
        query_feature(core),
        security,
    )
    management = install(
        core.router,
        retention_feature(core, messages),
        admin_feature(
            core, consumers, messages.runtime_figures, popped_queues, refuses_settings, messages.waiting
        ),
    )
    install(core.router, Feature(handlers=unsupported_handlers(core.router.codes)))
    return join((messages, management))


def _exporter(core: Core, features: Feature, server: RemotingServer) -> "Exporter | None":
    """None where no port is given: the library, which brings a web server of its own, is then not loaded."""
    if not core.config.metrics_port:
        return None
    from broker.monitoring.exporter import make_exporter

    return make_exporter(core, features.waiting, server)
