"""Quotas: how much of a server one client address, or one user, may use. Pure: the time is an argument.

A rate is a token bucket, kept as one time: up to when everything that was used is paid for at the rate. A
holder that used nothing lately may use what the rate gives in BURST_S at once. Beyond that it has a debt: the
seconds until the rate has paid for it. A quota of 0 is none.
"""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final, Protocol

BURST_S: Final = 1.0
GUEST_S: Final = 60.0
"""A connection to a gRPC endpoint counts for so long after its last request: its end is not seen."""
GUESTS_MAX: Final = 10_000
"""Holders of one endpoint that are remembered without a request in flight."""
FORGOTTEN_AT_ONCE: Final = 4
"""Guests that one turn forgets, more than one request can bring."""
IDLE_MAX: Final = 10_000
"""Holders without a connection that are remembered, because they have not paid for everything yet."""
RECOUNT_S: Final = 0.05
"""Time between two exact counts of the requests in flight of a holder that has too many."""
_V6_BITS: Final = 64

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Kind(StrEnum):
    """What a quota is of."""

    REQUESTS = "requests"
    BYTES = "bytes"
    CONNECTIONS = "connections"
    IN_FLIGHT = "in_flight"


@dataclass(frozen=True, slots=True)
class Quota:
    """Of one holder; 0: unlimited. Bytes are those received and sent."""

    requests_per_s: int = 0
    bytes_per_s: int = 0
    connections_max: int = 0
    in_flight_max: int = 0

    @property
    def is_off(self) -> bool:
        return not (self.requests_per_s or self.bytes_per_s or self.connections_max or self.in_flight_max)

    def words(self, kind: Kind) -> str:
        """Such as `2000 requests a second`."""
        match kind:
            case Kind.REQUESTS:
                return f"{self.requests_per_s} requests a second"
            case Kind.BYTES:
                return f"{self.bytes_per_s} bytes a second"
            case Kind.CONNECTIONS:
                return f"{self.connections_max} connections"
        return f"{self.in_flight_max} requests in flight"


def networks(text: str) -> tuple[Network, ...]:
    """Addresses and networks, separated by `,`. Raises ValueError that quotes the first that is none."""
    return tuple(ipaddress.ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip())


@dataclass(frozen=True)
class QuotaRules:
    """`address`: of each client address, `user`: of each user. Addresses in `exempt` have neither, nor has
    loopback unless `on_loopback`. `endpoints`: of gRPC endpoints, which name the addresses of their clients.
    """

    address: Quota = field(default_factory=Quota)
    user: Quota = field(default_factory=Quota)
    on_loopback: bool = False
    exempt: tuple[Network, ...] = ()
    endpoints: tuple[Network, ...] = ()

    @cached_property
    def is_off(self) -> bool:
        return self.address.is_off and self.user.is_off

    def holder(self, host: str) -> str | None:
        """Whose quota a connection from this address uses; None: it has no quota.

        IPv6 addresses count by their network of 64 bits: a machine can take any address of its network.
        """
        address = None if self.is_off else _address(host)
        if address is None:
            return None
        if address.is_loopback and not self.on_loopback:
            return None
        if any(address in network for network in self.exempt):
            return None
        return _name_of(address)

    def is_endpoint(self, host: str) -> bool:
        """Whether a connection from this address may name the clients for whom it asks."""
        if self.is_off or not self.endpoints:
            return False
        address = _address(host)
        return address is not None and any(address in network for network in self.endpoints)


def holder_of(host: str) -> str | None:
    """The address or network by which this one counts; None: of this machine, or not of IP."""
    address = _address(host)
    return None if address is None or address.is_loopback else _name_of(address)


def _name_of(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    if isinstance(address, ipaddress.IPv6Address) and not address.is_loopback:
        return str(ipaddress.ip_network((address, _V6_BITS), strict=False))
    return str(address)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None: it is not that of a socket of IP."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


class Member(Protocol):
    """A connection of a holder, or its part in the connection of a gRPC endpoint."""

    @property
    def unanswered(self) -> int:
        """Its requests without an answer."""


class Share:
    """What one holder uses of its quota. Made by `Shares`."""

    __slots__ = (
        *("_bytes_until_s", "_members", "_recounted_s", "_requests_until_s"),
        *("connections", "in_flight", "name", "refused_until_s", "unread_bytes"),
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.unread_bytes = 0
        """Of its connections, in the kernel's buffers, as they were seen last."""
        self.refused_until_s = 0.0
        """When the work on its refused requests is paid for."""
        self.in_flight = 0
        """As of the last count of each connection."""
        self.connections = 0
        """To this server, and to gRPC endpoints."""
        self._members: dict[Member, int] = {}
        self._requests_until_s = self._bytes_until_s = self._recounted_s = float("-inf")

    @property
    def is_held(self) -> bool:
        """Whether a connection is its."""
        return bool(self._members)

    def join(self, member: Member, connections: int = 1) -> None:
        self._members[member] = 0
        self.connections += connections

    def leave(self, member: Member, connections: int = 1) -> None:
        self.in_flight -= self._members.pop(member)
        self.connections -= connections

    def charge(self, quota: Quota, now_s: float, requests: int, size_bytes: int) -> None:
        """It has used so much."""
        earliest_s = now_s - BURST_S
        if quota.requests_per_s:
            self._requests_until_s = max(self._requests_until_s, earliest_s) + requests / quota.requests_per_s
        if quota.bytes_per_s:
            self._bytes_until_s = max(self._bytes_until_s, earliest_s) + size_bytes / quota.bytes_per_s

    def forgive(self) -> None:
        """It has nothing to pay."""
        self._requests_until_s = self._bytes_until_s = float("-inf")

    def debt_s(self, now_s: float) -> float:
        """Until all is paid for; 0 or less: it may go on."""
        return max(self._requests_until_s, self._bytes_until_s) - now_s

    @property
    def dearest(self) -> Kind:
        """Of which rate the debt is."""
        return Kind.REQUESTS if self._requests_until_s >= self._bytes_until_s else Kind.BYTES

    def excess(self, quota: Quota, now_s: float, member: Member) -> int:
        """How many requests too many are in flight. `member` has got some just now."""
        count = member.unanswered
        self.in_flight += count - self._members[member]
        self._members[member] = count
        most = quota.in_flight_max
        if not most or self.in_flight <= most:
            return 0
        # The other connections' counts are old, and answers have been sent since: count all again.
        if now_s - self._recounted_s >= RECOUNT_S:
            self._recounted_s = now_s
            self._members = {each: each.unanswered for each in self._members}
            self.in_flight = sum(self._members.values())
        return max(0, self.in_flight - most)

    def is_paid(self, now_s: float) -> bool:
        """Whether a new share would be the same."""
        return not self._members and self.debt_s(now_s) <= -BURST_S


@dataclass(slots=True, eq=False)
class Guest:
    """What one holder uses of the connection of a gRPC endpoint, which is that of many clients.

    unanswered: its requests without an answer.
    size_bytes: of answers that are not charged yet.
    """

    share: Share
    unanswered: int = 0
    size_bytes: int = 0
    used_s: float = 0.0
    _seen_s: dict[str, float] = field(default_factory=dict)
    """When each of its connections to the endpoint sent its last request, the oldest first."""

    @property
    def connections(self) -> int:
        return len(self._seen_s)

    def has_room(self, connection: str, quota: Quota, now_s: float) -> bool:
        """Whether a request over this one of its connections is over one too many."""
        self._forget(now_s)
        most = quota.connections_max
        return not most or connection in self._seen_s or self.share.connections < most

    def see(self, connection: str, quota: Quota, now_s: float) -> None:
        """A request has come over it."""
        if not quota.connections_max:
            return  # or there would be no bound
        self.share.connections -= len(self._seen_s)
        self._seen_s.pop(connection, None)
        self._seen_s[connection] = now_s
        self.share.connections += len(self._seen_s)

    def _forget(self, now_s: float) -> None:
        while self._seen_s and now_s - self._seen_s[first := next(iter(self._seen_s))] > GUEST_S:
            del self._seen_s[first]
            self.share.connections -= 1


@dataclass(slots=True)
class Usage:
    """What one connection uses, and of whose quotas.

    size_bytes, user_bytes: read and written, and not charged yet to the address, to the user.
    request_bytes: of one request of the last read, on average.
    unread_bytes: in the kernel's buffer, as it was seen last.
    is_endpoint: it has no quota; the clients for whom it asks have.
    is_signed: they are known once their signatures are verified.
    """

    address: Share
    user: Share | None = None
    size_bytes: int = 0
    user_bytes: int = 0
    request_bytes: int = 1
    unread_bytes: int = 0
    is_endpoint: bool = False
    is_signed: bool = False
    guests: dict[tuple[str, str], Guest] = field(default_factory=dict)
    """Of an endpoint, by kind and name; those whose last request is the oldest first."""
    _open: dict[int, tuple[Guest, ...]] = field(default_factory=dict)
    """Whose each request is that has no answer yet, by its opaque."""

    @property
    def has_open(self) -> bool:
        """Whether `answered` has anything to do."""
        return bool(self._open)

    def opened(self, opaque: int, guests: tuple[Guest, ...]) -> None:
        """A request of these holders is served."""
        self.answered(opaque, 0)  # an endpoint that uses a number twice gets one answer counted
        self._open[opaque] = guests
        for guest in guests:
            guest.unanswered += 1

    def answered(self, opaque: int, size_bytes: int) -> None:
        """The request has its answer, which is so large."""
        for guest in self._open.pop(opaque, ()):
            guest.unanswered -= 1
            guest.size_bytes += size_bytes

    def see_unread(self, size_bytes: int) -> None:
        """So many bytes wait in the kernel's buffer."""
        grown_bytes, self.unread_bytes = size_bytes - self.unread_bytes, size_bytes
        self.address.unread_bytes += grown_bytes
        if self.user is not None:
            self.user.unread_bytes += grown_bytes

    def set_user(self, user: Share | None) -> None:
        """Whose the connection is from now on."""
        unread_bytes = self.unread_bytes
        self.see_unread(0)
        self.user = user
        self.see_unread(unread_bytes)

    def wait_s(self, share: Share, quota: Quota, now_s: float) -> float:
        """Until all that the holder has sent is served: its debt, and what is not read yet."""
        size_bytes, requests_per_s, bytes_per_s = share.unread_bytes, quota.requests_per_s, quota.bytes_per_s
        by_number = size_bytes / self.request_bytes / requests_per_s if requests_per_s else 0.0
        by_size = size_bytes / bytes_per_s if bytes_per_s else 0.0
        return share.debt_s(now_s) + max(by_number, by_size)


class Shares:
    """Of all holders of one kind: those with a connection, and those that still have something to pay. Their
    number is bounded by that of the connections, and IDLE_MAX.
    """

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self._shares: dict[str, Share] = {}
        self._idle: dict[str, Share] = {}

    def __len__(self) -> int:
        return len(self._shares)

    def __iter__(self) -> Iterator[Share]:
        return iter(self._shares.values())

    def change(self, quota: Quota) -> None:
        """This quota is in force; debts are forgiven, since they are times of the earlier rate."""
        self.quota = quota
        for share in self:
            share.forgive()

    def has_room(self, name: str) -> bool:
        """Whether the holder may have one more connection."""
        most, share = self.quota.connections_max, self._shares.get(name)
        return not most or share is None or share.connections < most

    def join(self, name: str, member: Member, now_s: float) -> Share:
        """The holder's share, with one more connection."""
        share = self._found(name, now_s)
        share.join(member)
        return share

    def welcome(self, name: str, now_s: float) -> Guest:
        """A holder's part in the connection of a gRPC endpoint."""
        guest = Guest(self._found(name, now_s))
        guest.share.join(guest, 0)
        return guest

    def _found(self, name: str, now_s: float) -> Share:
        self._forget(now_s)
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = Share(name)
        self._idle.pop(name, None)
        return share

    def leave(self, share: Share, member: Member, now_s: float, connections: int = 1) -> None:
        """The connection is closed, or of another holder now."""
        share.leave(member, connections)
        if not share.is_held:
            self._idle[share.name] = share
        self._forget(now_s)

    def dismiss(self, guest: Guest, now_s: float) -> None:
        """The endpoint's connection is closed, or the holder has sent nothing for a while."""
        guest.share.charge(self.quota, now_s, 0, guest.size_bytes)
        self.leave(guest.share, guest, now_s, guest.connections)

    def _forget(self, now_s: float) -> None:
        """Drop holders that have nothing to pay, and the oldest beyond IDLE_MAX."""
        # Those behind the first one with a debt wait for it: its debt ends, too.
        while self._idle:
            name, share = next(iter(self._idle.items()))
            if not share.is_paid(now_s) and len(self._idle) <= IDLE_MAX:
                return
            del self._idle[name], self._shares[name]
