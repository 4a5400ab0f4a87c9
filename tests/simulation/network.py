"""The simulated network: delay, loss, repetition, reordering, and links cut in one or both directions."""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from dledger.codec import FrameDecoder, encode_frame
from dledger.core.messages import Message
from tests.simulation.clock import VirtualClock


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Probabilities are between 0 and 1. `is_ordered`: a link keeps the order, as a TCP connection does."""

    delay_min_us: int = 100
    delay_max_us: int = 2_000
    slow_probability: float = 0.0
    slow_max_us: int = 0
    loss_probability: float = 0.0
    repeat_probability: float = 0.0
    hint_probability: float = 1.0
    is_ordered: bool = True


class Endpoint(Protocol):
    """What the network needs to know of a host."""

    is_up: bool

    def deliver(self, sender: str, message: Message) -> None: ...
    def peer_connected(self, peer: str) -> None: ...
    def peer_disconnected(self, peer: str) -> None: ...


Filter = Callable[[str, str, Message], bool]
FRAME_BYTES_MAX = 1 << 20


def through_codec(message: Message) -> Message:
    """The message as a peer would decode it."""
    data = b"".join(encode_frame(message))
    (decoded,) = FrameDecoder(FRAME_BYTES_MAX).feed(data)
    assert decoded == message, (decoded, message)
    return decoded


class Network:
    """Carries messages between endpoints. A filter (scripts use it) sees each message and may drop it."""

    def __init__(self, clock: VirtualClock, rng: random.Random, options: NetworkOptions) -> None:
        self.options = options
        self.is_encoded = False
        self.filter: Filter | None = None
        self.sent = 0
        self.delivered = 0
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._rng = rng
        self._endpoints: dict[str, Endpoint] = {}
        self._cut: dict[tuple[str, str], bool] = {}
        self._last_arrival_us: dict[tuple[str, str], int] = {}

    def attach(self, name: str, endpoint: Endpoint) -> None:
        self._endpoints[name] = endpoint

    def send(self, sender: str, to: str, message: Message) -> None:
        """Takes a message; whether and when it arrives is a matter of chance and of the cuts."""
        self.sent += 1
        if self._cut.get((sender, to)) or (self.filter is not None and not self.filter(sender, to, message)):
            return
        options, rng = self.options, self._rng
        if options.loss_probability and rng.random() < options.loss_probability:
            self.counts["message lost"] += 1
            return
        if self.is_encoded:
            message = through_codec(message)
        copies = 2 if options.repeat_probability and rng.random() < options.repeat_probability else 1
        self.counts["message repeated"] += copies - 1
        for _ in range(copies):
            self._carry(sender, to, message)

    def _carry(self, sender: str, to: str, message: Message) -> None:
        options, rng = self.options, self._rng
        delay_us = rng.randint(options.delay_min_us, options.delay_max_us)
        if options.slow_probability and rng.random() < options.slow_probability:
            self.counts["message late"] += 1
            delay_us += rng.randint(0, options.slow_max_us)
        if options.is_ordered:
            arrival_us = max(self._clock.now_us + delay_us, self._last_arrival_us.get((sender, to), 0) + 1)
            self._last_arrival_us[sender, to] = arrival_us
            delay_us = arrival_us - self._clock.now_us
        self._clock.schedule(delay_us, lambda: self._arrive(sender, to, message))

    def _arrive(self, sender: str, to: str, message: Message) -> None:
        endpoint = self._endpoints[to]
        if endpoint.is_up and not self._cut.get((sender, to)):
            self.delivered += 1
            endpoint.deliver(sender, message)

    # ---- cuts

    def cut(self, sender: str, to: str) -> None:
        """Nothing passes from sender to `to` any more; the other direction is untouched."""
        if not self._cut.get((sender, to)):
            self._cut[sender, to] = True
            self._hint(to, sender, is_connected=False)

    def isolate(self, name: str) -> None:
        self.split([name])

    def split(self, side: Iterable[str]) -> None:
        """Cuts every link between `side` and the others, in both directions."""
        inside = list(side)
        outside = [name for name in self._endpoints if name not in inside]
        for one in inside:
            for other in outside:
                self.cut(one, other)
                self.cut(other, one)

    def heal(self) -> None:
        """Mends every link."""
        healed = [link for link, is_cut in self._cut.items() if is_cut]
        self._cut.clear()
        for sender, to in healed:
            self._hint(to, sender, is_connected=True)

    def endpoint_down(self, name: str) -> None:
        """The connections of a crashed node close."""
        for other in self._endpoints:
            if other != name:
                self._hint(other, name, is_connected=False)

    def endpoint_up(self, name: str) -> None:
        for other in self._endpoints:
            if other != name:
                self._hint(other, name, is_connected=True)
                self._hint(name, other, is_connected=True)

    def _hint(self, to: str, peer: str, *, is_connected: bool) -> None:
        """Tells an endpoint of a connection made or lost: late, and not always."""
        if self._rng.random() >= self.options.hint_probability:
            return
        delay_us = self._rng.randint(self.options.delay_min_us, self.options.delay_max_us)
        self._clock.schedule(delay_us, lambda: self._give_hint(to, peer, is_connected))

    def _give_hint(self, to: str, peer: str, is_connected: bool) -> None:
        endpoint = self._endpoints[to]
        if not endpoint.is_up:
            return
        if is_connected:
            endpoint.peer_connected(peer)
        else:
            endpoint.peer_disconnected(peer)
