"""Who does not belong to the group and reaches its replication ports: a stranger that tries everything, and a
member of an old configuration that believes to belong there.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from broker.config import BrokerConfig, Peer
from dledger.codec import PROTOCOL_VERSION, Hello, encode_frame
from dledger.core.messages import (
    AppendResponse,
    CompareRequest,
    CompareResponse,
    HeartbeatRequest,
    Message,
    TakeLeadershipRequest,
    TruncateRequest,
    VoteRequest,
)
from dledger.core.types import ResponseCode
from dledger.credentials import MemberCredentials, member_uri
from tests.node_simulation.identity import Certificate, SimulatedCredentials
from tests.node_simulation.machine import Process

AUTHORITY = "the group's"
FALSE_ADDRESS = "10.0.9.9:6"
_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class StrangerOptions:
    """`attempt_ms`: mean virtual time between two connections of the stranger. `age_max_ms`: of a connection
    between members.
    """

    attempt_ms: int = 100
    age_max_ms: int = 5_000


def draw_strangers(seed: int) -> StrangerOptions:
    """The options of a seed; always the same ones."""
    rng = random.Random(f"{seed} strangers")
    return StrangerOptions(rng.choice((20, 100, 500)), rng.choice((2_000, 5_000, 20_000)))


def credentials_of(
    group: str, node_id: str, age_max_ms: int, authority: str = AUTHORITY
) -> MemberCredentials:
    certificate = Certificate(authority, (member_uri(group, node_id),))
    return MemberCredentials(
        SimulatedCredentials("server", certificate, (AUTHORITY,)),
        SimulatedCredentials("client", certificate, (AUTHORITY,)),
        age_max_ms,
    )


def forged_messages(rng: random.Random) -> list[Message]:
    """What has destroyed a group whose members believe everybody."""
    term = rng.choice((1, 2, 50, 1 << 30))
    index = rng.choice((0, 10, 1_000_000))
    messages: list[Message] = [
        HeartbeatRequest(term, index),
        CompareRequest(term, index, index, min(term, 3)),
        TruncateRequest(term, index, index, min(term, 3), 48 * index, True, rng.randint(-1, 50), 1),
        TakeLeadershipRequest(term, index),
        VoteRequest(term, term, index, term, False, True),
        CompareResponse(term, ResponseCode.SUCCESS, index, 0, index, min(term, 1), -1, -1),
        AppendResponse(term, ResponseCode.SUCCESS, 0, rng.randint(0, 100), index),
    ]
    return rng.sample(messages, rng.randint(1, len(messages)))


class Stranger:
    """Connects to members again and again, and says whatever might be believed."""

    def __init__(
        self, group: str, peers: tuple[Peer, ...], options: StrangerOptions, rng: random.Random
    ) -> None:
        self.counts: dict[str, int] = {}
        self.is_on = False
        self._group = group
        self._peers = peers
        self._options = options
        self._rng = rng
        self._attacks: dict[str, Callable[[Peer], bytes]] = {
            "plain text": self._forged,
            "garbage": lambda _: self._rng.randbytes(self._rng.randint(1, 5_000)),
            "garbage as TLS": lambda _: b"\x16" + self._rng.randbytes(self._rng.randint(1, 5_000)),
            "half a greeting": lambda peer: self._greeting("another")[: self._rng.randint(1, 60)],
            "another authority": lambda peer: self._greeting("another") + self._sealed(self._forged(peer)),
            "another group": lambda peer: self._greeting(AUTHORITY, "old") + self._sealed(self._forged(peer)),
            "no member": lambda peer: (
                self._greeting(AUTHORITY, node="n77") + self._sealed(self._forged(peer))
            ),
            "silence": lambda _: b"",
        }

    async def __call__(self, process: Process) -> int:
        while True:
            await asyncio.sleep(self._rng.uniform(0, 2) * self._options.attempt_ms / 1_000)
            if self.is_on:
                await self._attack(self._rng.choice(self._peers), self._rng.choice(list(self._attacks)))

    async def _attack(self, peer: Peer, kind: str) -> None:
        self.counts[f"stranger: {kind}"] = self.counts.get(f"stranger: {kind}", 0) + 1
        try:
            async with asyncio.timeout(_WAIT_S):
                made = asyncio.get_running_loop().create_connection(asyncio.Protocol, peer.host, peer.port)
                transport, _ = await made
        except OSError:
            return
        transport.write(self._attacks[kind](peer))
        delay_s = self._rng.uniform(0, 2 * self._options.attempt_ms / 1_000)
        asyncio.get_running_loop().call_later(delay_s, transport.abort)

    def _forged(self, peer: Peer) -> bytes:
        """In the name of another member."""
        names = [other.id for other in self._peers if other is not peer] or [peer.id]
        hello = Hello(self._group, self._rng.choice(names), PROTOCOL_VERSION, FALSE_ADDRESS)
        frames = [encode_frame(hello), *(encode_frame(message) for message in forged_messages(self._rng))]
        return b"".join(bytes(part) for frame in frames for part in frame)

    def _greeting(self, authority: str, group: str | None = None, node: str | None = None) -> bytes:
        certificate = Certificate(
            authority, (member_uri(group or self._group, node or self._rng.choice(self._peers).id),)
        )
        stream = SimulatedCredentials("client", certificate, ()).stream()
        stream.start()
        return stream.take_outgoing()

    @staticmethod
    def _sealed(plain: bytes) -> bytes:
        stream = SimulatedCredentials("client", Certificate("", ()), ()).stream()
        stream.encrypt([plain])
        return stream.take_outgoing()


def old_member(config: BrokerConfig, ip: str) -> BrokerConfig:
    """The configuration of a node that was a member once: with the group's authority, at another address,
    with peers of which one is gone since.
    """
    kept = [peer for peer in config.peers if peer.id != config.dledger_self_id][:1]
    peers = ";".join(f"{peer.id}-{peer.host}:{peer.port}" for peer in kept)
    own = f"n66-{ip}:{config.own_peer.port}"
    return config.model_copy(
        update={
            "dledger_self_id": "n66",
            "dledger_peers": f"{peers};{own};n65-10.0.9.65:{config.own_peer.port}",
            "bind_address": ip,
            "replication_bind_address": ip,
            "broker_ip": ip,
            "namesrv_addr": "",
        }
    )
