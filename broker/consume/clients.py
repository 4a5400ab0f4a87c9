"""The connected clients: the producers and consumers of each group, by their heartbeats (ProducerManager,
ConsumerManager).

The table is this node's own and is never replicated: clients send their heartbeats to every node of the
group, so a follower that becomes the leader has them already. It uses no clock and no socket; times are
arguments.

Which consumer groups have running consumers.

Groups whose consumers sent a heartbeat have some. But some clients send no heartbeats and only pull, and a
node that has just started, or has just become the leader, may not have received any heartbeat yet.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from broker.consume.heartbeats import (
    ConsumeFromWhere,
    ConsumerBeat,
    ConsumeType,
    Heartbeat,
    MessageModel,
    Subscription,
)
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.slices import Steps

CLIENT_EXPIRY_MS = 120_000
"""A client that sent no heartbeat for this long is removed (ClientHousekeepingService)."""
MEMBERSHIPS_MAX = 200_000
GROUP_MEMBERS_MAX: Final = 10_000
GROUP_SUBSCRIPTIONS_MAX: Final = 50_000
"""Of all members of one group: they are compared in one step (5 ms)."""


class ClientConnection(Protocol):
    """What the consume side asks of a connection to a client."""

    @property
    def connection_id(self) -> int: ...
    @property
    def remote_host(self) -> str: ...
    @property
    def remote_port(self) -> int: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def is_congested(self) -> bool: ...
    def send(self, command: RemotingCommand) -> None: ...
    def send_oneway(self, command: RemotingCommand) -> None: ...
    async def request(self, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand: ...
    def close(self) -> None: ...


def rebalance_notice(group: str) -> RemotingCommand:
    """40: the client balances its queues now, and not in 20 s."""
    return RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext_fields={"consumerGroup": group})


class RegistryFullError(Exception):
    """The table of clients, or a group in it, is at its bound; the heartbeat was refused."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client as its last heartbeat showed it."""

    client_id: str
    connection: ClientConnection
    language: str
    version: int


@dataclass(slots=True)
class Member:
    """A client's place in one group."""

    client: Client
    last_beat_ms: int
    """By the monotonic clock."""
    subscriptions: tuple[Subscription, ...] = ()
    pops: bool = False
    """Whether it pops, as the clients of the gRPC endpoint do: no queue is assigned to it."""


class Membership(NamedTuple):
    """Names one member of one group."""

    is_consumer: bool
    group: str
    client_id: str


@dataclass(slots=True)
class ConsumerGroup:
    """The consumers of one group, and what the group wants: of each topic the newest subscription of any
    member.
    """

    name: str
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    members: dict[str, Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    subscription_count: int = 0
    """Of all members."""

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING

    def has_room(self, client_id: str, beat: ConsumerBeat) -> bool:
        """Whether the group stays within its bounds with what this client's heartbeat says."""
        member = self.members.get(client_id)
        if member is None and len(self.members) >= GROUP_MEMBERS_MAX:
            return False
        grown = 0 if member is None else -len(member.subscriptions)
        grown += len(beat.subscriptions or ())
        return grown <= 0 or self.subscription_count + grown <= GROUP_SUBSCRIPTIONS_MAX

    def subscribe(self, member: Member, subscriptions: tuple[Subscription, ...]) -> bool:
        """A member's subscriptions become these; whether the group wants another topic or expression now."""
        before, member.subscriptions = member.subscriptions, subscriptions
        self.subscription_count += len(subscriptions) - len(before)
        # All members are looked at only when the group may lose what it has taken from this one: otherwise
        # the heartbeats and goodbyes of a large group would cost the square of its size.
        if any(self.subscriptions.get(each.topic) is each for each in before):
            return self._merge_all()
        return self._merge(subscriptions)

    def _merge(self, subscriptions: Iterable[Subscription]) -> bool:
        is_changed = False
        for each in subscriptions:
            known = self.subscriptions.get(each.topic)
            if known is None or each.version_ms > known.version_ms:
                is_changed |= known is None or known.wanted != each.wanted
                self.subscriptions[each.topic] = each
        return is_changed

    def _merge_all(self) -> bool:
        before = {topic: each.wanted for topic, each in self.subscriptions.items()}
        self.subscriptions = {}
        for member in self.members.values():
            self._merge(member.subscriptions)
        return before != {topic: each.wanted for topic, each in self.subscriptions.items()}


class Expired(NamedTuple):
    """What expired: groups whose consumers must be notified, and connections that send no heartbeats any
    more.
    """

    changed_groups: set[str]
    silent_connections: list[ClientConnection]


class ClientRegistry:
    """Producers and consumers by group. Every method that changes the table returns the consumer groups whose
    members or subscriptions have changed; where one connection may name thousands of members, in steps.
    """

    def __init__(self, *, expiry_ms: int = CLIENT_EXPIRY_MS, memberships_max: int = MEMBERSHIPS_MAX) -> None:
        self._expiry_ms = expiry_ms
        self._memberships_max = memberships_max
        self._producers: dict[str, dict[str, Member]] = {}
        self._producer_groups: dict[str, set[str]] = {}
        """The groups of each client that produces."""
        self._consumers: dict[str, ConsumerGroup] = {}
        self._of_connection: dict[int, set[Membership]] = {}
        self._nudged: set[int] = set()
        """Connections of `_of_connection` that were asked for a rebalance since their last heartbeat."""
        self._by_beat: OrderedDict[Membership, Member] = OrderedDict()
        """All members, the one whose last heartbeat is the oldest first."""

    def __len__(self) -> int:
        """Number of (group, client) pairs."""
        return len(self._by_beat)

    @property
    def producer_groups(self) -> Mapping[str, Mapping[str, Member]]:
        """Members by client id, of every group that has any."""
        return self._producers

    @property
    def consumer_groups(self) -> Mapping[str, ConsumerGroup]:
        return self._consumers

    def consumer_ids(self, group: str) -> list[str]:
        """The client ids of a group's consumers that share its queues, in order; each once, or every client
        would share the queues wrongly.
        """
        known = self._consumers.get(group)
        members = {} if known is None else known.members
        return sorted(name for name, member in members.items() if not member.pops)

    def producer_connection(self, client_id: str) -> ClientConnection | None:
        """Where a client that produces is reached (ProducerManager.findChannel)."""
        for group in self._producer_groups.get(client_id, ()):
            return self._producers[group][client_id].client.connection
        return None

    def beat(self, client: Client, heartbeat: Heartbeat, now_ms: int) -> Steps[set[str]]:
        """Register a heartbeat. Raises RegistryFullError, and has changed nothing then."""
        self._check_room(client.client_id, heartbeat)
        self._nudged.discard(client.connection.connection_id)
        for group in heartbeat.producer_groups:
            members = self._producers.setdefault(group, {})
            self._producer_groups.setdefault(client.client_id, set()).add(group)
            self._put(members, Membership(False, group, client.client_id), client, now_ms)
        changed: set[str] = set()
        for beat in heartbeat.consumers:
            if self._beat_consumer(client, beat, now_ms):
                changed.add(beat.group)
            yield
        return changed

    def unregister(self, client_id: str, producer_group: str | None, consumer_group: str | None) -> set[str]:
        """The client leaves the groups it names (request 35); an empty name is none (C++)."""
        changed: set[str] = set()
        if producer_group:
            changed |= self._drop(Membership(False, producer_group, client_id))
        if consumer_group:
            changed |= self._drop(Membership(True, consumer_group, client_id))
        return changed

    def connection_closed(self, connection_id: int) -> Steps[set[str]]:
        """Remove every client that registered over this connection."""
        changed: set[str] = set()
        while memberships := self._of_connection.get(connection_id):
            changed |= self._drop(memberships.pop())
            yield
        return changed

    def may_nudge(self, connection_id: int) -> bool:
        """Whether a connection may be asked for a rebalance out of turn: once between two heartbeats, so that
        what a client pulls cannot make the broker send it a stream of notices.
        """
        if connection_id not in self._of_connection or connection_id in self._nudged:
            return False
        self._nudged.add(connection_id)
        return True

    def expire(self, now_ms: int) -> Steps[Expired]:
        """Remove every client whose last heartbeat is too old."""
        changed: set[str] = set()
        silent: dict[int, ClientConnection] = {}
        while self._by_beat:
            membership, member = next(iter(self._by_beat.items()))
            if now_ms - member.last_beat_ms <= self._expiry_ms:
                break
            silent[member.client.connection.connection_id] = member.client.connection
            changed |= self._drop(membership)
            yield
        left = [each for number, each in silent.items() if number not in self._of_connection]
        return Expired(changed, left)

    def _check_room(self, client_id: str, heartbeat: Heartbeat) -> None:
        new = sum(client_id not in self._producers.get(group, ()) for group in heartbeat.producer_groups)
        for beat in heartbeat.consumers:
            known = self._consumers.get(beat.group)
            new += known is None or client_id not in known.members
            if known is not None and not known.has_room(client_id, beat):
                raise RegistryFullError(f"group {beat.group} has too many members or subscriptions")
        if new and len(self) + new > self._memberships_max:
            raise RegistryFullError(f"{self._memberships_max} group memberships are registered")

    def _beat_consumer(self, client: Client, beat: ConsumerBeat, now_ms: int) -> bool:
        group = self._consumers.get(beat.group)
        if group is None:
            group = ConsumerGroup(beat.group, beat.consume_type, beat.message_model, beat.consume_from_where)
            self._consumers[beat.group] = group
        group.consume_type = beat.consume_type
        group.message_model = beat.message_model
        group.consume_from_where = beat.consume_from_where
        is_new = client.client_id not in group.members
        member = self._put(group.members, Membership(True, beat.group, client.client_id), client, now_ms)
        member.pops = beat.consume_type is ConsumeType.CONSUME_POP
        if beat.subscriptions is None or beat.subscriptions == member.subscriptions:
            return is_new
        return group.subscribe(member, beat.subscriptions) or is_new

    def _put(self, members: dict[str, Member], membership: Membership, client: Client, now_ms: int) -> Member:
        member = members.get(client.client_id)
        if member is None:
            member = members[client.client_id] = self._by_beat[membership] = Member(client, now_ms)
        else:
            self._unlink(member.client.connection.connection_id, membership)
            self._by_beat.move_to_end(membership)
        member.client = client
        member.last_beat_ms = now_ms
        self._of_connection.setdefault(client.connection.connection_id, set()).add(membership)
        return member

    def _drop(self, membership: Membership) -> set[str]:
        if not membership.is_consumer:
            self._drop_producer(membership)
            return set()
        group = self._consumers.get(membership.group)
        member = group.members.pop(membership.client_id, None) if group is not None else None
        if group is None or member is None:
            return set()
        self._forget(membership, member)
        if group.members:
            group.subscribe(member, ())
        else:
            del self._consumers[group.name]
        return {group.name}

    def _drop_producer(self, membership: Membership) -> None:
        members = self._producers.get(membership.group, {})
        member = members.pop(membership.client_id, None)
        if member is None:
            return
        self._forget(membership, member)
        if not members:
            del self._producers[membership.group]
        groups = self._producer_groups[membership.client_id]
        groups.discard(membership.group)
        if not groups:
            del self._producer_groups[membership.client_id]

    def _forget(self, membership: Membership, member: Member) -> None:
        del self._by_beat[membership]
        self._unlink(member.client.connection.connection_id, membership)

    def _unlink(self, connection_id: int, membership: Membership) -> None:
        memberships = self._of_connection.get(connection_id)
        if memberships is None:
            return
        memberships.discard(membership)
        if not memberships:
            del self._of_connection[connection_id]
            self._nudged.discard(connection_id)


HEARD_WITHIN_MS: Final = 90_000
"""A running consumer sends something within this time: a pull is held for 60 s at most; clients poll for a
new leader and send a heartbeat every 30 s.
"""


class RunningGroups:
    """By the requests that reached this node. Times are a monotonic clock's."""

    def __init__(self, clients: "ClientRegistry", now_ms: Callable[[], int]) -> None:
        self._clients = clients
        self._now_ms = now_ms
        self._pulled: OrderedDict[str, int] = OrderedDict()
        """Groups without a heartbeat, and when each pulled; the latest at the end. Only groups that exist are
        noted, and those of the last HEARD_WITHIN_MS kept."""
        self.heard_since_ms = now_ms()
        """Time (ms) since which clients connect to this node."""

    def begin(self) -> None:
        """This node has become the leader: clients of the previous leader connect to it from now on."""
        self.heard_since_ms = self._now_ms()

    def pulled(self, group: str) -> None:
        """A consumer of the group pulled here."""
        if group in self._clients.consumer_groups:
            return
        now_ms = self._now_ms()
        self._pulled.pop(group, None)
        self._pulled[group] = now_ms
        while (oldest := next(iter(self._pulled))) != group and not self._is_recent(self._pulled[oldest]):
            del self._pulled[oldest]

    def is_known(self, group: str) -> bool:
        """Whether a connected consumer has registered as a member of the group."""
        return group in self._clients.consumer_groups

    def may_run(self, group: str) -> bool:
        """Whether consumers of the group run, as far as this node can know."""
        if self.is_known(group) or self._is_recent(self.heard_since_ms):
            return True
        pulled_ms = self._pulled.get(group)
        return pulled_ms is not None and self._is_recent(pulled_ms)

    def _is_recent(self, time_ms: int) -> bool:
        return self._now_ms() - time_ms < HEARD_WITHIN_MS
