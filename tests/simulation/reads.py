"""Reads by read index, at every node that believes it leads, and the check that none misses anything."""

import random
from collections.abc import Sequence

from dledger.core.types import ResponseCode
from tests.simulation.clock import VirtualClock
from tests.simulation.host import Host
from tests.simulation.invariants import Checker, require


class Readers:
    """A read that begins when some node has called an index committed, and succeeds, reaches that index.

    That is more than what clients know to be acknowledged, so that an old leader that still answers is found
    even while no client writes.
    """

    def __init__(
        self,
        clock: VirtualClock,
        rng: random.Random,
        interval_ms: int,
        hosts: Sequence[Host],
        checker: Checker,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._interval_ms = interval_ms
        self._hosts = hosts
        self._checker = checker
        self._open: dict[int, tuple[Host, int]] = {}
        self._begun = 0
        self._is_running = False
        self.confirmed = 0

    def start(self) -> None:
        if self._interval_ms:
            self._is_running = True
            self._later()

    def stop(self) -> None:
        self._is_running = False

    def _later(self) -> None:
        self._clock.schedule(self._rng.randint(0, 2_000 * self._interval_ms), self._read_and_go_on)

    def _read_and_go_on(self) -> None:
        if not self._is_running:
            return
        for host in self._hosts:
            is_awake = host.is_up and host.paused_until_us <= self._clock.now_us
            if is_awake and host.node.leader_id == host.name:
                self.read(host)
        self._later()

    def read(self, host: Host) -> None:
        number, floor_index = self._begun, self._checker.commit_index
        self._begun += 1

        def done(code: ResponseCode, index: int) -> None:
            require(number in self._open, host.name, "ends a read twice", code.name, index)
            del self._open[number]
            if code is ResponseCode.SUCCESS:
                self.confirmed += 1
                require(index >= floor_index, host.name, "reads up to", index, "after commit", floor_index)
                require(index <= host.node.commit_index, host.name, "reads what is not committed", index)

        self._open[number] = host, host.incarnation
        code = host.read_index(done)
        require(code is ResponseCode.SUCCESS, host.name, "leads and refuses a read", code.name)

    def check_answered(self) -> None:
        """Every read ended, or its node did."""
        for host, incarnation in self._open.values():
            require(incarnation != host.incarnation, host.name, "never ended a read")
