"""What the simulated hosts of one world share: time, network, chance, disks, and who watches them."""

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dledger.core.config import Config
from dledger.core.membership import Configuration
from dledger.core.node import Node
from dledger.core.output import Completion, Envelope
from dledger.core.types import HardState, Impairment
from tests.simulation.clock import VirtualClock
from tests.simulation.network import Network
from tests.support.memory_log import MemoryLog

if TYPE_CHECKING:
    from tests.simulation.host import Host


class Moment(enum.Enum):
    """When a crash hurts most."""

    VOTING = "a term or a vote is on its way to the disk"
    LEADING = "a new leader has laid out its first entry"
    CUTTING = "entries are on their way out of the log"


class SeededRng:
    """The core's port to chance."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def between(self, low: int, high: int) -> int:
        return self._rng.randint(low, high)


NodeFactory = Callable[
    [Config, HardState, MemoryLog, "SeededRng", int, Impairment | None, Configuration | None], Node
]


def make_node(
    config: Config,
    hard_state: HardState,
    store: MemoryLog,
    rng: "SeededRng",
    now_ms: int,
    impairment: Impairment | None,
    first: Configuration | None = None,
) -> Node:
    return Node(config, hard_state, store.log_state(), store, rng, now_ms, impairment, first)


class Watcher(Protocol):
    """What checks the invariants; called at every step that can break one."""

    def started(self, host: "Host") -> None: ...
    def appended(self, host: "Host", first_index: int) -> None: ...
    def cut(self, host: "Host") -> None: ...
    def durable(self, host: "Host") -> None: ...
    def sent(self, host: "Host", envelope: Envelope) -> None: ...
    def completed(self, host: "Host", completion: Completion) -> None: ...
    def checked(self, host: "Host") -> None: ...
    def trace(self, host: "Host", *parts: object) -> None: ...
    def turned(self, host: "Host") -> None: ...
    def lost_entries(self, host: "Host", first_index: int) -> None: ...
    def lost_vote(self, host: "Host") -> None: ...
    def healed(self, host: "Host") -> None: ...


@dataclass(frozen=True, slots=True)
class DiskOptions:
    """How long one batch takes to become durable, and how long a turn of the event loop is put off."""

    write_min_us: int = 100
    write_max_us: int = 3_000
    stall_probability: float = 0.0
    stall_max_us: int = 0
    turn_max_us: int = 50


@dataclass(slots=True)
class Surroundings:
    """What all hosts of a world share."""

    clock: VirtualClock
    network: Network
    watcher: Watcher
    rng: random.Random
    disk: DiskOptions
    make_node: NodeFactory
    on_moment: Callable[["Host", Moment], None] = lambda _host, _moment: None
