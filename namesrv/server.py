"""The name server: one set of tables, one listening server, one timer."""

import asyncio
import logging
import time
from collections.abc import Callable

from namesrv.accounts import Accounts
from namesrv.config import ConfigProcessor, KvConfig, NameServerConfig, NameServerSwitches
from namesrv.queries import QueryProcessor
from namesrv.registration import BrokerProcessor
from namesrv.rights import AdminRights, BrokerRights, check_usable
from namesrv.route_info import RouteInfoManager
from remoting.connection import Connection
from remoting.fair_shares import FairShares
from remoting.router import Router
from remoting.server import RemotingServer
from remoting.slices import SlicedWork
from remoting.tls import server_tls

_log = logging.getLogger(__name__)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class NameServer:
    """Started once, stopped once. Holds nothing on disk but the key-value table."""

    def __init__(self, config: NameServerConfig, clock_ms: Callable[[], int] = _monotonic_ms) -> None:
        """Read the key-value table and the accounts.

        Raises:
            KvConfigError: the table's file is damaged.
            AclError: the file of accounts cannot be used.
            BrokerIdentityError: no sender could have such an identity.
            TlsFilesError: certificate, key or authorities cannot be used.
        """
        self._config = config
        self._clock_ms = clock_ms
        self._tables = RouteInfoManager(config.brokers_max, config.topics_max)
        self._timer: asyncio.TimerHandle | None = None
        self._upkeep = SlicedWork()
        check_usable(
            config.broker_identities,
            knows_certificates=config.tls.knows_clients,
            has_accounts=config.accounts is not None,
        )
        accounts = None if config.accounts is None else Accounts(config.accounts)
        rights = BrokerRights(config.broker_identities, accounts) if config.broker_identities else None
        switches = NameServerSwitches()
        kv_config = KvConfig(config.kv_config, config.kv_items_max, config.kv_bytes_max)
        router = Router()
        BrokerProcessor(self._tables, kv_config, config, switches, rights, clock_ms).register(router)
        QueryProcessor(self._tables, kv_config, switches).register(router)
        ConfigProcessor(kv_config, config, switches).register(router)
        if accounts is not None:
            router.guard = AdminRights(accounts, rights).refusal
        self._router = router
        shares = FairShares(config.quotas, router)
        self._server = RemotingServer(
            router, config.host, config.port, tls=server_tls(config.tls), shares=shares
        )
        self._server.on_connection_closed(self._drop_brokers_of)

    @property
    def codes(self) -> frozenset[int]:
        """The request codes that are answered."""
        return self._router.codes

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._server.port

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address cannot be bound.
        """
        await self._server.start()
        self._arm()
        _log.info("name server listens on %s:%d", self._config.host, self.port)

    async def stop(self) -> None:
        """Close all connections and the port."""
        if self._timer is not None:
            self._timer.cancel()
        await self._server.stop()

    def expire(self) -> None:
        """Drop the brokers that have been silent too long; the timer calls this."""
        for addr in self._tables.expire(self._clock_ms()):
            _log.warning("broker %s expired", addr)

    def _drop_brokers_of(self, connection: Connection) -> None:
        for addr in self._tables.connection_closed(connection.connection_id):
            _log.warning("broker %s left: its connection closed", addr)

    def _arm(self) -> None:
        delay_s = self._config.expiry_check_interval_ms / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self.expire()
        if self._tables.has_old_rows:
            self._upkeep.start(self._tables.remove_old_rows(), "")
        self._arm()
