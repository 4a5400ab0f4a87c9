"""Replication messages between the members of a group, over TCP.

Each node connects to every peer and sends on that connection only; it receives on the connections that its
peers opened. Messages are frames of `dledger.codec`.

    connecting node                        accepting node
      Hello (group, id, version 2) ------->
      messages of version 2 -------------->
                                    <----- Welcome (its newest version)
      Introduction (version 3, address) -->
      messages of version 3 -------------->

A connection begins with a Hello of version 2, which release 0.1.0 understands. Where no Welcome answers it,
the connection stays at version 2; a node of 0.1.0 ignores a Welcome. Messages do not wait for it, except in a
group that an operator recovered: members of its different generations must not take each other's messages,
so both ends show their generation first. A node that remembers no promises (an empty disk) takes the newest
generation that a member names; without certificates only one that answers at an address which the
configuration files or the log name.

The peers are the members of the newest configuration. A node that is none of them is a stranger: it may be a
member of a newer or an older configuration, and a group could not go on if it ignored such nodes (thesis
4.1). A stranger that has introduced itself can send messages; so that answers reach it, it is dialled as a
visitor for as long as it sends.

With credentials the bytes go through TLS, and both ends have certificates: what comes over a connection is of
the member that the certificate names (`dledger.credentials`), and a process without one can send nothing.
Certificates are checked while a connection is made, so no connection grows old: the dialling side makes its
successor in time, and the last bytes of the old one arrive before the first of the new one, which costs no
message and no election.

Delivery is best effort, as Raft assumes (5.1: "Servers retry RPCs"). A message for a peer that is not
connected, or whose connection has too many unsent bytes, is dropped: the core sends again after its own
time-outs, and a queue here would only deliver outdated messages later.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

from dledger.codec import (
    CHANGED_SINCE_2,
    HANDSHAKE_TYPES,
    NEWEST_PROTOCOL_VERSION,
    NUMBER_MAX,
    PROTOCOL_VERSION,
    TEXT_BYTES_MAX,
    FrameDecoder,
    Handshake,
    Hello,
    Introduction,
    PeerProtocolError,
    Refused,
    Welcome,
    encode_frame,
    version_needed,
)
from dledger.core.membership import FIXED_MEMBERS_LEVEL, HOST_CHARACTERS_MAX, ID_CHARACTERS_MAX
from dledger.core.messages import Message
from dledger.core.output import Envelope
from dledger.credentials import MemberCredentials, PeerStream, member_id_in, member_uri
from dledger.writer import DirectAck
from sockets.dialled import is_usable_transport
from sockets.listening import listening
from sockets.tls import HANDSHAKE_FIRST_BYTE, PeerNames, TlsError

logger = logging.getLogger(__name__)

Address = tuple[str, int]
_REPLACED_AT: Final = (0.5, 0.75)
"""Of the age limit: between these a connection gets its successor."""
_DAY_S: Final = 86_400
_WARNED_BEFORE_S: Final = 30 * _DAY_S
_JOINED_BYTES_MAX: Final = 256 * 1024
"""More bytes are encrypted buffer by buffer: the copy would cost more than the calls that it saves."""

_ANSWER_BYTES_MAX: Final = 4 * 1024
"""Of a frame from the accepting side: a Welcome or a Refused."""
_SAME_REFUSAL_S: Final = 60
"""A peer that refuses this node again for the same reason is logged this often."""

ENCRYPTED_BYTES_MAX: Final = 2 * 1024 * 1024
"""For one peer in one turn of the loop: 2 ms. What is left leaves in the next turns."""


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Bounds of one node's replication connections.

    connect_timeout_ms: for the connection and, with certificates, its TLS. handshake_timeout_ms: a
    connection without a handshake by then is closed; TLS is a part of it. handshake_bytes_max: a connection
    that sent more bytes than this without a handshake is closed. handshakes_max: connections without a
    handshake yet; a further one closes the oldest. strangers_per_s: with certificates, connections a second
    from addresses of no member, whose handshakes cost time; further ones are closed at once.
    closed_log_interval_ms: closed connections are logged at most this often. unacknowledged_timeout_ms:
    TCP_USER_TIMEOUT, after which the kernel aborts a connection whose bytes the peer's machine does not
    acknowledge. visitors_max: strangers that are dialled; a further one takes the place of the one that sent
    nothing for the longest time. visitor_idle_ms: a visitor that sends nothing for this long is dropped.
    older_nodes_max: nodes of earlier generations that are remembered. older_node_ms: for so long after each
    of their attempts to connect, of which one follows the other within a second.
    """

    frame_bytes_max: int = 32 * 1024 * 1024
    unsent_bytes_max: int = 128 * 1024 * 1024
    connect_timeout_ms: int = 1_000
    reconnect_delay_ms: int = 200
    handshake_timeout_ms: int = 3_000
    handshake_bytes_max: int = 64 * 1024
    handshakes_max: int = 256
    strangers_per_s: int = 20
    closed_log_interval_ms: int = 1_000
    unacknowledged_timeout_ms: int = 10_000
    visitors_max: int = 16
    visitor_idle_ms: int = 60_000
    older_nodes_max: int = 16
    older_node_ms: int = 5_000


@dataclass(frozen=True, slots=True)
class OlderNode:
    """A node of an earlier generation, as it introduced itself at `heard_s` of the event loop's clock."""

    id: str
    replication_address: Address
    client_address: str
    generation: int
    heard_s: float


class MessageSink(Protocol):
    """The receiver of messages. Called on the event loop, for peers and for strangers that introduced
    themselves.
    """

    def on_messages(self, sender: str, messages: list[Message]) -> None:
        """Raises PeerProtocolError for impossible values: then none of the messages counts, and the
        connection is closed.
        """

    def on_peer_connected(self, peer: str) -> None: ...
    def on_peer_disconnected(self, peer: str) -> None: ...
    def on_peer_introduced(self, peer: str, introduction: Introduction) -> None:
        """The peer's connection is of protocol 3. Called after its `on_peer_connected`; messages may have
        come between the two.
        """


class Transport:
    """All replication connections of one node."""

    def __init__(
        self,
        hello: Hello,
        listen: Address,
        peers: Mapping[str, Address],
        sink: MessageSink,
        limits: TransportLimits | None = None,
        credentials: MemberCredentials | None = None,
        release: str = "",
    ) -> None:
        """`peers`: may name this node too, with the address at which the others reach it; otherwise that is
        `listen`. A member is dialled in turn at its address in the log, at the one in `peers`, and at the one
        it introduced itself with: nodes that were stopped may come back with a new one in their files, and
        this node's log may end before the entry that names it. `credentials`: None for connections without
        TLS, whose peers are believed whatever they say. `release`: of this program, for the peers' logs.
        """
        self.hello = hello
        self.sink = sink
        self.limits = limits or TransportLimits()
        self.credentials = credentials
        self.peers = {peer: address for peer, address in peers.items() if peer != hello.node_id}
        self.client_addresses: dict[str, str] = {}
        """Peer -> where it serves clients, as it said when it connected last."""
        self.generation = 0
        self.on_newer_generation: Callable[[int], bool] = lambda generation: False
        """Called with one that this node hears of; whether the node has taken it for its own."""
        self.on_outdated: Callable[[], None] = lambda: None
        """Called when a node of a newer generation shows that this one's members are of the past."""
        self.newest_generation = 0
        """The newest one of another node that this node has not taken."""
        self.older_nodes: dict[str, OlderNode] = {}
        """Nodes of earlier generations that were refused. The last to be heard is the last one."""
        self.unsupported_messages = 0
        """Dropped, because the peer's connection is of an older protocol."""
        self._format_level = FIXED_MEMBERS_LEVEL
        self._release = release
        self._address = peers.get(hello.node_id, listen)
        self._configured = dict(self.peers)
        self._listen = listen
        self._is_running = False
        self._server: asyncio.Server | None = None
        self._dialers = {peer: _Dialer(self, peer, address) for peer, address in self.peers.items()}
        self._ending: dict[_Dialer, asyncio.Task[None]] = {}
        self._visitors: dict[str, float] = {}
        """The time in s at which each last sent something, the earliest first."""
        self._visitors_timer: asyncio.TimerHandle | None = None
        self._refused: dict[str, tuple[str, float]] = {}
        self._inbound: dict[str, _Inbound] = {}
        self._lost: set[str] = set()
        self._releases: dict[str, str] = {}
        """Of members, as the log has them."""
        self._hosts = {address[0] for address in self.peers.values()}
        self._stranger_second = self._strangers = 0
        self._warned_s: dict[str, float] = {}
        self._encoded: Message | None = None
        self._frame: Sequence[bytes | memoryview] = ()
        self._open: dict[_Inbound, None] = {}
        self._unidentified: dict[_Inbound, None] = {}
        self._closed_unlogged = 0
        self._closed_logged_s: float | None = None

    async def start(self) -> None:
        """Listens and starts connecting. Raises OSError when the address can't be bound."""
        host, port = self._listen
        loop = asyncio.get_running_loop()
        self._server = await listening(
            lambda: loop.create_server(lambda: _Inbound(self), host, port), host, port
        )
        self._is_running = True
        for dialer in self._dialers.values():
            dialer.start()

    async def stop(self) -> None:
        self._is_running = False
        if self._server is not None:
            self._server.close()
        if self._visitors_timer is not None:
            self._visitors_timer.cancel()
        for ending in self._ending.values():
            ending.cancel()
        dialers = [*self._dialers.values(), *self._ending]
        await asyncio.gather(*(dialer.stop() for dialer in dialers))
        for inbound in list(self._open):
            inbound.close()

    # -- the members

    def set_peers(self, peers: Mapping[str, Address], format_level: int, generation: int) -> None:
        """The members of the configuration that the node uses from now on, with its format level and
        generation. A connection to a member goes on, at whatever address: the node there has said who it is,
        and an address in the log may be of the past. What was sent to a removed member leaves before its
        connection ends; one that speaks protocol 3 stays as a visitor. With a newer generation all
        connections end, and new ones are made. An older one has no effect: a node that fills up its log
        passes the configurations from before the recovery.
        """
        own_id = self.hello.node_id
        generation = max(generation, self.generation)
        is_same_generation = generation == self.generation
        self._format_level, self.generation = format_level, generation
        self.peers = {peer: address for peer, address in peers.items() if peer != own_id}
        self._hosts = {address[0] for address in self.peers.values()}
        for peer, dialer in list(self._dialers.items()):
            self._review(peer, dialer, is_same_generation)
        for peer, address in self.peers.items():
            if peer not in self._dialers:
                self._dial(peer, address)
        for known in (self.client_addresses, self._releases):
            for node_id in known.keys() - self.peers.keys():
                del known[node_id]
        for inbound in list(self._inbound.values()):
            if not is_same_generation:
                inbound.refuse(f"{own_id} is of generation {generation} from here on")
            else:
                inbound.set_stranger(self.is_stranger(inbound.peer))

    def _note_older(self, hello: Hello, introduction: Introduction) -> None:
        self.older_nodes.pop(hello.node_id, None)
        if len(self.older_nodes) >= self.limits.older_nodes_max:
            del self.older_nodes[next(iter(self.older_nodes))]
        self.older_nodes[hello.node_id] = OlderNode(
            hello.node_id,
            (introduction.replication_host, introduction.replication_port),
            hello.client_address,
            introduction.generation,
            asyncio.get_running_loop().time(),
        )

    def takes_generation(self, node_id: str, generation: int, dialled: Address | None) -> bool:
        """Takes the newer generation of another node, if this one has none of its own; otherwise this node is
        outdated. `dialled`: the address at which this node reached it; None when it made the connection.

        A generation never falls while a node runs, so a wrong one makes it deaf to its own group. A
        certificate proves that a member of the group names it. Without one any process that reaches the port
        could, also through the address with which it introduces itself, which is then dialled; but who
        answers at an address of the files or the log was chosen by an operator.
        """
        named = (self.peers.get(node_id), self._configured.get(node_id))
        is_believed = self.credentials is not None or (dialled is not None and dialled in named)
        if not self.generation < generation <= NUMBER_MAX or not is_believed:
            return False
        if not self.on_newer_generation(generation):
            self._note_newer(node_id, generation)
            return False
        logger.warning("taking generation %d of the group, of which %s is", generation, node_id)
        peers = {**self.peers, self.hello.node_id: self._address}
        self.set_peers(peers, self._format_level, generation)
        return True

    def _note_newer(self, node_id: str, generation: int) -> None:
        if generation > self.newest_generation:
            self.newest_generation = generation
            logger.warning(
                "an operator has decided without this node who the members are (ledgermq recover): %s is of "
                "generation %d, %s of %d. It is not registered at name servers; stop it and empty its store",
                node_id,
                generation,
                self.hello.node_id,
                self.generation,
            )
            self.on_outdated()

    def _review(self, peer: str, dialer: "_Dialer", is_same_generation: bool) -> None:
        """One node that was dialled, after the peers have changed."""
        dialer.address = self.peers.get(peer, dialer.address)
        if not is_same_generation:
            self._end(peer)
        elif peer in self.peers:
            self._visitors.pop(peer, None)
        elif peer not in self._visitors:
            inbound = self._inbound.get(peer)
            if inbound is not None and inbound.introduction is not None:
                self.heard(inbound)
            else:
                self._end(peer)

    def addresses_of(self, peer: str, logged: Address) -> list[Address]:
        """Where to dial a node whose address in the log is given."""
        addresses = {logged: None, self._configured.get(peer, logged): None}
        inbound = self._inbound.get(peer)
        if inbound is not None and inbound.introduction is not None:
            addresses[inbound.introduced_address] = None
        return list(addresses)

    def is_stranger(self, node_id: str | None) -> bool:
        return node_id not in self.peers

    def _dial(self, peer: str, address: Address) -> None:
        dialer = self._dialers[peer] = _Dialer(self, peer, address)
        if self._is_running:
            dialer.start()

    def _end(self, peer: str) -> None:
        """Dials it no longer. What was sent to it leaves first."""
        dialer = self._dialers.pop(peer)
        self._visitors.pop(peer, None)
        self._refused.pop(peer, None)
        if self._is_running:
            ending = asyncio.create_task(dialer.end(), name=f"end {peer}")
            self._ending[dialer] = ending
            ending.add_done_callback(lambda _: self._ending.pop(dialer))

    # -- strangers

    def heard(self, inbound: "_Inbound") -> None:
        """A stranger has sent something: it is a visitor for `visitor_idle_ms` more."""
        peer, limits = inbound.peer, self.limits
        assert peer is not None
        assert inbound.introduction is not None
        self._visitors.pop(peer, None)
        if len(self._visitors) >= limits.visitors_max:
            self._drop_visitor(next(iter(self._visitors)))
        now_s = asyncio.get_running_loop().time()
        self._visitors[peer] = now_s
        if peer not in self._dialers:
            self._dial(peer, inbound.introduced_address)
        if self._visitors_timer is None:
            self._expire_visitors()

    def _drop_visitor(self, peer: str) -> None:
        """Its own connection ends too, so that strangers have no more of them than there may be visitors. It
        can make another one.
        """
        self._end(peer)
        inbound = self._inbound.get(peer)
        if inbound is not None:
            inbound.close()

    def _expire_visitors(self) -> None:
        loop = asyncio.get_running_loop()
        self._visitors_timer = None
        idle_s = self.limits.visitor_idle_ms / 1000
        for peer, heard_s in list(self._visitors.items()):
            if loop.time() < heard_s + idle_s:
                self._visitors_timer = loop.call_at(heard_s + idle_s, self._expire_visitors)
                break
            self._drop_visitor(peer)

    # -- sending

    def send(self, peer: str, message: Message) -> None:
        """Queues the message for this turn's flush, or drops it. A message to several
        peers is encoded once.
        """
        if message is not self._encoded:
            self._encoded, self._frame = message, encode_frame(message)
        dialer = self._dialers.get(peer)
        if dialer is None:
            return
        if type(message) in CHANGED_SINCE_2 and self._is_unsupported(message, dialer.connection):
            return
        dialer.connection.send(self._frame)

    def _is_unsupported(self, message: Message, connection: "_Outbound") -> bool:
        """Whether the connection's version does not have this message. Counts those that are dropped so."""
        is_unsupported = version_needed(message) > connection.version
        self.unsupported_messages += is_unsupported and connection.is_open
        return is_unsupported

    def flush(self) -> None:
        """Writes what `send` queued: one write for each peer."""
        for dialer in self._dialers.values():
            dialer.connection.flush()
        self._encoded, self._frame = None, ()

    def send_all(self, envelopes: Iterable[Envelope]) -> None:
        """Sends each and flushes."""
        for envelope in envelopes:
            self.send(envelope.to, envelope.message)
        self.flush()

    def direct_ack(self, envelope: Envelope) -> DirectAck | None:
        """Prepares this message to be sent by the writer thread; None when the event loop has to send it."""
        dialer = self._dialers.get(envelope.to)
        return None if dialer is None else dialer.connection.direct_ack(envelope.message)

    def is_connected(self, peer: str) -> bool:
        """Whether messages can reach the peer now."""
        return self.version_of(peer) is not None

    def version_of(self, peer: str) -> int | None:
        """The protocol version for messages to this peer or visitor; None while it is not connected."""
        dialer = self._dialers.get(peer)
        if dialer is None or not dialer.connection.is_open:
            return None
        return dialer.connection.version

    def speaks_newest(self, peer: str) -> bool:
        """Whether both connections with the peer are of the newest protocol."""
        inbound = self._inbound.get(peer)
        has_introduced = inbound is not None and inbound.introduction is not None
        return has_introduced and self.version_of(peer) == NEWEST_PROTOCOL_VERSION

    def introduction(self) -> Introduction:
        """Of this node."""
        return Introduction(
            NEWEST_PROTOCOL_VERSION, *self._address, self._format_level, self.generation, self._release
        )

    # -- accepting

    def welcome(self) -> Welcome:
        """Of this node."""
        return Welcome(
            NEWEST_PROTOCOL_VERSION, self.hello.node_id, self._format_level, self.generation, self._release
        )

    def opened(self, inbound: "_Inbound") -> None:
        """A new connection, not identified yet. Their number is bounded, and the newest are kept: a member
        sends its handshake at once, so a flood of other connections can't keep it out.
        """
        self._open[inbound] = None
        self._unidentified[inbound] = None
        if self.credentials is not None and inbound.host not in self._hosts and self._are_too_many():
            inbound.refuse(f"over {self.limits.strangers_per_s} connections a second of no member's address")
            return
        if len(self._unidentified) > self.limits.handshakes_max:
            oldest = next(iter(self._unidentified))
            del self._unidentified[oldest]
            oldest.refuse(f"{self.limits.handshakes_max} newer connections wait for their handshake")

    def _are_too_many(self) -> bool:
        """Counts a connection of no member's address. The handshakes of many such connections would take the
        time of the event loop; those of members do not compete with them.
        """
        second = int(asyncio.get_running_loop().time())
        if second != self._stranger_second:
            self._stranger_second, self._strangers = second, 0
        self._strangers += 1
        return self._strangers > self.limits.strangers_per_s

    def identified(self, inbound: "_Inbound", hello: Hello) -> None:
        """The handshake of a peer. Its newest connection counts, the one before is closed: after a power
        failure the old one may look open for a long time.
        """
        self._unidentified.pop(inbound, None)
        self._lost.discard(hello.node_id)
        previous = self._inbound.get(hello.node_id)
        self._inbound[hello.node_id] = inbound
        self.note_client_address(hello)
        if previous is not None:
            previous.close()
        self.sink.on_peer_connected(hello.node_id)

    def note_client_address(self, hello: Hello) -> None:
        if not self.is_stranger(hello.node_id):
            self.client_addresses[hello.node_id] = hello.client_address

    def introduced(self, inbound: "_Inbound", introduction: Introduction) -> None:
        """The Introduction of a node whose Hello was accepted."""
        assert inbound.peer is not None
        if inbound.is_stranger:
            dialer = self._dialers.get(inbound.peer)
            if dialer is not None and dialer.address != inbound.introduced_address:
                self._end(inbound.peer)
            self.heard(inbound)
        elif self._releases.get(inbound.peer) != introduction.release:
            self._releases[inbound.peer] = introduction.release
            logger.info("%s runs release %.64r", inbound.peer, introduction.release)
        self.sink.on_peer_introduced(inbound.peer, introduction)

    def lost(self, inbound: "_Inbound") -> None:
        self._open.pop(inbound, None)
        self._unidentified.pop(inbound, None)
        peer = inbound.peer or inbound.certified
        if peer is None:
            return
        if self._inbound.get(peer) is inbound:
            del self._inbound[peer]
            self._lost.add(peer)
        # A member that replaces its connection ends the old one before the new one's handshake: it is not
        # gone, and its followers need no election.
        if peer in self._lost and all(other.certified != peer for other in self._unidentified):
            self._lost.remove(peer)
            self.sink.on_peer_disconnected(peer)

    def log_closed(self, name: str, reason: str) -> None:
        """Logs why a connection is closed, at a bounded rate: anyone can open connections."""
        now_s = asyncio.get_running_loop().time()
        interval_s = self.limits.closed_log_interval_ms / 1000
        if self._closed_logged_s is not None and now_s - self._closed_logged_s < interval_s:
            self._closed_unlogged += 1
            return
        more = f" ({self._closed_unlogged} more since the last logged one)" if self._closed_unlogged else ""
        logger.warning("closing the replication connection of %s: %s%s", name, reason, more)
        self._closed_logged_s, self._closed_unlogged = now_s, 0

    def log_refused(self, peer: str, reason: str) -> None:
        """Logs why a peer refuses this node's connection, the same reason at a bounded rate."""
        now_s = asyncio.get_running_loop().time()
        logged, logged_s = self._refused.get(peer, ("", 0.0))
        if reason != logged or now_s - logged_s >= _SAME_REFUSAL_S:
            self._refused[peer] = (reason, now_s)
            logger.warning("%s refuses the replication connection of this node: %r", peer, reason)

    def warn_of_end(self, peer: str, names: PeerNames) -> None:
        """Logs once a day that a member's certificate ends soon: those of a group mostly end together, and
        then no member hears another.
        """
        now_s = time.time()
        if names.ends_at_s is None or names.ends_at_s - now_s > _WARNED_BEFORE_S:
            return
        if now_s - self._warned_s.get(peer, 0) >= _DAY_S:
            self._warned_s[peer] = now_s
            days = max(0, int((names.ends_at_s - now_s) // _DAY_S))
            logger.warning("the certificate of %s for replication ends in %d days: renew it", peer, days)

    def refusal(self, hello: Hello) -> str | None:
        """The reason to refuse the peer of this handshake; None when it is accepted."""
        if hello.version != PROTOCOL_VERSION:
            return f"speaks replication protocol {hello.version}, this node {PROTOCOL_VERSION}"
        if hello.group != self.hello.group:
            return f"is of group {hello.group!r}, this node of {self.hello.group!r}"
        is_name = 1 <= len(hello.node_id) <= ID_CHARACTERS_MAX and hello.node_id.isprintable()
        if hello.node_id == self.hello.node_id or (self.is_stranger(hello.node_id) and not is_name):
            return f"calls itself {hello.node_id[:100]!r}, which is not another member of the group"
        return None

    def needs_introduction(self, node_id: str) -> bool:
        """Whether messages of this node are dropped before its Introduction: those of a stranger, since only
        protocol 3 has an address for the answers, and in a recovered group those of all nodes, which may be
        of an older generation.
        """
        return self.generation > 0 or self.is_stranger(node_id)

    def missing_introduction(self, node_id: str) -> str:
        """The reason to refuse a node that needs an Introduction and sends none."""
        only = f"speaks replication protocol {PROTOCOL_VERSION} only"
        if self.is_stranger(node_id):
            return f"the peer calls itself {node_id!r}, which is not another member of the group, and {only}"
        return f"the peer {only}, and this group was recovered by an operator (generation {self.generation})"

    def introduction_refusal(self, hello: Hello, introduction: Introduction) -> str | None:
        """The reason to refuse the peer of this Introduction; None when it is accepted."""
        node_id = hello.node_id
        if not PROTOCOL_VERSION < introduction.version <= NEWEST_PROTOCOL_VERSION:
            return f"{node_id} introduces itself with replication protocol {introduction.version}"
        host, port = introduction.replication_host, introduction.replication_port
        if not 1 <= len(host) <= HOST_CHARACTERS_MAX or not 1 <= port <= 65535:
            return f"{node_id} has the replication address {host[:100]!r}:{port}"
        own_id = self.hello.node_id
        if self.takes_generation(node_id, introduction.generation, dialled=None):
            return f"{own_id} takes generation {introduction.generation} from here on: connect again"
        if introduction.generation != self.generation:
            older = own_id
            if introduction.generation < self.generation:
                older = node_id
                self._note_older(hello, introduction)
            return (
                f"{node_id} is of generation {introduction.generation} of the group, {own_id} of generation "
                f"{self.generation}: an operator has decided who the members are (ledgermq recover), and "
                f"{older} does not know of it"
            )
        self.older_nodes.pop(node_id, None)
        return None

    def member_in(self, names: PeerNames) -> str | None:
        """The other member of this group, peer or stranger, that a certificate names; None when it is of no
        such member.
        """
        found = [member_id_in(self.hello.group, uri) for uri in names.uris]
        others = [each for each in found if each is not None and each != self.hello.node_id]
        return next((each for each in others if each in self.peers), others[0] if others else None)

    def uri_of(self, peer: str) -> str:
        return member_uri(self.hello.group, peer)


def set_tcp_user_timeout(fd: int, timeout_ms: int) -> None:
    """Makes the kernel end a connection whose other machine is gone (tcp(7), TCP_USER_TIMEOUT; Linux).

    By default the kernel retransmits for a quarter of an hour, with pauses of up to two minutes: a peer that
    lost power for a while would wait that long for its leader.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connected:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)


class _Dialer:
    """Keeps a connection to one peer: each attempt to connect has a new `_Outbound`, until it is stopped."""

    def __init__(self, owner: Transport, peer: str, address: Address) -> None:
        self._owner = owner
        self._peer = peer
        self.address = address
        self.connection = _Outbound(owner, peer, address)
        self._attempts = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._dial_forever(), name=f"dial {self._peer}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.connection.drop()

    async def end(self) -> None:
        """As `stop`, but what was sent leaves first, if the peer reads it in time."""
        try:
            if self.connection.is_open:
                await self.connection.end()
        finally:
            await self.stop()

    async def _dial_forever(self) -> None:
        limits = self._owner.limits
        while True:
            addresses = self._owner.addresses_of(self._peer, self.address)
            made = _Outbound(self._owner, self._peer, addresses[self._attempts % len(addresses)])
            if not self.connection.is_open:
                self.connection = made
            is_due = False
            try:
                async with asyncio.timeout(limits.connect_timeout_ms / 1000):
                    await self._dial(made)
                await self._succeed(made)
                is_due = await self._is_due(made)
            except OSError:  # TimeoutError is one; a peer that is down is ordinary
                pass
            except Exception as error:  # noqa: BLE001 (whatever a loop raises there: the next attempt follows)
                self._owner.log_closed(self._peer, f"connecting to it failed: {error!r}")
            finally:
                # A time-out may come after `connection_made`, and uvloop then calls no `connection_lost`.
                if not is_due:
                    made.drop()
            if not is_due:
                self._attempts = 0 if made.is_welcome else self._attempts + 1
                await asyncio.sleep(limits.reconnect_delay_ms / 1000)

    async def _dial(self, connection: "_Outbound") -> None:
        await asyncio.get_running_loop().create_connection(lambda: connection, *connection.address)
        if self._owner.credentials is not None:
            await connection.established()

    async def _succeed(self, made: "_Outbound") -> None:
        """Send on this connection from now on. If another one is open, its last bytes arrive first: a message
        that was lost between the two would be sent again only after a time-out.
        """
        previous = self.connection
        if previous is not made:
            # The peer knows by then that this connection has its certificate, and the end of the other one
            # is no failure (`Transport.lost`). The other one works meanwhile.
            await asyncio.sleep(self.successor_delay_ms / 1000)
            self.connection = made
            made.version = previous.version  # until the Welcome: it is the same peer
            await previous.end()
        made.greet()

    async def _is_due(self, connection: "_Outbound") -> bool:
        """Waits until the connection is closed, or so old that it needs a successor: then it returns True."""
        if self._owner.credentials is None:
            await connection.closed.wait()
            return False
        # Not all connections of a group at once, which began at the same time.
        first, last = _REPLACED_AT
        link = zlib.crc32(f"{self._owner.hello.node_id} {self._peer}".encode()) % 100
        try:
            async with asyncio.timeout(self._age_max_ms / 1000 * (first + (last - first) * link / 100)):
                await connection.closed.wait()
        except TimeoutError:
            return True
        return False

    @property
    def successor_delay_ms(self) -> float:
        """Long enough for the handshake to reach the peer, and shorter than it waits for a Hello."""
        return min(self._owner.limits.reconnect_delay_ms, self._age_max_ms / 50)

    @property
    def _age_max_ms(self) -> int:
        assert self._owner.credentials is not None
        return self._owner.credentials.connection_age_max_ms


class _Outbound(asyncio.Protocol):
    """One outgoing connection. Once it is dropped, later callbacks of the event loop have no effect.

    No method raises: delivery is best effort, and an error of its transport ends this connection only.
    """

    def __init__(self, owner: Transport, peer: str, address: Address) -> None:
        self.closed = asyncio.Event()
        self.address = address
        self.version = PROTOCOL_VERSION
        self._owner = owner
        self._peer = peer
        self._decoder = FrameDecoder(_ANSWER_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._stream: PeerStream | None = None
        self._is_certified = owner.credentials is None
        self._has_greeted = False
        self.is_welcome = False
        """The right node has answered."""
        self._is_held = True
        """Messages wait: for the Hello, and in a recovered group for a Welcome of the same generation."""
        self._answer_limit: asyncio.TimerHandle | None = None
        self._established = asyncio.Event()
        self._age_limit: asyncio.TimerHandle | None = None
        self._fd: int | None = None
        self._direct_ack: DirectAck | None = None
        self._outbox: list[bytes | memoryview] = []
        self._outbox_bytes = 0
        self._is_flush_due = False

    @property
    def is_open(self) -> bool:
        """Whether messages may reach the peer: with certificates only after its own was checked."""
        return self._transport is not None and self._is_certified and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.closed.is_set():
            self.drop()
            return
        try:
            self._begin(self._transport)
        except Exception as error:  # noqa: BLE001 (see the class)
            self._fail(error)

    def _begin(self, transport: asyncio.Transport) -> None:
        if not is_usable_transport(transport):
            self.drop()  # the peer is down; `_Dialer` connects again
            return
        if self._owner.credentials is None:
            self.greet()
        else:
            self._stream = self._owner.credentials.dialling.stream()
            self._stream.start()
            transport.write(self._stream.take_outgoing())
        transport.set_write_buffer_limits(high=0)  # a push leaves at once, whatever else the turn does
        connected = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # without a descriptor the writer thread sends nothing
            self._fd = None if connected is None else os.dup(connected.fileno())
        if self._fd is not None:
            set_tcp_user_timeout(self._fd, self._owner.limits.unacknowledged_timeout_ms)

    def greet(self) -> None:
        """Say who this node is. What was sent before that leaves now."""
        if not self._has_greeted:
            self._has_greeted = True
            self._write(list(encode_frame(self._owner.hello)))
            if self._owner.generation > 0:
                self._limit_answer()
            else:
                self._is_held = False
                self.flush()

    # -- what the peer answers

    async def established(self) -> None:
        """Returns when the peer has shown who it is. Raises ConnectionError when the connection ends
        instead.
        """
        await self._established.wait()
        if not self.is_open:
            raise ConnectionAbortedError("the connection ended before the TLS handshake was complete")

    def data_received(self, data: bytes) -> None:
        """A peer sends its messages on its own connection; here is only its part of the handshake."""
        stream, transport = self._stream, self._transport
        if transport is None:
            return
        try:
            for frame in self._decoder.feed(data if stream is None else self._decrypt(stream, data)):
                self._receive(frame)
                if self._transport is None:
                    return  # the frame ended this connection
        except (TlsError, PeerProtocolError) as error:
            self._refuse(transport, error)
        except Exception as error:  # noqa: BLE001 (see the class)
            self._fail(error)
        if self._transport is None or stream is None:
            return
        if outgoing := stream.take_outgoing():
            transport.write(outgoing)
        if stream.is_at_end:
            self.drop()

    def _decrypt(self, stream: PeerStream, data: bytes) -> bytes:
        """The plain bytes in what came. Raises TlsError, PeerProtocolError."""
        plain = stream.receive(data)
        if stream.is_established and not self._is_certified:
            self._certify(stream.peer_names())
        return plain

    def _refuse(self, transport: asyncio.Transport, error: Exception) -> None:
        """Ends the connection. With TLS the alert leaves, with which the peer's log can say why."""
        self._owner.log_closed(self._peer, str(error))
        if self._stream is None or self._is_certified:
            self.drop()
            return
        transport.write(self._stream.take_outgoing())
        transport.close()
        self._established.set()

    def _receive(self, frame: Message | Handshake) -> None:
        """Raises PeerProtocolError."""
        if isinstance(frame, Refused):
            self._owner.log_refused(self._peer, frame.reason)
            self.drop()
        elif isinstance(frame, Welcome) and self._has_greeted and not self.is_welcome:
            self._introduce(frame)
            self.is_welcome = True
        else:
            raise PeerProtocolError(f"it answers with a {type(frame).__name__}")

    def _introduce(self, welcome: Welcome) -> None:
        """Raises PeerProtocolError when the node that answers is not the one that was dialled."""
        if welcome.node_id != self._peer:
            raise PeerProtocolError(f"the node at its address calls itself {welcome.node_id[:100]!r}")
        if welcome.version <= PROTOCOL_VERSION:
            return
        if self._owner.takes_generation(self._peer, welcome.generation, self.address):
            return  # this connection ends, and another one is made
        self.version = min(welcome.version, NEWEST_PROTOCOL_VERSION)
        is_same = welcome.generation == self._owner.generation
        introduction = list(encode_frame(self._owner.introduction()))
        if self._is_held:  # nothing has left yet, and the peer ignores what comes before the Introduction
            self._outbox = [*introduction, *(self._outbox if is_same else ())]
        else:
            self._outbox += introduction
        self._outbox_bytes = sum(map(len, self._outbox))
        self._is_held = False
        self._cancel_answer_limit()
        self.flush()
        if not is_same:
            self._is_held = True
            self._limit_answer()  # it sends the reason to refuse this node

    def _limit_answer(self) -> None:
        delay_s = self._owner.limits.handshake_timeout_ms / 1000
        self._answer_limit = asyncio.get_running_loop().call_later(delay_s, self._no_answer)

    def _cancel_answer_limit(self) -> None:
        if self._answer_limit is not None:
            self._answer_limit.cancel()
            self._answer_limit = None

    def _no_answer(self) -> None:
        generation = self._owner.generation
        self._owner.log_closed(self._peer, f"it does not say that it is of generation {generation}")
        self.drop()

    def _certify(self, names: PeerNames) -> None:
        """Raises PeerProtocolError when who answers is not the peer that was dialled."""
        expected = self._owner.uri_of(self._peer)
        if expected not in names.uris:
            raise PeerProtocolError(f"its certificate names {_listed(names)}, not {expected}")
        self._owner.warn_of_end(self._peer, names)
        assert self._owner.credentials is not None
        age_max_s = self._owner.credentials.connection_age_max_ms / 1000
        self._age_limit = asyncio.get_running_loop().call_later(age_max_s, self.drop)
        self._is_certified = True
        self._established.set()

    async def end(self) -> None:
        """Returns when the peer has read everything, or took too long; then the connection is dropped."""
        while self._outbox and not self._is_held:
            self._flush_part()
        self._end_direct_ack()
        if self._transport is not None and self._stream is not None:
            self._stream.end()
            self._transport.write(self._stream.take_outgoing())
        elif self._transport is not None:
            self._transport.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._owner.limits.connect_timeout_ms / 1000):
                await self.closed.wait()
        self.drop()

    def eof_received(self) -> None:
        """The peer has closed its side. `drop` aborts: an ordinary close would wait until the peer received
        the unsent bytes.
        """
        self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self.drop()

    def drop(self) -> None:
        """Ends the connection in any state. A second call has no effect."""
        # First the transport: ending the direct acknowledgement must not write the rest of its frame there.
        transport, self._transport = self._transport, None
        age_limit, self._age_limit = self._age_limit, None
        if age_limit is not None:
            age_limit.cancel()
        self._cancel_answer_limit()
        self._end_direct_ack()
        fd, self._fd = self._fd, None
        with contextlib.suppress(OSError):
            if fd is not None:
                os.close(fd)
        self._outbox.clear()
        self._outbox_bytes = 0
        self.closed.set()
        self._established.set()
        if transport is not None:
            with contextlib.suppress(Exception):  # there is nothing left that it could end
                transport.abort()

    def _fail(self, error: Exception) -> None:
        self._owner.log_closed(self._peer, f"it cannot be written to: {error!r}")
        self.drop()

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        if not self.is_open:
            return
        size = sum(map(len, buffers))
        # A peer that does not read must not fill this node's memory; the core sends again after a time-out.
        if self._unsent_bytes() + self._outbox_bytes + size > self._owner.limits.unsent_bytes_max:
            return
        self._outbox.extend(buffers)
        self._outbox_bytes += size

    def flush(self) -> None:
        if self._outbox and not self._is_held and not self._is_flush_due:
            self._flush_part()

    def _flush_part(self) -> None:
        self._is_flush_due = False
        if not self._outbox:
            return  # dropped meanwhile
        self._end_direct_ack()  # two writers would interleave their frames
        outbox, self._outbox = self._outbox, []
        if self._stream is not None and self._outbox_bytes > ENCRYPTED_BYTES_MAX:
            outbox, self._outbox = _split(outbox, ENCRYPTED_BYTES_MAX)
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush_part)
        self._outbox_bytes = sum(map(len, self._outbox))
        self._write(outbox)

    def direct_ack(self, message: Message) -> DirectAck | None:
        """A DirectAck, if the loop has nothing unsent on this connection: frames must not overtake each
        other.

        The thread writes to a duplicate of the descriptor: when the loop closes the connection, the system
        may reuse the original's number for another one. `flush` ends the DirectAck before the loop writes
        again.
        """
        # With TLS the loop alone can make the bytes that are sent.
        if self._stream is not None or self._outbox or self._unsent_bytes() or self._fd is None:
            return None
        if not self.is_open or self._is_held:
            return None
        self._end_direct_ack()
        self._direct_ack = DirectAck(
            self._fd, b"".join(encode_frame(message)), lambda rest: self._write([rest])
        )
        return self._direct_ack

    def _end_direct_ack(self) -> None:
        if self._direct_ack is not None:
            self._direct_ack.stop()
            self._direct_ack = None

    def _unsent_bytes(self) -> int:
        try:
            return self._transport.get_write_buffer_size() if self._transport is not None else 0
        except Exception as error:  # noqa: BLE001 (see the class)
            self._fail(error)
            return 0

    def _write(self, buffers: list[bytes | memoryview]) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        try:
            if self._stream is not None:
                buffers = [self._encrypted(self._stream, buffers)]
            self._transport.writelines(buffers)
        except Exception as error:  # noqa: BLE001 (see the class)
            self._fail(error)

    @staticmethod
    def _encrypted(stream: PeerStream, buffers: list[bytes | memoryview]) -> bytes:
        """Small buffers share a record of TLS, and a call. Raises TlsError."""
        is_small = sum(map(len, buffers)) <= _JOINED_BYTES_MAX
        stream.encrypt([b"".join(buffers)] if is_small else buffers)
        return stream.take_outgoing()


def _split(
    buffers: list[bytes | memoryview], size: int
) -> tuple[list[bytes | memoryview], list[bytes | memoryview]]:
    """The first `size` bytes, and the rest."""
    for number, buffer in enumerate(buffers):
        if len(buffer) > size:
            cut = memoryview(buffer)
            return [*buffers[:number], cut[:size]], [cut[size:], *buffers[number + 1 :]]
        size -= len(buffer)
    return buffers, []


class _Inbound(asyncio.Protocol):
    """An incoming connection: TLS if there are certificates, the handshake, then messages."""

    def __init__(self, owner: Transport) -> None:
        self.peer: str | None = None
        self.certified: str | None = None
        """The member that its certificate names, from the end of the TLS handshake on."""
        self.introduction: Introduction | None = None
        self.is_stranger = False
        self._hello: Hello | None = None
        credentials = owner.credentials
        self._stream = None if credentials is None else credentials.accepting.stream()
        self._owner = owner
        self._decoder = FrameDecoder(owner.limits.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._address = "?"
        self.host = ""
        self._deadline: asyncio.TimerHandle | None = None
        self._unidentified_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        self._address = str(address)
        self.host = address[0] if address else ""
        delay = self._owner.limits.handshake_timeout_ms / 1000
        self._deadline = asyncio.get_running_loop().call_later(delay, self._no_handshake)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        stream = self._stream
        try:
            if self._hello is None:
                self._check_first_byte(data)
            messages = self._decoder.feed(data if stream is None else self._decrypt(stream, data))
            if self.peer is None or not HANDSHAKE_TYPES.isdisjoint(map(type, messages)):
                self._shake_hands(data, messages)
            else:
                self._deliver(cast("list[Message]", messages))
        except PeerProtocolError as error:
            self.refuse(str(error))
        else:
            if stream is not None and stream.is_at_end:
                self.close()

    def _check_first_byte(self, data: bytes) -> None:
        """A sentence for the log where one member has certificates and the other has none."""
        is_tls = data[0] == HANDSHAKE_FIRST_BYTE
        if self._stream is None and is_tls and not self._unidentified_bytes:
            raise PeerProtocolError("it speaks TLS, and this node has no certificates for replication")
        if self._stream is not None and not is_tls and not self._unidentified_bytes:
            raise PeerProtocolError("it does not speak TLS; every member needs the group's certificates")

    def _decrypt(self, stream: PeerStream, data: bytes) -> bytes:
        """The plain bytes in what came. Raises PeerProtocolError."""
        assert self._transport is not None
        try:
            plain = stream.receive(data)
        except TlsError as error:
            self._transport.write(stream.take_outgoing())  # the alert, with which the peer's log can say why
            raise PeerProtocolError(str(error)) from None
        if outgoing := stream.take_outgoing():
            self._transport.write(outgoing)
        if stream.is_established and self.certified is None:
            self.certified = self._owner.member_in(stream.peer_names())
            if self.certified is None:
                names = _listed(stream.peer_names())
                raise PeerProtocolError(f"its certificate names {names}: no other member of the group")
        return plain

    def _shake_hands(self, data: bytes, frames: list[Message | Handshake]) -> None:
        """Frames with parts of the handshake among them. Raises PeerProtocolError."""
        messages: list[Message] = []
        for frame in frames:
            if self._hello is None:
                self._greeted(frame)
            elif isinstance(frame, Introduction) and self.introduction is None:
                self._deliver(messages)
                messages = []
                self._introduced(self._hello, frame)
            elif isinstance(frame, Handshake):
                raise PeerProtocolError("a second handshake")
            elif self.peer is not None:
                messages.append(frame)
        self._deliver(messages)
        if self.peer is None:
            self._count_unidentified(data)

    def _count_unidentified(self, data: bytes) -> None:
        self._unidentified_bytes += len(data)
        if self._unidentified_bytes > self._owner.limits.handshake_bytes_max:
            raise PeerProtocolError(f"no handshake within {self._unidentified_bytes} bytes")

    def _greeted(self, hello: Message | Handshake) -> None:
        if not isinstance(hello, Hello):
            raise PeerProtocolError("the first frame is not a handshake")
        self._hello = hello
        refusal = self._owner.refusal(hello)
        if refusal is not None:
            raise PeerProtocolError(f"the peer {refusal}")
        if (
            self._stream is not None
            and self._owner.uri_of(hello.node_id) not in self._stream.peer_names().uris
        ):
            raise PeerProtocolError(
                f"the peer calls itself {hello.node_id!r}, its certificate {self.certified!r}"
            )
        self._answer(self._owner.welcome())
        if not self._owner.needs_introduction(hello.node_id):
            self._identified(hello)

    def _introduced(self, hello: Hello, introduction: Introduction) -> None:
        refusal = self._owner.introduction_refusal(hello, introduction)
        if refusal is not None:
            raise PeerProtocolError(refusal)
        self.introduction = introduction
        if self.peer is None:
            self._identified(hello)
        self._owner.introduced(self, introduction)

    def _identified(self, hello: Hello) -> None:
        self.peer = hello.node_id
        self.is_stranger = self._owner.is_stranger(self.peer)
        self._cancel_deadline()
        if self._owner.credentials is not None:
            age_max_s = self._owner.credentials.connection_age_max_ms / 1000
            self._deadline = asyncio.get_running_loop().call_later(age_max_s, self._too_old)
        self._owner.identified(self, hello)

    @property
    def introduced_address(self) -> Address:
        """Where the node of this connection accepts connections."""
        assert self.introduction is not None
        return self.introduction.replication_host, self.introduction.replication_port

    def set_stranger(self, is_stranger: bool) -> None:
        """After a change of the members."""
        self.is_stranger = is_stranger
        assert self._hello is not None
        if is_stranger and self.introduction is None:
            self.refuse(self._owner.missing_introduction(self._hello.node_id))
        elif not is_stranger:
            self._owner.note_client_address(self._hello)

    def _deliver(self, messages: list[Message]) -> None:
        if not messages or self.peer is None:
            return
        if self.is_stranger:
            self._owner.heard(self)
        self._owner.sink.on_messages(self.peer, messages)

    def _no_handshake(self) -> None:
        if self._hello is None:
            self.refuse("no handshake")
        else:
            self.refuse(self._owner.missing_introduction(self._hello.node_id))

    def _too_old(self) -> None:
        self.refuse("the peer made no new connection in time")

    def refuse(self, reason: str) -> None:
        """Closes it, and logs why, here and at a peer that has sent its Hello."""
        self._owner.log_closed(self.peer or self._address, reason)
        if self._hello is not None:
            self._answer(Refused(reason.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")))
        self.close()

    def _answer(self, frame: Handshake) -> None:
        buffers = list(encode_frame(frame))
        with contextlib.suppress(Exception):  # it ends anyway, or goes on as if the peer had not read this
            assert self._transport is not None
            if self._stream is not None:
                self._stream.encrypt(buffers)
                buffers = [self._stream.take_outgoing()]
            self._transport.writelines(buffers)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._owner.lost(self)

    def close(self) -> None:
        """Closes it. It counts as lost from now on, whether the loop calls `connection_lost` or not."""
        self._cancel_deadline()
        self._owner.lost(self)
        if self._transport is not None:
            with contextlib.suppress(Exception):  # there is nothing left that it could end
                self._transport.close()


def _listed(names: PeerNames) -> str:
    """The URIs of a certificate for a line of the log; a stranger may have chosen them."""
    return ", ".join(names.uris)[:200] or f"no URI ({names.common_name[:100]!r})"
