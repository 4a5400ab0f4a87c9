"""Hands a client's request on to another node of the group.

Clients learn of a new leader by their next poll of the name server, up to 30 s later. For requests that
they do not send again when they are refused, or cannot do without so long, the node they reached asks the
leader itself.

A request is handed on once at most: it carries a mark then. Bounded by FORWARDS_MAX requests under way, of
FORWARD_BYTES_MAX together.

Operators' changes that reach a follower: it hands them on to the leader.

mqadmin and the Dashboard send some changes to every node of a broker (deleting a group, they delete its
topics on the slaves too), others to the address they know as the master's, which it may not be any more.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from broker.config import BrokerConfig
from broker.readiness import Readiness
from commitlog.log import MessageLog
from dledger.server import DLedgerServer
from remoting.client.aio import RemotingClient
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import RemotingError
from remoting.router import Handler, HandlerResult

FORWARDS_MAX = 1_000
FORWARD_BYTES_MAX = 64 * 1024 * 1024
LOOK_INTERVAL_S = 0.1
"""Interval of the check whether a leader is known."""
MARK = "LEDGERMQ_FORWARDED"
"""Ext field of a request that came from another node."""

logger = logging.getLogger(__name__)


class Forwarder:
    """Asks other nodes over the broker's own client."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        engine: DLedgerServer | None,
        client: RemotingClient,
    ) -> None:
        self._config = config
        self._log = log
        self._engine = engine
        self._client = client
        self._under_way = 0
        self._under_way_bytes = 0

    def may_forward(self, request: RemotingCommand) -> bool:
        """Whether the request came from a client, and there is room for one more."""
        has_room = (
            self._engine is not None
            and self._under_way < FORWARDS_MAX
            and self._under_way_bytes < FORWARD_BYTES_MAX
        )
        return has_room and MARK not in request.ext_fields

    @property
    def leader_address(self) -> str | None:
        """Where another node that leads serves clients; None: this one leads, or no leader is known."""
        engine = self._engine
        if engine is None or self._is_leader_open():
            return None
        return engine.client_addresses.get(engine.leader_id or "")

    def _is_leader_open(self) -> bool:
        """Whether there is none, or it is this node, which may not be ready yet."""
        engine = self._engine
        return engine is not None and engine.leader_id in (None, self._config.dledger_self_id)

    @property
    def other_addresses(self) -> list[str]:
        """Where the nodes of the group that are connected serve clients."""
        engine = self._engine
        if engine is None:
            return []
        peers = [peer.id for peer in self._config.peers]
        return [engine.client_addresses[each] for each in peers if self._is_reachable(each)]

    def _is_reachable(self, peer: str) -> bool:
        engine = self._engine
        assert engine is not None, "only a group has peers"
        is_other = peer != self._config.dledger_self_id
        return is_other and peer in engine.client_addresses and engine.is_connected(peer)

    async def ask(self, address: str, request: RemotingCommand, timeout_s: float) -> RemotingCommand | None:
        """The node's answer to the same request; None when there came none."""
        copy = RemotingCommand(request.code, ext_fields={**request.ext_fields, MARK: "1"}, body=request.body)
        with self._counted(request):
            try:
                return await self._client.invoke(address, copy, timeout_s)
            except RemotingError as error:
                logger.info("request %d, handed on to %s, has no answer: %s", copy.code, address, error)
                return None

    async def ask_leader(
        self, request: RemotingCommand, timeout_s: float, patience_s: float = 0.0
    ) -> RemotingCommand | None:
        """The leader's answer; None when there came none, or when for `patience_s` no other node led."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + patience_s
        with self._counted(request):
            while self._is_leader_open() and not self._log.is_writable():
                if loop.time() >= end_s:
                    return None
                await asyncio.sleep(LOOK_INTERVAL_S)
        address = self.leader_address
        return None if address is None else await self.ask(address, request, timeout_s)

    @contextmanager
    def _counted(self, request: RemotingCommand) -> Iterator[None]:
        self._under_way += 1
        self._under_way_bytes += len(request.body)
        try:
            yield
        finally:
            self._under_way -= 1
            self._under_way_bytes -= len(request.body)


FORWARD_LIMIT_S: Final = 4.0
"""The tools wait for 5 s."""


OnLeader = Callable[[Handler], Handler]
"""Makes a handler that runs on the writable leader only: `LeaderRequests.handler`."""


class LeaderRequests:
    """Makes handlers that the leader answers. Without a leader the request is refused, and the remark names
    the leader as far as this node knows it.
    """

    def __init__(self, log: MessageLog, readiness: Readiness, forwarder: Forwarder) -> None:
        self._log = log
        self._readiness = readiness
        self._forwarder = forwarder

    def handler(self, answer: Handler) -> Handler:
        """A handler that runs `answer` on the writable leader only."""

        def handle(request: RemotingCommand, connection: Connection) -> HandlerResult:
            return answer(request, connection) if self._log.is_writable() else self._forward(request)

        return handle

    async def _forward(self, request: RemotingCommand) -> RemotingCommand:
        answer = None
        if self._forwarder.may_forward(request):
            answer = await self._forwarder.ask_leader(request, FORWARD_LIMIT_S)
        if answer is None:
            raise self._readiness.refusal()
        return answer
