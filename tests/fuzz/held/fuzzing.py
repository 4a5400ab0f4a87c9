"""Sends valid and grown requests of every code, and finds those that hold the event loop for too long.

Timings are asserted nowhere else in the tests. Here they are what is required: no single request holds the
loop for more than 20 ms of CPU time. That it is a statement about work and not about the machine: CPU time of
the loop's thread is measured; an excess counts only when it repeats, each time with another salt, and the
least is what counts; and the bound grows with the time of a fixed piece of work, measured just before.
"""

import random
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from remoting.command import FRAME_BYTES_MIN, RemotingCommand, encode_head
from remoting.errors import CommandError
from remoting.limits import DEFAULT_LIMITS
from tests.fuzz.held.content import (
    as_in_production,
    broker_thread,
    fill_broker,
    fill_name_server,
    name_server_thread,
)
from tests.fuzz.held.growing import grown
from tests.fuzz.held.measured import Peer, ServerThread, slowness
from tests.fuzz.held.samples import BROKER_SAMPLES, NAME_SERVER_SAMPLES, SALT, Sample

BOUND_MS: Final = 20.0
REPEATS: Final = 4
SHOWN: Final = 25
_salts = count(10_000_000)


@dataclass(slots=True)
class Excess:
    """A request that held the loop for too long, every time."""

    sample: Sample
    held_ms: float
    profile: str = ""

    def __str__(self) -> str:
        return f"{self.held_ms:7.1f} ms: code {int(self.sample.code)}, {self.sample.label}\n{self.profile}"


@dataclass(slots=True)
class Meter:
    """Measures requests at one server."""

    server: ServerThread
    peer: Peer
    shows_profile: bool = False
    measured: int = 0
    longest: dict[int, tuple[float, str]] = field(default_factory=dict)
    """By code."""

    def check(self, sample: Sample) -> Excess | None:
        held_ms = self._held_ms(sample)
        if held_ms <= BOUND_MS:
            self._note(sample, held_ms)
            return None
        bound_ms = BOUND_MS * slowness()
        for _ in range(REPEATS):
            if held_ms <= bound_ms:
                self._note(sample, held_ms)
                return None
            held_ms = min(held_ms, self._held_ms(sample))
        self._note(sample, held_ms)
        return Excess(sample, held_ms, self._profile(sample)) if held_ms > bound_ms else None

    def _note(self, sample: Sample, held_ms: float) -> None:
        if held_ms > self.longest.get(sample.code, (0.0, ""))[0]:
            self.longest[sample.code] = held_ms, sample.label

    def _held_ms(self, sample: Sample) -> float:
        """The longest turn of the loop from the request's first byte to the end of all that it began."""
        command = salted(sample)
        self.server.wait_quiet()
        self.server.loop.begin()
        self.peer.ask(command)
        self.server.wait_quiet()
        self.measured += 1
        return self.server.loop.longest_ms

    def _profile(self, sample: Sample) -> str:
        if not self.shows_profile:
            return ""
        self.server.loop.profiles = True
        self._held_ms(sample)
        self.server.loop.profiles = False
        return self.server.loop.profile


def salted(sample: Sample) -> RemotingCommand:
    """The request with a salt that no other has."""
    salt = str(next(_salts))
    ext = {name: text.replace(SALT, salt) for name, text in sample.ext.items()}
    return RemotingCommand(
        sample.code, ext_fields=ext, body=sample.body.replace(SALT.encode(), salt.encode())
    )


def fits(sample: Sample) -> bool:
    """Whether a connection would take it."""
    command = salted(sample)
    try:
        header_bytes = len(encode_head(command)) - FRAME_BYTES_MIN
    except CommandError:
        return False
    limits = DEFAULT_LIMITS
    return (
        header_bytes <= limits.header_bytes_max and header_bytes + len(command.body) <= limits.frame_bytes_max
    )


def fuzz(
    seconds: float,
    seed: int,
    codes: Container[int] | None = None,
    *,
    shows_profile: bool = False,
    report: Callable[[object], None] = lambda line: None,
) -> list[Excess]:
    """What held a broker and a name server for too long; `seconds` are for each."""
    found: list[Excess] = []
    with tempfile.TemporaryDirectory() as folder, as_in_production():
        for server, fill, samples in (
            (broker_thread(Path(folder)), fill_broker, BROKER_SAMPLES),
            (name_server_thread(), fill_name_server, NAME_SERVER_SAMPLES),
        ):
            wanted = [each for each in samples if codes is None or each.code in codes]
            if not wanted:
                continue
            with server, closing(fill(server.port)), closing(Peer(server.port)) as peer:
                meter = Meter(server, peer, shows_profile)
                found += _measure(meter, requests(wanted, seed), time.monotonic() + seconds, report)
    return found


def _measure(
    meter: Meter, samples: Iterator[Sample], end_s: float, report: Callable[[object], None]
) -> list[Excess]:
    found: list[Excess] = []
    while time.monotonic() < end_s:
        excess = meter.check(next(samples))
        if excess is not None:
            found.append(excess)
            report(excess)
    report(f"{meter.measured} requests measured; the longest turns:")
    for code, (held_ms, label) in sorted(meter.longest.items(), key=lambda item: -item[1][0])[:SHOWN]:
        report(f"  {held_ms:6.1f} ms  {code}: {label[:100]}")
    return found


def requests(samples: Sequence[Sample], seed: int) -> Iterator[Sample]:
    """First each as it is, then all grown in turn, without end."""
    yield from samples
    growing = [grown(sample, random.Random(f"{seed} {at}")) for at, sample in enumerate(samples)]
    while True:
        for each in growing:
            sample = next(each)
            if fits(sample):
                yield sample
