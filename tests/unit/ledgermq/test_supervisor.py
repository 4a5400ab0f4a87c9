"""Children are started, told of when they end, started again with a back-off, and stopped in order."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from ledgermq.local.supervisor import Command, Exit, Limits, Supervisor, describe_exit, last_lines
from tests.support.polling import until

QUICK = Limits(stop_s=5.0, restart_first_s=0.01, restart_max_s=0.04)
SLEEPS = "import time; time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(60)"
)


class Exits:
    """The ends that were told, and a way to wait for so many."""

    def __init__(self) -> None:
        self.told: list[Exit] = []
        self._news = asyncio.Event()

    def __call__(self, ended: Exit) -> None:
        self.told.append(ended)
        self._news.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.told) < count:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def supervising(
    exits: Exits, *, restart: bool = False, limits: Limits = QUICK
) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(exits, restart=restart, limits=limits)
    try:
        yield supervisor
    finally:
        supervisor.kill_all()
        await supervisor.stop()


def python(tmp_path: Path, name: str, program: str, stage: int = 0) -> Command:
    return Command(name, (sys.executable, "-c", program), tmp_path / "logs" / f"{name}.log", stage)


async def wait_for_log(tmp_path: Path, name: str, text: str) -> None:
    await until(lambda: text in (tmp_path / "logs" / f"{name}.log").read_text())


async def test_child_killed_is_told_with_its_signal_and_not_restarted(tmp_path: Path) -> None:
    exits = Exits()
    async with supervising(exits) as supervisor:
        pid = await supervisor.start(python(tmp_path, "n0", SLEEPS))
        psutil.Process(pid).kill()
        await exits.wait_for(1)
        (ended,) = exits.told
        assert (ended.command.name, ended.pid, ended.returncode) == ("n0", pid, -signal.SIGKILL)
        assert ended.restart_in_s is None
        assert not supervisor.is_running("n0")


async def test_child_that_keeps_ending_is_restarted_with_a_growing_delay_up_to_the_bound(
    tmp_path: Path,
) -> None:
    exits = Exits()
    async with supervising(exits, restart=True) as supervisor:
        await supervisor.start(python(tmp_path, "n0", "raise SystemExit(3)"))
        await exits.wait_for(4)
    assert [ended.restart_in_s for ended in exits.told[:4]] == [0.01, 0.02, 0.04, 0.04]
    assert {ended.returncode for ended in exits.told} == {3}
    assert len({ended.pid for ended in exits.told}) == len(exits.told)


async def test_child_that_ran_long_enough_is_restarted_without_a_grown_delay(tmp_path: Path) -> None:
    exits = Exits()
    async with supervising(
        exits, restart=True, limits=Limits(restart_first_s=0.01, steady_s=0.0)
    ) as supervisor:
        await supervisor.start(python(tmp_path, "n0", "pass"))
        await exits.wait_for(3)
    assert [ended.restart_in_s for ended in exits.told[:3]] == [0.01, 0.01, 0.01]


async def test_stop_ends_the_last_stage_first_and_tells_of_no_exit(tmp_path: Path) -> None:
    exits, order = Exits(), tmp_path / "order"
    program = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        f"    open({str(order)!r}, 'a').write(sys.argv[1] + ' ')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    async with supervising(exits) as supervisor:
        for stage, name in enumerate(["namesrv", "n0", "admin"]):
            command = python(tmp_path, name, program, stage)
            await supervisor.start(Command(name, (*command.argv, name), command.log, stage))
        for name in ("namesrv", "n0", "admin"):
            await wait_for_log(tmp_path, name, "up")
        assert await supervisor.stop() == []
    assert order.read_text().split() == ["admin", "n0", "namesrv"]
    assert exits.told == []


async def test_stop_child_that_ignores_sigterm_is_killed_after_the_bound(tmp_path: Path) -> None:
    exits = Exits()
    async with supervising(exits, limits=Limits(stop_s=0.05)) as supervisor:
        pid = await supervisor.start(python(tmp_path, "n0", STUBBORN))
        await wait_for_log(tmp_path, "n0", "up")
        assert await supervisor.stop() == ["n0"]
    assert not psutil.pid_exists(pid)


async def test_one_that_is_stopped_is_not_started_again_and_the_others_go_on(tmp_path: Path) -> None:
    exits = Exits()
    async with supervising(exits, restart=True) as supervisor:
        first = await supervisor.start(python(tmp_path, "n0", SLEEPS))
        other = await supervisor.start(python(tmp_path, "n1", SLEEPS))
        assert not await supervisor.stop_one("n0")
        assert not psutil.pid_exists(first)
        assert psutil.pid_exists(other)
        assert not supervisor.is_running("n0")
    assert exits.told == []


async def test_stop_during_a_back_off_starts_nothing_again(tmp_path: Path) -> None:
    exits = Exits()
    async with supervising(exits, restart=True, limits=Limits(restart_first_s=60.0)) as supervisor:
        await supervisor.start(python(tmp_path, "n0", "pass"))
        await exits.wait_for(1)
        assert await supervisor.stop() == []
        assert not supervisor.is_running("n0")


async def test_child_output_is_appended_to_its_log(tmp_path: Path) -> None:
    exits = Exits()
    program = "import sys; print('out', flush=True); print('err', file=sys.stderr)"
    async with supervising(exits) as supervisor:
        for _ in range(2):
            await supervisor.start(python(tmp_path, "n0", program))
            await exits.wait_for(1)
            exits.told.clear()
    assert last_lines(tmp_path / "logs" / "n0.log", 10) == ["out", "err", "out", "err"]
    assert last_lines(tmp_path / "logs" / "n0.log", 1) == ["err"]


async def test_child_stands_in_a_session_of_its_own(tmp_path: Path) -> None:
    exits = Exits()
    async with supervising(exits) as supervisor:
        await supervisor.start(
            python(tmp_path, "n0", "import os; print(os.getpid() == os.getsid(0), flush=True)")
        )
        await exits.wait_for(1)
    assert last_lines(tmp_path / "logs" / "n0.log", 1) == ["True"]


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel's parent-death signal is Linux's"
)
def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from ledgermq.local.supervisor import Command, Supervisor\n"
        "async def main():\n"
        "    supervisor = Supervisor(print, restart=False)\n"
        f"    log = Path({str(tmp_path)!r}) / 'n0.log'\n"
        f"    command = Command('n0', (sys.executable, '-c', {SLEEPS!r}), log)\n"
        "    print(await supervisor.start(command), flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    gone, alive = psutil.wait_procs([child], timeout=20)
    assert (len(gone), alive) == (1, [])


@pytest.mark.parametrize(
    ("returncode", "words"),
    [(0, "ended with exit code 0"), (-9, "was ended by SIGKILL"), (-120, "was ended by signal 120")],
)
def test_describe_exit(returncode: int, words: str) -> None:
    assert describe_exit(returncode) == words


def test_last_lines_no_log_is_no_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "none.log", 5) == []


async def test_log_that_has_grown_long_is_set_aside(tmp_path: Path) -> None:
    command = python(tmp_path, "n0", "print('new')")
    path = tmp_path / "logs" / "n0.log"
    path.parent.mkdir()
    with path.open("wb") as log:
        log.truncate(16 * 1024 * 1024 + 1)
    exits = Exits()
    async with supervising(exits) as supervisor:
        await supervisor.start(command)
        await exits.wait_for(1)
    assert path.read_text() == "new\n"
    assert path.with_name("n0.log.1").stat().st_size == 16 * 1024 * 1024 + 1


async def test_a_signal_reaches_one_child_only(tmp_path: Path) -> None:
    exits = Exits()
    async with supervising(exits) as supervisor:
        pids = {name: await supervisor.start(python(tmp_path, name, SLEEPS)) for name in ("one", "other")}
        supervisor.send_signal("one", signal.SIGSTOP)
        await until(lambda: psutil.Process(pids["one"]).status() == psutil.STATUS_STOPPED)
        assert psutil.Process(pids["other"]).status() != psutil.STATUS_STOPPED
        supervisor.send_signal("one", signal.SIGTERM)
        supervisor.send_signal("one", signal.SIGCONT)
        await exits.wait_for(1)
        supervisor.send_signal("one", signal.SIGTERM)  # nothing happens: it has ended
        assert supervisor.is_running("other")
