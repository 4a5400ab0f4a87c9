"""Keeps the clients of one server within their quotas, so that one that floods it leaves the others theirs.

A holder (an address, a user) that is over its quota is slowed: its connections are not read until it has
paid its debt. What it sent meanwhile waits in the kernel's buffers, and TCP makes the client wait. Where that
would take longer than REFUSE_WAIT_S, so long that clients give up, its requests are answered SYSTEM_BUSY with
the time to wait, and what has been paid for is still served.

Some requests are slowed only. A client whose heartbeat, lock or offset is refused makes its whole group
rebalance, or consumes messages again: more work than the request itself. A one-way request cannot be
answered: a refusal would lose it silently.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from remoting.acl import GRPC_HOST, GRPC_PORT
from remoting.codes import RequestCode, ResponseCode
from remoting.command import ONEWAY_FLAG, RemotingCommand
from remoting.connection import Connection, size_of
from remoting.errors import RequestError
from remoting.quotas import (
    FORGOTTEN_AT_ONCE,
    GUEST_S,
    GUESTS_MAX,
    Guest,
    Kind,
    Quota,
    QuotaRules,
    Share,
    Shares,
    Usage,
)
from remoting.router import Router

REFUSE_WAIT_S: Final = 2.0
"""Clients wait for 3 s, as they come."""
PAUSE_MIN_S: Final = 0.001
"""A smaller debt is left to grow: to stop and go on reading costs something."""
PAUSE_MAX_S: Final = 10.0
"""Of what cannot be refused. A client is taken for dead after 120 s without a heartbeat."""
IN_FLIGHT_WAIT_S: Final = 0.1
"""To wait when too many requests are in flight: when their answers come is not known."""
BUSY: Final = "[QUOTA]system busy, start flow control for a while"
REFUSALS_PER_S: Final = 2_000
"""Of one holder: a refusal costs less than a request, but something."""
NAMES_MAX: Final = 1_000
"""Holders that are counted by name; the others count as OTHER."""
OTHER: Final = "(other)"
LOG_INTERVAL_S: Final = 60.0
LOGGED_MAX: Final = 10
"""Lines of the log in that time; of one holder there is one."""
RECENT_S: Final = 300.0
SHOWN_MAX: Final = 3
ENDPOINT: Final = "(endpoint)"
PORT_CHARS_MAX: Final = 5

SLOWED_ONLY: Final = frozenset(
    {
        # A member of a group that cannot send these is lost to it, or cannot rebalance.
        *(RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG),
        *(RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.QUERY_ASSIGNMENT),
        *(RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ),
        # How far it has come: without these, messages are delivered again.
        *(RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET),
        *(RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME),
        *(RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.END_TRANSACTION),
        # With these an operator changes the quotas.
        *(RequestCode.UPDATE_BROKER_CONFIG, RequestCode.GET_BROKER_CONFIG),
        # Brokers at a name server.
        *(RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.BROKER_HEARTBEAT),
        RequestCode.QUERY_DATA_VERSION,
    }
)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """How often a holder was slowed, and how many requests or connections of it were refused."""

    slowed: int = 0
    refused: int = 0
    refused_s: float = float("-inf")
    """Of the last one."""
    logged_s: float = float("-inf")


@dataclass(slots=True)
class Tallies:
    """`kinds`: slowed and refused, by (of, kind). `names`: by (of, name)."""

    kinds: dict[tuple[str, Kind], Tally] = field(default_factory=dict)
    names: dict[tuple[str, str], Tally] = field(default_factory=dict)
    _logged_s: list[float] = field(default_factory=list)

    def slowed(self, of: str, name: str, kind: Kind) -> None:
        for tally in self._of(of, name, kind):
            tally.slowed += 1

    def refused(self, of: str, name: str, kind: Kind, words: str, count: int, now_s: float) -> None:
        """Count it; log it at times. `words`: the quota."""
        for tally in self._of(of, name, kind):
            tally.refused += count
            tally.refused_s = now_s
        if now_s - tally.logged_s < LOG_INTERVAL_S:
            return
        self._logged_s = [each for each in self._logged_s if now_s - each < LOG_INTERVAL_S]
        if len(self._logged_s) < LOGGED_MAX:
            tally.logged_s = now_s
            self._logged_s.append(now_s)
            _log.warning(
                "%s %s is over its quota of %s: slowed %d times, refused %d times up to now",
                *(of, name, words, tally.slowed, tally.refused),
            )

    def recently_refused(self, now_s: float) -> list[str]:
        """The holders, those refused most first."""
        found = [
            (tally.refused, f"{of} {name}")
            for (of, name), tally in self.names.items()
            if now_s - tally.refused_s <= RECENT_S
        ]
        return [text for _, text in sorted(found, reverse=True)]

    def _of(self, of: str, name: str, kind: Kind) -> tuple[Tally, Tally]:
        names = self.names
        key = (of, name) if (of, name) in names or len(names) < NAMES_MAX else (of, OTHER)
        return self.kinds.setdefault((of, kind), Tally()), names.setdefault(key, Tally())


@dataclass(frozen=True, slots=True)
class Excess:
    """Why requests are refused. `most`: so many of those at hand. `wait_s`: what to wait."""

    kind: Kind
    most: int
    wait_s: float


TOO_MANY_CONNECTIONS: Final = Excess(Kind.CONNECTIONS, 1, 1.0)
"""When one of them is closed is not known."""


class Holders:
    """Holders of one kind, `of` address or user, and what happens to them."""

    def __init__(self, of: str, quota: Quota, tallies: Tallies) -> None:
        self.of = of
        self.shares = Shares(quota)
        self._tallies = tallies

    def excess(
        self, share: Share, connection: Connection, usage: Usage, now_s: float, count: int
    ) -> Excess | None:
        """Whether so many requests, which the connection has just sent, are too many."""
        quota = self.shares.quota
        over = share.excess(quota, now_s, connection)
        if over:
            return Excess(Kind.IN_FLIGHT, over, IN_FLIGHT_WAIT_S)
        if share.debt_s(now_s) <= 0:
            return None  # however much waits: as many as the rate allows are served
        wait_s = usage.wait_s(share, quota, now_s)
        return Excess(share.dearest, count, wait_s) if wait_s > REFUSE_WAIT_S else None

    def guest_excess(self, guest: Guest, connection: str | None, now_s: float) -> Excess | None:
        """Why the request that a guest has just sent, over this one of its connections, is too much."""
        share, quota = guest.share, self.shares.quota
        over = share.excess(quota, now_s, guest)
        debt_s = share.debt_s(now_s)
        if debt_s > PAUSE_MIN_S:
            return Excess(share.dearest, 1, debt_s)
        if connection is not None and not guest.has_room(connection, quota, now_s):
            return TOO_MANY_CONNECTIONS
        return Excess(Kind.IN_FLIGHT, 1, IN_FLIGHT_WAIT_S) if over else None

    def charge_guest(
        self, guest: Guest, connection: str | None, now_s: float, request: RemotingCommand
    ) -> None:
        """Its request is served."""
        share, quota = guest.share, self.shares.quota
        size_bytes, guest.size_bytes = size_of(request) + guest.size_bytes, 0
        if share.debt_s(now_s) < PAUSE_MAX_S:  # or what is never refused would take away all the others
            share.charge(quota, now_s, 1, size_bytes)
        if connection is not None and guest.has_room(connection, quota, now_s):
            guest.see(connection, quota, now_s)

    def charge(
        self,
        share: Share,
        connection: Connection,
        usage: Usage,
        now_s: float,
        requests: Sequence[RemotingCommand],
        size_bytes: int,
    ) -> None:
        """The requests are served; the connection is slowed if they were more than the rate."""
        quota = self.shares.quota
        share.charge(quota, now_s, len(requests), size_bytes)
        debt_s = share.debt_s(now_s)
        if debt_s < PAUSE_MIN_S or not requests:
            return
        usage.see_unread(connection.unread_bytes())
        pause_s = min(debt_s, PAUSE_MAX_S)
        if any(map(may_refuse, requests)):
            pause_s = min(pause_s, REFUSE_WAIT_S)
            if usage.wait_s(share, quota, now_s) > REFUSE_WAIT_S:
                pause_s = min(pause_s, len(requests) / REFUSALS_PER_S)
        if not connection.is_slowed:
            self._tallies.slowed(self.of, share.name, share.dearest)
        connection.slow(pause_s)

    def refusal(self, name: str, excess: Excess, count: int, now_s: float) -> RequestError:
        """The answer to so many requests."""
        words = self.shares.quota.words(excess.kind)
        self._tallies.refused(self.of, name, excess.kind, words, count, now_s)
        wait_ms = max(1, round(excess.wait_s * 1000))
        remark = f"{BUSY}: {self.of} {name} is over its quota of {words}, wait {wait_ms} ms"
        return RequestError(ResponseCode.SYSTEM_BUSY, remark)


class FairShares:
    """The quotas of one server. On the thread of its loop."""

    def __init__(self, rules: QuotaRules, router: Router, now_s: Callable[[], float] | None = None) -> None:
        """`now_s`: a clock that never goes back; by default the loop's."""
        self.tallies = Tallies()
        self._rules = rules
        self._router = router
        self._now_s = now_s or _loop_s
        self._addresses = Holders("address", rules.address, self.tallies)
        self._users = Holders("user", rules.user, self.tallies)
        self._connections: Callable[[], Iterable[Connection]] = tuple

    def serve(self, connections: Callable[[], Iterable[Connection]]) -> None:
        """The open connections, which a change of the rules concerns."""
        self._connections = connections

    def apply(self, rules: QuotaRules) -> None:
        """These rules are in force, for open connections too; none of these is closed for them."""
        if rules == self._rules:
            return
        self._rules = rules
        self._addresses.shares.change(rules.address)
        self._users.shares.change(rules.user)
        for connection in self._connections():
            self._apply_to(connection)

    def _apply_to(self, connection: Connection) -> None:
        is_endpoint = self._rules.is_endpoint(connection.remote_host)
        name = None if is_endpoint else self._rules.holder(connection.remote_host)
        if connection.usage is not None and (name is None or connection.usage.is_endpoint):
            self.leave(connection)
        if is_endpoint:
            connection.usage = Usage(Share(ENDPOINT), is_endpoint=True)
        elif name is not None and connection.usage is None:
            self._join(connection, name)

    def opened(self, connection: Connection) -> bool:
        """Whether its address may have one more connection."""
        if self._rules.is_endpoint(connection.remote_host):
            connection.usage = Usage(Share(ENDPOINT), is_endpoint=True)
            return True
        name = self._rules.holder(connection.remote_host)
        if name is None:
            return True
        if not self._addresses.shares.has_room(name):
            self._addresses.refusal(name, TOO_MANY_CONNECTIONS, 1, self._now_s())
            return False
        self._join(connection, name)
        return True

    def _join(self, connection: Connection, name: str) -> None:
        connection.usage = Usage(self._addresses.shares.join(name, connection, self._now_s()))

    def leave(self, connection: Connection) -> None:
        """It has no quota from now on, or it is closed: what it used last is charged."""
        usage, connection.usage = connection.usage, None
        if usage is None:
            return
        now_s = self._now_s()
        if usage.is_endpoint:
            for (of, _), guest in usage.guests.items():
                self._dismiss(of, guest, now_s)
            self._leave_user(connection, usage, now_s)
            return
        usage.see_unread(0)
        usage.address.charge(self._addresses.shares.quota, now_s, 0, usage.size_bytes)
        self._addresses.shares.leave(usage.address, connection, now_s)
        self._leave_user(connection, usage, now_s)

    def _leave_user(self, connection: Connection, usage: Usage, now_s: float) -> None:
        if usage.user is not None:
            usage.user.charge(self._users.shares.quota, now_s, 0, usage.size_bytes + usage.user_bytes)
            self._users.shares.leave(usage.user, connection, now_s)
            usage.set_user(None)

    def admit(
        self, connection: Connection, usage: Usage, requests: list[RemotingCommand]
    ) -> list[RemotingCommand]:
        """Those of the requests that its address may send; the others are answered."""
        if usage.is_endpoint:
            self._forget_guests(usage, self._now_s())
            if usage.is_signed:
                return requests  # whose they are is known after their signatures are verified
            return [each for each in requests if not self._is_refused(each, connection)]
        now_s, addresses, share = self._now_s(), self._addresses, usage.address
        size_bytes, usage.size_bytes = usage.size_bytes, 0
        usage.user_bytes = size_bytes if usage.user is None else usage.user_bytes + size_bytes
        usage.request_bytes = max(1, size_bytes // len(requests))
        users = () if usage.user is None else (usage.user,)
        if usage.unread_bytes or any(each.debt_s(now_s) > 0 for each in (share, *users)):
            usage.see_unread(connection.unread_bytes())
        excess = addresses.excess(share, connection, usage, now_s, len(requests))
        refused = [] if excess is None else list(islice(filter(may_refuse, requests), excess.most))
        if excess is not None and refused:
            error = addresses.refusal(share.name, excess, len(refused), now_s)
            for request in refused:
                self._router.refuse(request, connection, error)
            _slow_refused(connection, share, now_s, len(refused))
            requests = _without(requests, refused)
            size_bytes = usage.request_bytes * len(requests)
        addresses.charge(share, connection, usage, now_s, requests, size_bytes)
        return requests

    def _is_refused(self, request: RemotingCommand, connection: Connection) -> bool:
        """Whether the request, which comes over a gRPC endpoint, was answered."""
        host = request.ext_fields.get(GRPC_HOST)
        error = None if host is None else self.client_refusal(request, connection, host)
        if error is not None:
            self._router.refuse(request, connection, error)
        return error is not None

    def client_refusal(
        self, request: RemotingCommand, connection: Connection, host: str, user: str | None = None
    ) -> RequestError | None:
        """Why the gRPC client at `host`, whose name is proved to be `user`, may not send it now over its
        endpoint's connection.

        That is the connection of many clients and cannot be slowed: what is more than the rate is refused at
        once.
        """
        name, usage, now_s = self._rules.holder(host), connection.usage, self._now_s()
        if name is None or usage is None:
            return None
        names = [(self._addresses, name)] if user is None else [(self._addresses, name), (self._users, user)]
        held = [(of, _guest(of, each, usage, now_s)) for of, each in names if not of.shares.quota.is_off]
        own = _own_connection(request, host)
        for _, guest in held:
            guest.unanswered += 1
        found = [(of, guest, of.guest_excess(guest, own, now_s)) for of, guest in held]
        for _, guest in held:
            guest.unanswered -= 1
        for of, guest, excess in found:
            if excess is not None and may_refuse(request):
                return of.refusal(guest.share.name, excess, 1, now_s)
        for of, guest in held:
            of.charge_guest(guest, own, now_s, request)
        if not request.flag & ONEWAY_FLAG:
            usage.opened(request.opaque, tuple(guest for _, guest in held))
        return None

    def exempt(self, connection: Connection) -> None:
        """It is another node's, or what an endpoint asks for itself: whose clients keep their quotas."""
        if connection.usage is not None and not connection.usage.is_endpoint:
            self.leave(connection)

    def trust(self, connection: Connection) -> None:
        """It is a gRPC endpoint's, as its signature proves: the clients for whom it asks have quotas."""
        usage = connection.usage
        if self._rules.is_off or (usage is not None and usage.is_signed):
            return
        self.leave(connection)
        connection.usage = Usage(Share(ENDPOINT), is_endpoint=True, is_signed=True)

    def _forget_guests(self, usage: Usage, now_s: float) -> None:
        """Those that have sent nothing for a while, and the oldest of too many."""
        for _ in range(FORGOTTEN_AT_ONCE):
            key = next(iter(usage.guests), None)
            if key is None:
                return
            guest = usage.guests[key]
            if now_s - guest.used_s <= GUEST_S and len(usage.guests) <= GUESTS_MAX:
                return
            del usage.guests[key]
            if guest.unanswered:
                guest.used_s, usage.guests[key] = now_s, guest
            else:
                self._dismiss(key[0], guest, now_s)

    def _dismiss(self, of: str, guest: Guest, now_s: float) -> None:
        holders = self._users if of == self._users.of else self._addresses
        holders.shares.dismiss(guest, now_s)

    def user_refusal(
        self, name: str, request: RemotingCommand, connection: Connection
    ) -> RequestError | None:
        """Why the user, whose request it is as its signature proves, may not send it now."""
        usage, users = connection.usage, self._users
        if usage is None:
            return None
        size_bytes, usage.user_bytes = usage.user_bytes, 0
        if users.shares.quota.is_off:
            return None
        now_s, share = self._now_s(), usage.user
        if share is None or share.name != name:
            share = self._join_user(name, connection, usage, now_s)
        excess: Excess | None = TOO_MANY_CONNECTIONS
        if share is not None:
            excess = users.excess(share, connection, usage, now_s, 1)
        if excess is not None and may_refuse(request):
            _slow_refused(connection, usage.address if share is None else share, now_s, 1)
            return users.refusal(name, excess, 1, now_s)
        if share is not None:
            users.charge(share, connection, usage, now_s, (request,), size_bytes)
        return None

    def _join_user(self, name: str, connection: Connection, usage: Usage, now_s: float) -> Share | None:
        """The share of a connection's user; None: the user has too many connections."""
        self._leave_user(connection, usage, now_s)
        if not self._users.shares.has_room(name):
            return None
        share = self._users.shares.join(name, connection, now_s)
        usage.set_user(share)
        return share

    def recently_refused(self) -> str:
        """Holders whose requests or connections were refused in the last minutes; empty: none."""
        names = self.tallies.recently_refused(self._now_s())
        more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
        return ", ".join(names[:SHOWN_MAX]) + more


def _guest(of: Holders, name: str, usage: Usage, now_s: float) -> Guest:
    """The holder's part in an endpoint's connection, used now."""
    key = of.of, name
    guest = usage.guests.pop(key, None) or of.shares.welcome(name, now_s)
    guest.used_s, usage.guests[key] = now_s, guest
    return guest


def _own_connection(request: RemotingCommand, host: str) -> str | None:
    """By which of its connections to the endpoint the client has sent it; None: that is not said."""
    port = request.ext_fields.get(GRPC_PORT, "")
    return f"{host} {port}" if len(port) <= PORT_CHARS_MAX and port.isascii() and port.isdigit() else None


def may_refuse(request: RemotingCommand) -> bool:
    return request.code not in SLOWED_ONLY and not request.flag & ONEWAY_FLAG


def _slow_refused(connection: Connection, share: Share, now_s: float, count: int) -> None:
    """So many of its requests have been refused."""
    share.refused_until_s = max(share.refused_until_s, now_s) + count / REFUSALS_PER_S
    connection.slow(min(share.refused_until_s - now_s, PAUSE_MAX_S))


def _without(requests: list[RemotingCommand], refused: list[RemotingCommand]) -> list[RemotingCommand]:
    gone = set(map(id, refused))
    return [request for request in requests if id(request) not in gone]


def _loop_s() -> float:
    return asyncio.get_running_loop().time()
