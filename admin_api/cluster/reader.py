"""Asks the name servers and every node, and builds one view of the cluster from their answers, the leader's
view of the followers, and their last answers.

A value that no node reported is None. A node that stopped answering stays in the view with its last known
state.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from admin_api.cluster.schemas import (
    ClusterView,
    ElectionView,
    EpochView,
    GroupState,
    GroupView,
    GrpcEndpointView,
    LastKnown,
    LogView,
    MemberProgress,
    MembershipView,
    NamesrvView,
    NodeMember,
    NodeState,
    NodeView,
    PushView,
)
from admin_api.gateway import AskError, Gateway, Gathered
from admin_api.settings import Settings
from admin_api.sources.brokers import Listed, addresses_in, listed_of, peer_addresses, read_node_status
from admin_api.sources.name_server import NameServersSource
from broker.admin.types import NodeRole, NodeStatusMessage, PeerView
from remoting.headers.namesrv import GRPC_ENDPOINTS
from remoting.route import MASTER_ID, ClusterInfo
from sockets.dialled import is_usable_transport

ENDPOINTS_MAX: Final = 64
ENDPOINTS_VALID_MS: Final = 5_000
ENDPOINTS_KEPT_MS: Final = 86_400_000
"""An endpoint that was killed is shown as down for this long."""
CONNECT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """A node's last answer and when it came (Unix time in ms)."""

    status: NodeStatusMessage
    at_ms: int


class Memory:
    """Bounded: beyond `nodes_max` the node unseen for longest is dropped."""

    def __init__(self, nodes_max: int) -> None:
        self._nodes_max = nodes_max
        self._sightings: dict[tuple[str, str], Sighting] = {}

    def remember(self, status: NodeStatusMessage, now_ms: int) -> None:
        key = (status.broker_name, status.node_id)
        self._sightings.pop(key, None)
        self._sightings[key] = Sighting(status, now_ms)
        if len(self._sightings) > self._nodes_max:
            del self._sightings[next(iter(self._sightings))]

    def broker_names(self) -> set[str]:
        return {broker_name for broker_name, _ in self._sightings}

    def sightings(self, broker_name: str) -> Mapping[str, Sighting]:
        """Node id -> last answer, of one group."""
        return {node_id: seen for (name, node_id), seen in self._sightings.items() if name == broker_name}

    def addresses(self) -> set[str]:
        """Where the remembered nodes were to be asked."""
        return {seen.status.remoting_address for seen in self._sightings.values()}


ELECTIONS_MAX = 32
IN_SYNC_LAG_MS = 1_000
"""A peer that lacks nothing older than this is in sync: what is under way to it is no lag."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of asking one address: a status, or the reason why there is none."""

    address: str
    status: NodeStatusMessage | None
    problem: str | None = None
    is_stock: bool = False
    """It answered, and does not know the request: a stock RocketMQ broker, which reports no replication."""


@dataclass(slots=True)
class _Group:
    """What is known of one group while its view is built."""

    broker_name: str
    statuses: dict[str, NodeStatusMessage] = field(default_factory=dict)
    listed: list[Listed] = field(default_factory=list)

    def leader(self) -> NodeStatusMessage | None:
        """The answering leader; of two that claim it, the one of the higher term. One of an earlier
        generation leads none but itself and its like.
        """
        leaders = (s for s in self._current() if s.role is NodeRole.LEADER)
        return max(leaders, key=_term, default=None)

    def newest(self) -> NodeStatusMessage | None:
        """The leader's answer, or that of the highest term."""
        return self.leader() or max(self._current() or self.statuses.values(), key=_term, default=None)

    def _current(self) -> list[NodeStatusMessage]:
        return [status for status in self.statuses.values() if status.newer_generation is None]

    def outdated(self) -> dict[str, int]:
        """Node id -> the generation in which an operator went on without it; by its own word or others'."""
        found = {
            node.id: status.generation
            for status in self._current()
            for node in status.older_nodes
            if status.generation is not None
        }
        own = {each.node_id: each.newer_generation for each in self.statuses.values()}
        return found | {node_id: newer for node_id, newer in own.items() if newer is not None}

    def peers(self) -> dict[str, PeerView]:
        """Every peer anyone named, the leader's word before the others'."""
        found: dict[str, PeerView] = {}
        leader = self.leader()
        others = [status for status in self.statuses.values() if status is not leader]
        for status in others if leader is None else [leader, *others]:
            for peer in status.peers:
                found.setdefault(peer.id, peer)
        older = (node for status in self._current() for node in status.older_nodes)
        return found | {
            node.id: PeerView(
                id=node.id,
                replication_address=node.replication_address,
                remoting_address=node.remoting_address or None,
            )
            for node in older
            if node.id not in found
        }


def assemble(
    namesrvs: Sequence[NamesrvView],
    listed: Sequence[Listed],
    answers: Mapping[str, Answer],
    memory: Memory,
    now_ms: int,
    endpoints: Sequence[GrpcEndpointView] = (),
) -> ClusterView:
    """The view at `now_ms`; `answers` is keyed by address and holds every address that was asked."""
    groups: dict[str, _Group] = {}
    for entry in listed:
        groups.setdefault(entry.broker_name, _Group(entry.broker_name)).listed.append(entry)
    for answer in answers.values():
        if (status := answer.status) is not None:
            group = groups.setdefault(status.broker_name, _Group(status.broker_name))
            group.statuses[status.node_id] = status
    for name in memory.broker_names():
        groups.setdefault(name, _Group(name))
    views = [_group_view(groups[name], answers, memory) for name in sorted(groups)]
    return ClusterView(
        as_of_ms=now_ms,
        namesrv=_of_all(namesrvs),
        namesrvs=list(namesrvs),
        groups=views,
        grpc_endpoints=list(endpoints),
    )


def _of_all(namesrvs: Sequence[NamesrvView]) -> NamesrvView:
    up = next((each for each in namesrvs if each.state is NodeState.UP), None)
    if up is not None:
        return up
    problem = "; ".join(each.problem for each in namesrvs if each.problem is not None)
    return namesrvs[0].model_copy(update={"problem": problem})


def _group_view(group: _Group, answers: Mapping[str, Answer], memory: Memory) -> GroupView:
    leader = group.leader()
    newest = group.newest()
    remembered = memory.sightings(group.broker_name)
    known = newest or next((seen.status for seen in remembered.values()), None)
    cluster = known.cluster if known else next((entry.cluster for entry in group.listed), None)
    nodes = _nodes(group, leader, answers, remembered)
    return GroupView(
        group=known.group if known else group.broker_name,
        cluster=cluster,
        broker_name=group.broker_name,
        state=_group_state(group, leader, answers),
        durability=newest.durability if newest else None,
        accepts_messages=leader.accepts_messages if leader else None,
        leader_id=leader.node_id if leader else None,
        term=newest.term if newest else None,
        in_sync=[node.id for node in nodes if node.id and node.is_in_sync] if leader else None,
        epochs=[EpochView(term=e.term, first_index=e.first_index) for e in newest.epochs] if newest else None,
        watermarks_by_term=_watermarks(leader) if leader else None,
        elections=_elections(group.statuses.values()) if group.statuses else None,
        membership=_membership(newest),
        nodes=nodes,
    )


def _term(status: NodeStatusMessage) -> int:
    return -1 if status.term is None else status.term


def _membership(newest: NodeStatusMessage | None) -> MembershipView | None:
    if newest is None or newest.members is None:
        return None
    index, level = newest.configuration_index, newest.format_level
    if index is None or level is None or newest.is_configuration_committed is None:
        return None
    return MembershipView(
        format_level=level,
        configuration_index=index,
        is_committed=newest.is_configuration_committed,
        generation=newest.generation or 0,
    )


def _member_views(newest: NodeStatusMessage | None) -> dict[str, NodeMember] | None:
    """By id; None: not known. How much of the log each has only the leader knows."""
    if newest is None or newest.members is None:
        return None
    return {
        member.id: NodeMember(
            role=member.role,
            replaces=member.replaces,
            replication_address=member.replication_address,
            progress=_progress(newest, member.id),
        )
        for member in newest.members
    }


def _progress(leader: NodeStatusMessage, member_id: str) -> MemberProgress | None:
    peer = next((peer for peer in leader.peers if peer.id == member_id), None)
    end, begin = leader.end_position, leader.begin_position
    if peer is None or peer.lag_bytes is None or end is None or begin is None:
        return None
    total = end - begin
    return MemberProgress(
        total_bytes=total, received_bytes=max(0, total - peer.lag_bytes), bytes_per_s=peer.bytes_per_s
    )


def _watermarks(leader: NodeStatusMessage) -> dict[str, dict[str, int]]:
    return {str(term): marks for term, marks in leader.watermarks_by_term.items()}


def _group_state(
    group: _Group, leader: NodeStatusMessage | None, answers: Mapping[str, Answer]
) -> GroupState:
    if leader is not None and leader.is_writable:
        return GroupState.WRITABLE
    if _stock_master(group, answers) is not None:
        return GroupState.WRITABLE
    return GroupState.ELECTING if group.statuses else GroupState.DOWN


def _stock_master(group: _Group, answers: Mapping[str, Answer]) -> str | None:
    """The address of a stock broker that answers and is listed for writes."""
    masters = (entry.address for entry in group.listed if entry.broker_id == MASTER_ID)
    return next((address for address in masters if (a := answers.get(address)) and a.is_stock), None)


def _elections(statuses: Iterable[NodeStatusMessage]) -> list[ElectionView]:
    """The nodes' histories joined: one line a term, oldest first.

    The new leader's own word comes first, then the earliest that names it, then any.
    """
    by_node = [(status.node_id, election) for status in statuses for election in status.elections]
    by_node.sort(key=lambda one: (one[0] != one[1].leader_id, one[1].leader_id is None, one[1].at_ms))
    by_term: dict[int, ElectionView] = {}
    for _, e in by_node:
        view = ElectionView(at_ms=e.at_ms, term=e.term, leader_id=e.leader_id, reason=e.reason)
        by_term.setdefault(e.term, view)
    return [by_term[term] for term in sorted(by_term)][-ELECTIONS_MAX:]


def _nodes(
    group: _Group,
    leader: NodeStatusMessage | None,
    answers: Mapping[str, Answer],
    remembered: Mapping[str, Sighting],
) -> list[NodeView]:
    broker_ids = {entry.address: entry.broker_id for entry in group.listed}
    peers = group.peers()
    members, outdated = _member_views(group.newest()), group.outdated()
    views = [_up_node(s, _from_leader(s.node_id, leader), broker_ids) for s in group.statuses.values()]
    # A node that was removed, and is down as it is meant to be, is not shown.
    silent_ids = peers.keys() | remembered.keys() if members is None else members.keys() | outdated.keys()
    for node_id in silent_ids - group.statuses.keys():
        silent = _Silent(node_id, peers.get(node_id), _from_leader(node_id, leader), remembered.get(node_id))
        views.append(_silent_node(silent, broker_ids, answers))
    views = [_placed(view, (members or {}).get(view.id or ""), outdated.get(view.id or "")) for view in views]
    shown = {view.remoting_address for view in views}
    views.extend(_unnamed_node(e, answers.get(e.address)) for e in group.listed if e.address not in shown)
    return sorted(views, key=lambda view: (view.id is None, view.id or "", view.remoting_address or ""))


def _placed(view: NodeView, member: NodeMember | None, newer_generation: int | None) -> NodeView:
    return view.model_copy(update={"member": member, "newer_generation": newer_generation})


def _log_view(status: NodeStatusMessage) -> LogView:
    return LogView(
        begin_index=status.begin_index,
        end_index=status.end_index,
        persisted_index=status.persisted_index,
        committed_index=status.committed_index,
        applied_index=status.applied_index,
        end_position=status.end_position,
        committed_position=status.committed_position,
    )


def _push_view(peer: PeerView) -> PushView:
    return PushView(
        state=peer.push_state,
        match_index=peer.match_index,
        next_index=peer.next_index,
        is_connected=peer.is_connected,
        last_contact_ms=peer.last_contact_ms,
        is_throttled=peer.is_throttled,
    )


def _is_in_sync(peer: PeerView, committed_index: int | None) -> bool | None:
    """By the leader's count; None when it does not report enough."""
    if peer.is_connected is False or peer.push_state in ("COMPARE", "TRUNCATE"):
        return False
    if peer.match_index is None or committed_index is None:
        return None
    if peer.match_index >= committed_index:
        return True
    return None if peer.lag_ms is None else peer.lag_ms <= IN_SYNC_LAG_MS


@dataclass(frozen=True, slots=True)
class _FromLeader:
    """A member as the leader sees it, which alone knows how far it is behind."""

    lag_entries: int | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    is_in_sync: bool | None = None
    push: PushView | None = None


def _from_leader(node_id: str, leader: NodeStatusMessage | None) -> _FromLeader:
    if leader is None:
        return _FromLeader()
    if node_id == leader.node_id:
        return _FromLeader(0, 0, 0, True)
    peer = next((peer for peer in leader.peers if peer.id == node_id), None)
    if peer is None:
        return _FromLeader()
    is_in_sync = _is_in_sync(peer, leader.committed_index)
    return _FromLeader(peer.lag_entries, peer.lag_bytes, peer.lag_ms, is_in_sync, _push_view(peer))


def _up_node(s: NodeStatusMessage, from_leader: _FromLeader, broker_ids: Mapping[str, int]) -> NodeView:
    return NodeView(
        id=s.node_id,
        state=NodeState.UP,
        is_ledgermq=True,
        broker_id=broker_ids.get(s.remoting_address),
        release=s.release,
        protocol_version=s.protocol_version,
        format_level=s.format_level,
        format_level_max=s.format_level_max,
        remoting_address=s.remoting_address,
        replication_address=s.replication_address,
        role=s.role,
        impairment=s.impairment,
        term=s.term,
        leader_id=s.leader_id,
        is_writable=s.is_writable,
        log=_log_view(s),
        lag_entries=from_leader.lag_entries,
        lag_bytes=from_leader.lag_bytes,
        lag_ms=from_leader.lag_ms,
        is_in_sync=from_leader.is_in_sync,
        push=from_leader.push,
        pid=s.pid,
        started_at_ms=s.started_at_ms,
    )


@dataclass(frozen=True, slots=True)
class _Silent:
    """A node without an answer: anyone's word for its addresses, the leader's for its lag, its own last."""

    node_id: str
    named: PeerView | None
    from_leader: _FromLeader
    seen: Sighting | None

    @property
    def remoting_address(self) -> str | None:
        named = self.named.remoting_address if self.named else None
        return named or (self.seen.status.remoting_address if self.seen else None)

    @property
    def replication_address(self) -> str | None:
        if self.named is not None:
            return self.named.replication_address
        return self.seen.status.replication_address if self.seen else None


def _silent_node(silent: _Silent, broker_ids: Mapping[str, int], answers: Mapping[str, Answer]) -> NodeView:
    address, from_leader = silent.remoting_address, silent.from_leader
    answer = answers.get(address) if address else None
    is_down = answer is not None or (from_leader.push is not None and from_leader.push.is_connected is False)
    return NodeView(
        id=silent.node_id,
        state=NodeState.DOWN if is_down else NodeState.UNKNOWN,
        is_ledgermq=True,
        broker_id=broker_ids.get(address) if address else None,
        remoting_address=address,
        replication_address=silent.replication_address,
        lag_entries=from_leader.lag_entries,
        lag_bytes=from_leader.lag_bytes,
        lag_ms=from_leader.lag_ms,
        is_in_sync=from_leader.is_in_sync,
        push=from_leader.push,
        problem=answer.problem if answer else "its client address is not known yet",
        last_known=_last_known(silent.seen) if silent.seen else None,
    )


def _last_known(seen: Sighting) -> LastKnown:
    s = seen.status
    return LastKnown(at_ms=seen.at_ms, role=s.role, term=s.term, pid=s.pid, log=_log_view(s))


def _unnamed_node(entry: Listed, answer: Answer | None) -> NodeView:
    """The name server lists an address that no node claims: of a stock broker, or gone, or never heard of."""
    if answer is not None and answer.is_stock:
        return NodeView(
            id=None,
            state=NodeState.UP,
            broker_id=entry.broker_id,
            remoting_address=entry.address,
            is_ledgermq=False,
            is_writable=True if entry.broker_id == MASTER_ID else None,
        )
    return NodeView(
        id=None,
        state=NodeState.UNKNOWN if answer is None else NodeState.DOWN,
        broker_id=entry.broker_id,
        remoting_address=entry.address,
        problem=answer.problem if answer else "not asked",
    )


class ClusterReader:
    """Reads the cluster on demand and remembers what it saw; it runs nothing of its own."""

    def __init__(self, gateway: Gateway, settings: Settings, now_ms: Callable[[], int] | None = None) -> None:
        self._gateway = gateway
        self._settings = settings
        self._now_ms = now_ms or _unix_ms
        self._memory = Memory(settings.nodes_max)
        self._listed: tuple[Listed, ...] = ()
        self._name_servers = NameServersSource(gateway, settings)
        self._endpoints: tuple[int, list[GrpcEndpointView]] | None = None
        """When they were read, in ms, and what was found."""

    async def read(self) -> ClusterView:
        """One read of everything. Never raises for what a broker or a name server does or fails to do."""
        now_ms = self._now_ms()
        round_ = _Round(self._gateway, self._settings.nodes_max)
        namesrvs, _, endpoints = await asyncio.gather(
            self._ask_listed(round_), round_.ask(self._memory.addresses()), self._read_endpoints(now_ms)
        )
        answers = dict(sorted(round_.answers.items()))
        for answer in answers.values():
            if answer.status is not None:
                self._memory.remember(answer.status, now_ms)
        return assemble(namesrvs, self._listed, answers, self._memory, now_ms, endpoints)

    async def _read_endpoints(self, now_ms: int) -> list[GrpcEndpointView]:
        """Every few seconds; while no name server answers what was known before."""
        known = self._endpoints
        if known is not None and now_ms - known[0] < ENDPOINTS_VALID_MS:
            return known[1]
        try:
            tables = await self._name_servers.ask(lambda server: server.items(GRPC_ENDPOINTS))
        except AskError:
            return [] if known is None else known[1]
        items = [item for table in tables.answers.values() for item in (table or {}).items()]
        addresses = sorted({address for address, seen in items if _is_recent(seen, now_ms)})
        found = list(await asyncio.gather(*map(_endpoint, addresses[:ENDPOINTS_MAX])))
        self._endpoints = now_ms, found
        return found

    async def _ask_listed(self, round_: "_Round") -> list[NamesrvView]:
        namesrvs = await self._read_namesrvs()
        await round_.ask(entry.address for entry in self._listed)
        return namesrvs

    async def _read_namesrvs(self) -> list[NamesrvView]:
        """Refreshes the list of brokers; without an answer the one known before stays in use."""
        asked = await self._name_servers.ask_each(lambda server: server.brokers())
        if asked.answers:
            self._listed = listed_of(asked.answers.values(), self._settings.nodes_max)
        return namesrv_views(self._name_servers.addresses, asked, self._settings.nodes_max)


def namesrv_views(
    addresses: Iterable[str], asked: Gathered[str, ClusterInfo], unlisted_max: int
) -> list[NamesrvView]:
    """Each name server, by the lists that they answered or did not."""
    lists = {address: addresses_in(info) for address, info in asked.answers.items()}
    everyone: set[str] = set().union(*lists.values())
    problems = {trouble.address: trouble.problem for trouble in asked.troubles}
    return [
        NamesrvView(
            address=address,
            state=NodeState.UP if address in lists else NodeState.DOWN,
            problem=problems.get(address),
            unlisted=sorted(everyone - lists.get(address, everyone))[:unlisted_max],
        )
        for address in addresses
    ]


class _Round:
    """One read of all nodes: each is asked once, as soon as its address is known. All time-outs
    run concurrently.
    """

    def __init__(self, gateway: Gateway, nodes_max: int) -> None:
        self.answers: dict[str, Answer] = {}
        self._gateway = gateway
        self._nodes_max = nodes_max
        self._asked: set[str] = set()

    async def ask(self, addresses: Iterable[str]) -> None:
        """These, and those that they name for their peers."""
        room = self._nodes_max - len(self._asked)
        new = sorted(set(addresses) - self._asked)[:room]
        self._asked.update(new)
        await asyncio.gather(*map(self._ask_node, new))

    async def _ask_node(self, address: str) -> None:
        try:
            status = await read_node_status(self._gateway, address)
        except AskError as error:
            self.answers[address] = Answer(address, None, str(error), is_stock=error.code is not None)
        else:
            self.answers[address] = Answer(address, status)
            await self.ask(peer_addresses([status]))


def _is_recent(seen_ms: str, now_ms: int) -> bool:
    """Whether an endpoint entered itself so lately that it is worth a word."""
    return seen_ms.isascii() and seen_ms.isdigit() and now_ms - int(seen_ms[:15]) < ENDPOINTS_KEPT_MS


async def _endpoint(address: str) -> GrpcEndpointView:
    """Whether it accepts connections."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, OverflowError, ValueError) as error:
        problem = "it takes no connection" if isinstance(error, TimeoutError) else str(error)
        return GrpcEndpointView(address=address, state=NodeState.DOWN, problem=problem)
    is_served = is_usable_transport(writer.transport)
    writer.close()
    if not is_served:
        return GrpcEndpointView(address=address, state=NodeState.DOWN, problem="nothing listens there")
    return GrpcEndpointView(address=address, state=NodeState.UP)


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000
