"""Processes in the foreground of a terminal or a service manager, as `ledgermq up` and `ledgermq machine up`
have them: started, watched, and stopped in order after a signal.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ledgermq.errors import UserError
from ledgermq.local.supervisor import Command, Exit, Limits, Supervisor, describe_exit, last_lines
from remoting.client.tls import VARIABLES
from sockets.dialled import is_usable_transport, nothing_listens

PROBE_INTERVAL_S: Final = 0.1
_LOG_LINES: Final = 5


class Foreground:
    """`say` prints a line for the user. `pids`: of each process at its first start."""

    def __init__(self, say: Callable[[str], None], *, restart: bool, limits: Limits | None = None) -> None:
        self.pids: dict[str, int] = {}
        self._say = say
        self._supervisor = Supervisor(self._report, restart=restart, limits=limits)
        self._stop = asyncio.Event()

    async def run(
        self,
        start: Callable[[], Coroutine[None, None, None]],
        on_ready: Callable[[], None],
        follow: Callable[[], Coroutine[None, None, None]] | None = None,
    ) -> None:
        """Call `start`, then `on_ready`, and return after a signal to stop, which may also come before.
        `follow` runs meanwhile, from the call of `on_ready` on.

        Raises: what `start` or `follow` raise; the processes are stopped then, too.
        """
        self._handle_signals()
        stopping = asyncio.create_task(self._stop.wait())
        try:
            if await _is_done_before(stopping, start()):
                on_ready()
                if follow is None or await _is_done_before(stopping, follow()):
                    await stopping
        finally:
            await _cancel(stopping)
            await self._end()

    async def _end(self) -> None:
        self._say("Stopping ...")
        for name in await self._supervisor.stop():
            self._say(f"{name} did not stop in time and was killed.")
        self._say("Stopped.")

    async def start(self, command: Command) -> None:
        self.pids[command.name] = await self._supervisor.start(command)

    async def stop_one(self, name: str) -> bool:
        """A process that is not started again. Whether it had to be killed."""
        del self.pids[name]
        return await self._supervisor.stop_one(name)

    def is_running(self, name: str) -> bool:
        return self._supervisor.is_running(name)

    async def wait_until_listening(self, host: str, port: int, must_go_on: Callable[[], None]) -> None:
        """`must_go_on` is called after each try and may raise."""
        while True:
            try:
                _, writer = await asyncio.open_connection(host, port)
                if not is_usable_transport(writer.transport):
                    raise nothing_listens()
            except OSError:
                must_go_on()
                await asyncio.sleep(PROBE_INTERVAL_S)
            else:
                writer.close()
                return

    def _report(self, ended: Exit) -> None:
        command = ended.command
        self._say(f"{command.name} (pid {ended.pid}) {describe_exit(ended.returncode)}.")
        if ended.returncode > 0:
            for line in last_lines(command.log, _LOG_LINES):
                self._say(f"    {line}")
        if ended.restart_in_s is not None:
            self._say(f"{command.name} is started again in {ended.restart_in_s:g} s.")
        elif command.hint:
            self._say(f"To start it again: {command.hint}")

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._supervisor.kill_all()
        self._stop.set()


async def _is_done_before(stopping: asyncio.Task[Any], work: Coroutine[None, None, None]) -> bool:
    """Whether the work has ended before there was a signal to stop; else it is cancelled. Raises: what the
    work raises.
    """
    working = asyncio.create_task(work)
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        await _cancel(working)


async def _cancel(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def locked(
    folder: Path, *, what: str = "cluster", command: str = "ledgermq up", file_name: str = "up.lock"
) -> Iterator[None]:
    """Lock the folder for this process.

    Raises: UserError when another process holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / file_name).open("a+")
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be used: {error.strerror}.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            raise UserError(f"the {what} in {folder} already runs ({command}, pid {pid}).") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def forget_tls_of_others() -> None:
    """Remove the TLS settings from the environment, which the processes of this cluster inherit: they belong
    to another cluster. The plan says which TLS this cluster uses.
    """
    for variable in VARIABLES:
        os.environ.pop(variable, None)
