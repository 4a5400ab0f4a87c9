"""Registers this node at every name server: at the start, every registerNameServerPeriod, and at once when a
topic, the node's role or the members change. Its broker id says whether it is the writable leader. A node
that is no member of its group, or of one that an operator has gone on without, is not registered.

Each name server has a link of its own, so that a dead one does not delay the others. A link keeps its
connection, since a name server drops a broker whose connection closes; when that happens the link registers
again, with RETRY_S between attempts. The data version's stateVersion is the term: a name server lets no older
leader take brokerId 0 from a newer one.
"""

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Callable
from dataclasses import replace

import orjson

from broker.config import LEADER_BROKER_ID, BrokerConfig
from broker.members import GroupMembers
from broker.state.state import ReplicatedState
from broker.state.topics import PERM_READ_WRITE, EncodedTopics, TopicConfig
from commitlog.log import MessageLog
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import RemotingError, RequestTimeoutError
from remoting.headers.namesrv import BrokerIdentityRequestHeader, RegisterBrokerRequestHeader

RETRY_S = 1.0
"""Between attempts, and between checks of the connection."""
REGISTER_TIMEOUT_S = 6.0
UNREGISTER_TIMEOUT_S = 1.0

logger = logging.getLogger(__name__)


class Registration:
    """Keeps one node registered at all its name servers. `term` returns the node's current term."""

    def __init__(
        self,
        config: BrokerConfig,
        state: ReplicatedState,
        log: MessageLog,
        client: RemotingClient,
        term: Callable[[], int],
        members: GroupMembers,
    ) -> None:
        self._config = config
        self._address = config.broker_address
        self._state = state
        self._log = log
        self._term = term
        self._links = [
            _Link(
                address,
                client,
                self._register_command,
                self._unregister_command,
                lambda: members.may_register,
            )
            for address in config.name_servers
        ]
        members.on_change(self.trigger)
        self._encoded = EncodedTopics()
        self._tasks: list[asyncio.Task[None]] = []
        state.on_topics_changed(self.trigger)
        state.on_settings_changed(self._on_settings_changed)
        log.on_writable_change(lambda _: self.trigger())

    @property
    def broker_id(self) -> int:
        return LEADER_BROKER_ID if self._log.is_writable() else self._config.follower_broker_id

    def trigger(self) -> None:
        """Register at once; many calls before the next turn are one registration."""
        for link in self._links:
            link.wake()

    def _on_settings_changed(self) -> None:
        """What the broker permits is part of each topic's row."""
        self._encoded.clear()
        self.trigger()

    async def start(self) -> None:
        period_s = self._config.register_period_ms / 1000
        self._tasks = [
            asyncio.create_task(link.keep_registered(period_s), name=f"registration at {link.address}")
            for link in self._links
        ]

    async def stop(self) -> None:
        """Unregister at the name servers that can be reached within a second."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(link.unregister() for link in self._links))

    def _register_command(self) -> RemotingCommand:
        config = self._config
        body = self._register_body()
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.broker_cluster_name,
            broker_id=self.broker_id,
            ha_server_addr=f"{config.broker_ip}:{min(config.listen_port + 1, 65535)}",
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        return RemotingCommand(RequestCode.REGISTER_BROKER, ext_fields=header.ext_fields(), body=body)

    def _register_body(self) -> bytes:
        version = orjson.dumps(self._state.data_version.to_json(self._term()))
        table = self._encoded.table(self._state.topics, self._shown)
        return (
            b'{"filterServerList":[],"topicConfigSerializeWrapper":'
            b'{"dataVersion":%s,"topicConfigTable":%s}}' % (version, table)
        )

    def _shown(self, topic: TopicConfig) -> TopicConfig:
        """Clients keep to the permission in their route: a broker that may not be written or read says so
        with every topic.
        """
        permission = self._config.broker_permission
        if permission & PERM_READ_WRITE == PERM_READ_WRITE:
            return topic
        return replace(topic, perm=topic.perm & permission)

    def _unregister_command(self) -> RemotingCommand:
        config = self._config
        header = BrokerIdentityRequestHeader(
            config.broker_name, self._address, config.broker_cluster_name, self.broker_id
        )
        return RemotingCommand(RequestCode.UNREGISTER_BROKER, ext_fields=header.ext_fields())


class _Link:
    """One name server."""

    def __init__(
        self,
        address: str,
        client: RemotingClient,
        make_command: Callable[[], RemotingCommand],
        make_unregister_command: Callable[[], RemotingCommand],
        may_register: Callable[[], bool],
    ) -> None:
        self.address = address
        self._make_unregister_command = make_unregister_command
        self._may_register = may_register
        self._client = client
        self._make_command = make_command
        self._woken = asyncio.Event()
        self._is_registered: bool | None = None
        self._connection: Connection | None = None

    def wake(self) -> None:
        self._woken.set()

    async def keep_registered(self, period_s: float) -> None:
        while True:
            self._woken.clear()
            if not self._may_register():
                await self.unregister()
                await self._woken.wait()
                continue
            error = await self._register()
            self._report(error)
            await self._rest(period_s if error is None else RETRY_S)

    async def _register(self) -> str | None:
        """What went wrong, or None."""
        try:
            self._connection = await self._client.connect(self.address, REGISTER_TIMEOUT_S)
            command = self._make_command()
            self._client.sign(command)
            answer = await self._connection.request(command, REGISTER_TIMEOUT_S)
        except RequestTimeoutError as error:
            if self._connection is not None:
                self._connection.abort()
            return str(error)
        except RemotingError as error:
            return str(error)
        return None if answer.code == ResponseCode.SUCCESS else f"code {answer.code}: {answer.remark}"

    async def _rest(self, period_s: float) -> None:
        """Until it is time, something changed, or the connection is gone."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + period_s
        while (left_s := end_s - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, RETRY_S)):  # wait_for may swallow a cancellation
                    await self._woken.wait()
            if self._woken.is_set() or self._connection is None or not self._connection.is_open:
                return

    def _report(self, error: str | None) -> None:
        """Log when it begins to work and when it ceases to, not every time."""
        is_registered = error is None
        if is_registered == self._is_registered:
            return
        self._is_registered = is_registered
        if is_registered:
            logger.info("registered at the name server %s", self.address)
        else:
            logger.warning("not registered at the name server %s: %s", self.address, error)

    async def unregister(self) -> None:
        """Once, if it is registered and the name server can be reached within a second."""
        if self._is_registered:
            with contextlib.suppress(RemotingError):
                command = self._make_unregister_command()
                await self._client.invoke(self.address, command, UNREGISTER_TIMEOUT_S)
            self._is_registered = None
