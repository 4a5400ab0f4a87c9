"""What a request needs that only the leader may answer: whether this node leads, a wait while an election is
open, and the way to the leader.

A client that asks a node in the middle of an election would be refused, and come back only with its next
rebalance, 10 to 20 s later. `Readiness` holds it for a moment, and it gets the answer from the new leader
itself.

Clients learn of a new leader by their next poll of the name server, up to 30 s later. For sends, and for
requests that they do not send again when they are refused, or cannot do without so long, the node that they
reached asks the leader itself: `Forwarder`. A request is forwarded once at most: it carries a mark then.
Bounded by FORWARDS_MAX requests under way, of FORWARD_BYTES_MAX together.

mqadmin and the Dashboard send some changes to every node of a broker (deleting a group, they delete its
topics on the slaves too), others to the address that they know as the master's, which may have changed:
`LeaderRequests` has these answered by the leader.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from broker.config import BrokerConfig
from broker.members import GroupMembers
from commitlog.log import MessageLog
from dledger.environment import monotonic_ms
from dledger.server import DLedgerServer
from remoting.acl import ACCESS_KEY, GRPC_PORT, GRPC_USER
from remoting.client.aio import RemotingClient
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import RemotingError, RequestError
from remoting.router import Handler, HandlerResult
from remoting.slices import Steps

ELECTION_WAIT_MS = 2_000
"""An election ends within this time. A group without a majority stays without a leader: after this time
requests are not held any more, or a client with many queues would wait this long for each.
"""
POLL_INTERVAL_MS = 100
"""Interval at which a waiting request checks whether another node leads, which nothing notifies."""
OUTAGE_MEMORY_S = 30.0
"""After this long without a request, a leader may have been elected and lost since the last one."""
FORWARDS_MAX = 1_000
FORWARD_BYTES_MAX = 64 * 1024 * 1024
POLL_INTERVAL_S = 0.1
"""Interval of the check whether a leader is known."""
MARK = "LEDGERMQ_FORWARDED"
"""Ext field of a request that came from another node."""
CLIENT_USER = "LEDGERMQ_USER"
"""Ext field of a request that came from another node, which has checked the signature of this user and signed
the request as itself.
"""
FORWARD_LIMIT_S: Final = 4.0
"""The tools wait for 5 s."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Outage:
    """This node has known of no leader in `term` from `since_s` to `seen_s`."""

    term: int
    since_s: float
    seen_s: float


class Readiness:
    """Whether this node may answer for the group."""

    def __init__(
        self,
        log: MessageLog,
        engine: DLedgerServer | None,
        own_id: str,
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._log = log
        self._engine = engine
        self._own_id = own_id
        self._now_ms = now_ms
        self._outage: _Outage | None = None
        self._writable = asyncio.Event()
        log.on_writable_change(self._on_writable_change)

    def _now_s(self) -> float:
        return self._now_ms() / 1000

    def is_ready(self) -> bool:
        return self._log.is_writable()

    def refusal(self) -> RequestError:
        """The answer to a client that should have asked the leader."""
        remark = f"only the leader answers this: {self.leader_hint()}"
        return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    def leader_hint(self) -> str:
        """For remarks: who leads, and where clients find it, as far as this node knows."""
        return leader_hint(self._engine, self._own_id)

    def has_lease(self) -> bool:
        """Of a node that leads: no other node can lead by now. A leader that was cut off from its
        majority may not know yet that it was replaced.
        """
        return self._engine is None or self._engine.has_lease()

    def check(self) -> None:
        """Raises the refusal when this node is not the writable leader now."""
        if not self._log.is_writable():
            raise self.refusal()

    async def wait(self, timeout_ms: int = ELECTION_WAIT_MS) -> bool:
        """Whether this node is the writable leader, after waiting while that is still open. Ends at once
        when another node leads, or when there has been no leader for longer than an election takes.
        """
        deadline_s = self._now_s() + timeout_ms / 1000
        while not self._log.is_writable():
            now_s = self._now_s()
            left_s = min(deadline_s, self._hope_ends_s(now_s)) - now_s
            if left_s <= 0:
                return False
            try:
                async with asyncio.timeout(min(left_s, POLL_INTERVAL_MS / 1000)):
                    await self._writable.wait()
            except TimeoutError:
                continue
        return True

    def _hope_ends_s(self, now_s: float) -> float:
        """Until when this node can be expected to become the leader."""
        leader_id = None if self._engine is None else self._engine.leader_id
        if leader_id == self._own_id:
            return math.inf
        if self._engine is None or leader_id is not None:
            self._outage = None
            return now_s
        outage = self._outage
        if outage is None or outage.term != self._engine.term or now_s - outage.seen_s > OUTAGE_MEMORY_S:
            outage = self._outage = _Outage(self._engine.term, now_s, now_s)
        outage.seen_s = now_s
        return outage.since_s + ELECTION_WAIT_MS / 1000

    def _on_writable_change(self, is_writable: bool) -> None:
        self._outage = None
        if is_writable:
            self._writable.set()
        else:
            self._writable.clear()


class Forwarder:
    """Asks other nodes over the broker's own client."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        engine: DLedgerServer | None,
        client: RemotingClient,
        members: GroupMembers,
    ) -> None:
        self._config = config
        self._members = members
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
        others = [member.id for member in self._members.others]
        return [engine.client_addresses[each] for each in others if self._is_reachable(engine, each)]

    @staticmethod
    def _is_reachable(engine: DLedgerServer, member_id: str) -> bool:
        return member_id in engine.client_addresses and engine.is_connected(member_id)

    async def ask(self, address: str, request: RemotingCommand, timeout_s: float) -> RemotingCommand | None:
        """The node's answer to the same request; None when there came none."""
        fields = {**request.ext_fields, MARK: "1"}
        fields.pop(CLIENT_USER, None)
        fields.pop(GRPC_PORT, None)  # the leader has the endpoint's own connection to count by
        if self._config.checks_signatures and ACCESS_KEY in fields:
            fields[CLIENT_USER] = fields.get(GRPC_USER) or fields[ACCESS_KEY]
        copy = RemotingCommand(request.code, ext_fields=fields, body=request.body)
        with self._counted(request):
            try:
                return await self._client.invoke(address, copy, timeout_s)
            except RemotingError as error:
                logger.info("request %d, forwarded to %s, has no answer: %s", copy.code, address, error)
                return None

    async def ask_leader(
        self, request: RemotingCommand, timeout_s: float, patience_s: float = 0.0
    ) -> RemotingCommand | None:
        """The leader's answer; None when there came none, or when for `patience_s` no other node led."""
        address = await self.find_leader(request, patience_s)
        return None if address is None else await self.ask(address, request, timeout_s)

    async def find_leader(self, request: RemotingCommand, patience_s: float) -> str | None:
        """`leader_address`, waited for while an election is open or this node hands leadership over."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + patience_s
        with self._counted(request):
            while self._is_leader_open() and not self.leads_on():
                if loop.time() >= end_s:
                    return None
                await asyncio.sleep(POLL_INTERVAL_S)
        return self.leader_address

    def leads_on(self) -> bool:
        """Whether this node leads and does not hand over: no other will take the request."""
        return self._log.is_writable() and self._log.shows_all_committed()

    @contextmanager
    def _counted(self, request: RemotingCommand) -> Iterator[None]:
        self._under_way += 1
        self._under_way_bytes += len(request.body)
        try:
            yield
        finally:
            self._under_way -= 1
            self._under_way_bytes -= len(request.body)
            assert self._under_way >= 0, f"{self._under_way} requests are forwarded"


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

        def handle(
            request: RemotingCommand, connection: Connection
        ) -> HandlerResult | Steps[RemotingCommand | None]:
            return answer(request, connection) if self._log.is_writable() else self._forward(request)

        return handle

    async def _forward(self, request: RemotingCommand) -> RemotingCommand:
        answer = None
        if self._forwarder.may_forward(request):
            answer = await self._forwarder.ask_leader(request, FORWARD_LIMIT_S)
        if answer is None:
            raise self._readiness.refusal()
        return answer


def leader_hint(engine: DLedgerServer | None, own_id: str) -> str:
    """Text for remarks: the leader and its address for clients, as far as this node knows."""
    if engine is None:
        return "this node is not writable now"
    leader_id = engine.leader_id
    if leader_id is None:
        return "no leader is known now"
    if leader_id == own_id:
        return f"this node ({own_id}) leads but is not ready yet"
    address = engine.client_addresses.get(leader_id)
    return f"the leader is {leader_id}" + ("" if address is None else f" at {address}")
