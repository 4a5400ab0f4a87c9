"""A simulated machine: a disk, a clock, a network address, and the one process that runs on it."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from broker.app import Broker
from dledger.credentials import MemberCredentials
from dledger.environment import Environment
from tests.node_simulation.clocks import MachineClock
from tests.node_simulation.loop import LoopTimes, ProcessKilledError, SimLoop
from tests.node_simulation.net import Network
from tests.node_simulation.stalls import Stalls
from tests.simulation.clock import VirtualClock
from tests.support.memory_fs import MemoryFs


@dataclass(slots=True)
class DiskOptions:
    """How long a trip to the disk takes, and how often and for how long it stalls."""

    job_min_us: int = 100
    job_max_us: int = 1_000
    stall_probability: float = 0.0
    stall_max_us: int = 0
    turn_max_us: int = 20


@dataclass(slots=True)
class Surroundings:
    """What all machines of a world share. The callbacks are the world's."""

    clock: VirtualClock
    network: Network
    rng: random.Random
    disk: DiskOptions
    on_error: Callable[["Machine", BaseException], None]
    on_exit: Callable[["Machine", int], None]
    after_turn: Callable[["Machine"], None]
    trace: Callable[[str, str], None]
    stalls: Stalls
    before_end: Callable[["Machine", bool], None] = lambda machine, is_power_lost: None
    before_power_loss: Callable[["Machine"], None] = lambda machine: None

    def draw_turn_us(self) -> int:
        return 1 + int(self.rng.random() * self.disk.turn_max_us)

    def draw_job_us(self) -> int:
        disk, rng = self.disk, self.rng
        job_us = rng.randint(disk.job_min_us, disk.job_max_us)
        if disk.stall_probability and rng.random() < disk.stall_probability:
            job_us += rng.randint(0, disk.stall_max_us)
        return job_us


@dataclass(eq=False, slots=True)
class Process:
    """One life of a program. `broker` is set by the program when it has one, for the checks."""

    machine: "Machine"
    loop: SimLoop
    environment: Environment
    broker: Broker | None = None
    main: "asyncio.Task[int] | None" = None
    changes_until_crash: int | None = None
    is_power_crash: bool = False

    def before_change(self) -> None:
        """Called before the program changes a file: maybe it never gets there."""
        if self.loop.is_dead:
            raise ProcessKilledError
        if self.changes_until_crash is not None:
            if self.changes_until_crash == 0:
                self.machine.stop_by_force(is_power_lost=self.is_power_crash)
                raise ProcessKilledError
            self.changes_until_crash -= 1


Program = Callable[[Process], Coroutine[Any, Any, int]]
"""The main coroutine of a process; what it returns is the exit code."""


@dataclass(eq=False)
class Machine:
    """Runs its program whenever it is started; the files stay from life to life."""

    name: str
    ip: str
    program: Program
    surroundings: Surroundings
    clock: MachineClock = field(default_factory=MachineClock)
    fs: MemoryFs = field(default_factory=MemoryFs)
    process: Process | None = None
    lives: int = 0
    is_gone: bool = False
    """For good: it is not started when the faults end."""
    runs_since_us: int = 0
    """World time of the last start or end of a pause."""
    credentials: MemberCredentials | None = None
    """What its process shows to the members of its group; None: members believe every process."""

    def __post_init__(self) -> None:
        self.site = self.surroundings.network.attach(self.ip)
        self.fs.now_us = lambda: self.surroundings.clock.now_us

    @property
    def is_up(self) -> bool:
        return self.process is not None

    @property
    def is_running(self) -> bool:
        return self.process is not None and not self.process.loop.is_paused

    def start(self) -> None:
        """The power comes back if it was lost, and a new process begins on what the disk holds."""
        assert self.process is None, f"{self.name} is running"
        shared = self.surroundings
        self.site.is_on = True
        self.lives += 1
        self.runs_since_us = shared.clock.now_us
        loop = SimLoop(  # type: ignore[abstract]  # asyncio has no abstract methods at run time
            shared.clock,
            self.clock,
            lambda error: shared.on_error(self, error),
            lambda: shared.after_turn(self),
            LoopTimes(shared.draw_turn_us, shared.draw_job_us, shared.stalls.after_callback),
        )
        loop.name = self.name
        world = shared.clock
        environment = Environment(
            self.fs,
            lambda: self.clock.monotonic_us(world.now_us) // 1_000,
            lambda: self.clock.wall_ms(world.now_us),
            random.Random(shared.rng.getrandbits(64)),
            self.credentials,
        )
        process = self.process = Process(self, loop, environment)
        self.fs.on_change = process.before_change
        shared.network.join(loop, self.ip)
        shared.trace(self.name, f"starts, life {self.lives}")
        loop.call_soon(self._begin, process)

    def _begin(self, process: Process) -> None:
        main = process.main = process.loop.create_task(self.program(process), name=f"{self.name} main")
        main.add_done_callback(lambda done: self._main_ended(process, done))

    def _main_ended(self, process: Process, main: "asyncio.Task[int]") -> None:
        if process.loop.is_dead:
            return
        error = main.exception()
        if error is not None:
            self.surroundings.on_error(self, error)
            return
        self.surroundings.trace(self.name, f"exits with {main.result()}")
        self._end(process, is_power_lost=False)
        self.surroundings.on_exit(self, main.result())

    def stop_by_force(self, *, is_power_lost: bool) -> None:
        """SIGKILL: files stay as written. Power failure: what was not synced is lost, torn or kept."""
        process = self.process
        assert process is not None, f"{self.name} is not running"
        self.surroundings.trace(self.name, "loses power" if is_power_lost else "is killed")
        self.surroundings.before_end(self, is_power_lost)
        self._end(process, is_power_lost=is_power_lost)
        if is_power_lost:
            self.lose_power()

    def move(self, ip: str, program: Program) -> None:
        """To another address, with its disk: of a machine without a running process."""
        assert self.process is None, f"{self.name} is running"
        self.site.is_left = ip != self.ip
        self.ip, self.program = ip, program
        self.site = self.surroundings.network.attach(ip)

    def lose_power(self) -> None:
        """Of a machine without a running process."""
        self.site.is_on = False
        self.surroundings.before_power_loss(self)
        used = self.fs.used
        now_us = self.fs.now_us
        self.fs = self.fs.crash(self.surroundings.rng)
        self.fs.now_us = now_us
        self.fs.used = used

    def _end(self, process: Process, *, is_power_lost: bool) -> None:
        self.process = None
        process.loop.kill()
        self.surroundings.network.leave(process.loop, is_power_lost=is_power_lost)
        self.fs.end_process()
        if self.clock.is_stalled:
            self.clock.go_on(self.surroundings.clock.now_us)
        self.surroundings.clock.schedule(0, process.loop.bury)

    def pause(self, *, is_suspended: bool) -> None:
        """SIGSTOP for the process; or the whole machine is suspended, and its clock with it."""
        assert self.process is not None, f"{self.name} is not running"
        if is_suspended:
            self.clock.stall(self.surroundings.clock.now_us)
        self.process.loop.pause()
        self.surroundings.trace(self.name, "is suspended" if is_suspended else "is stopped")

    def resume(self) -> None:
        """Nothing happens if it died meanwhile, or goes on already."""
        if self.clock.is_stalled:
            self.clock.go_on(self.surroundings.clock.now_us)
        if self.process is not None and self.process.loop.is_paused:
            self.surroundings.trace(self.name, "goes on")
            self.runs_since_us = self.surroundings.clock.now_us
            self.process.loop.resume()
