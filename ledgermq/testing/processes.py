"""The processes of a test's brokers, on an event loop in a thread of its own: tests are blocking code, or
have a loop that they stop and start as they like.
"""

import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final, TypeVar

import orjson

from ledgermq.errors import UserError
from ledgermq.local.plan import ClusterPlan, NodePlan
from ledgermq.local.processes import NODE_STAGE, PYTHON_MODULE, namesrv_command, node_command
from ledgermq.local.supervisor import Command, Exit, Supervisor, describe_exit, last_lines
from ledgermq.testing.probes import POLL_S, TRY_S, until_writable
from ledgermq.testing.relay import INNER_HOST, Relays
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError

START_LIMIT_S: Final = 30.0
END_LIMIT_S: Final = 10.0
LOG_LINES: Final = 5
RELAYED: Final = {"replicationBindAddress": INNER_HOST}
"""Settings of nodes whose replication passes relays."""
_T = TypeVar("_T")


class LoopThread:
    """An event loop in a thread, until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # The end of this thread is the end of its child processes, so it lives as long as they.
        self._thread = threading.Thread(target=self._run, name="ledgermq.testing", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run it on the loop, and return what it returns. Raises: what it raises."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # after Ctrl-C in this thread

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Processes:
    """The processes of one plan, made on the loop that they are used on. Nodes are named by their ids.

    A plan of one node runs with its name server in one process, which starts in half the time of two. The
    nodes of others have a process each, since tests end them one by one.
    """

    def __init__(self, plan: ClusterPlan) -> None:
        self.plan = plan
        self._supervisor = Supervisor(self._note_exit, restart=False)
        self._client = RemotingClient()
        self._is_one_process = len(plan.nodes) == 1
        self._has_relays = "replicationBindAddress" in plan.settings
        self._relays = Relays(plan.nodes)
        self._paused: set[str] = set()
        self._ending: set[str] = set()
        self._exits: dict[str, str] = {}
        """How nodes have ended that no one asked to."""

    async def start(self) -> None:
        """Start everything, and wait until a message can be written. Raises: UserError."""
        if self._has_relays:
            await self._relays.start()
        for namesrv in () if self._is_one_process else self.plan.namesrvs:
            await self._supervisor.start(namesrv_command(self.plan, namesrv))
        for node in self.plan.nodes:
            await self._supervisor.start(self._command(node))
        await self.until_writable(START_LIMIT_S)

    def _command(self, node: NodePlan) -> Command:
        if not self._is_one_process:
            return node_command(self.plan, node)
        argv = (*PYTHON_MODULE, "ledgermq.testing", "--home", str(self.plan.data_dir))
        return Command(node.id, argv, self.plan.logs_dir / f"{node.id}.log", NODE_STAGE)

    async def close(self, *, keeps_files: bool) -> None:
        """End everything: in order if the files are kept, otherwise at once."""
        self._resume_all()
        if not keeps_files:
            self._supervisor.kill_all()
        await self._supervisor.stop()
        await self._relays.stop()
        await self._client.close()
        await asyncio.sleep(0)  # the transports of ended processes close in the next turn

    def _note_exit(self, ended: Exit) -> None:
        name = ended.command.name
        if name not in self._ending:
            lines = [f"{name} {describe_exit(ended.returncode)}", *last_lines(ended.command.log, LOG_LINES)]
            self._exits[name] = "\n    ".join(lines)

    # -- what a test asks for

    async def until_writable(self, limit_s: float) -> str:
        """The id of the leader, once it has acknowledged a message. Raises: UserError."""
        address = await until_writable(
            self._client, self.plan.namesrv_address, limit_s, self._require_majority
        )
        return next(node.id for node in self.plan.nodes if node.remoting_address == address)

    def _require_majority(self) -> None:
        """Raises: UserError when a node has ended by itself and too few are left for a majority."""
        running = sum(self._supervisor.is_running(node.id) for node in self.plan.nodes)
        if self._exits and running <= len(self.plan.nodes) // 2:
            ends = "\n".join(self._exits.values())
            raise UserError(f"{running} of {len(self.plan.nodes)} nodes run, that is no majority:\n{ends}")

    async def leader(self) -> str | None:
        """The node that accepts messages, by its own word; of several the one of the newest term."""
        asked = [node.id for node in self.plan.nodes]
        statuses = await asyncio.gather(*map(self._status, asked))
        leading = [
            (status["term"], node_id)
            for node_id, status in zip(asked, statuses, strict=True)
            if status is not None and status["isWritable"]
        ]
        return max(leading)[1] if leading else None

    async def _status(self, node_id: str) -> dict[str, Any] | None:
        """None while it does not answer."""
        if not self.is_running(node_id) or node_id in self._paused:
            return None
        request = RemotingCommand(RequestCode.LEDGERMQ_NODE_STATUS)
        try:
            answer = await self._client.invoke(self.plan.node(node_id).remoting_address, request, TRY_S)
        except RemotingError:
            return None
        return orjson.loads(answer.body) if answer.code == ResponseCode.SUCCESS else None

    def is_running(self, node_id: str) -> bool:
        return self._supervisor.is_running(node_id)

    async def kill(self, node_id: str) -> None:
        """SIGKILL; returns when the process is gone. Raises: UserError when it does not run."""
        self._require_running(node_id)
        self._paused.discard(node_id)
        self._ending.add(node_id)
        self._supervisor.kill(node_id)
        async with asyncio.timeout(END_LIMIT_S):
            while self.is_running(node_id):
                await asyncio.sleep(POLL_S)

    async def stop(self, node_id: str) -> None:
        """SIGTERM: a leader hands leadership over first. Raises: UserError when it does not run."""
        self._require_running(node_id)
        if node_id in self._paused:
            self.resume(node_id)
        self._ending.add(node_id)
        await self._supervisor.stop_one(node_id)

    async def start_again(self, node_id: str) -> None:
        """Returns when it answers. Raises: UserError when it runs, or ends instead."""
        node = self.plan.node(node_id)
        if self.is_running(node_id):
            raise UserError(f"{node_id} runs already.")
        self._ending.discard(node_id)
        self._exits.pop(node_id, None)
        await self._supervisor.start(self._command(node))
        with suppress(TimeoutError):
            async with asyncio.timeout(START_LIMIT_S):
                while self.is_running(node_id):
                    if await self._status(node_id) is not None:
                        return
                    await asyncio.sleep(POLL_S)
        raise UserError(self._exits.get(node_id, f"{node_id} did not answer within {START_LIMIT_S:g} s."))

    def pause(self, node_id: str) -> None:
        """SIGSTOP: its connections stay open, and it does nothing. Raises: UserError when it does not run."""
        self._require_running(node_id)
        self._paused.add(node_id)
        self._supervisor.send_signal(node_id, signal.SIGSTOP)

    def resume(self, node_id: str) -> None:
        """Raises: UserError when it does not run."""
        self._require_running(node_id)
        self._paused.discard(node_id)
        self._supervisor.send_signal(node_id, signal.SIGCONT)

    def _resume_all(self) -> None:
        for node_id in filter(self.is_running, tuple(self._paused)):
            self.resume(node_id)
        self._paused.clear()

    def partition(self, node_ids: Iterable[str]) -> None:
        """Cut these nodes off from the others, in place of an earlier partition. Raises: UserError."""
        if not self._has_relays:
            raise UserError(f"there are no partitions on {sys.platform}: they need the network 127.0.0.0/8.")
        self._relays.cut([self.plan.node(node_id).id for node_id in node_ids])

    def heal(self) -> None:
        self._relays.cut([])

    async def restore(self) -> None:
        """Everything runs and reaches everything. Raises: UserError."""
        self.heal()
        self._resume_all()
        dead = [node.id for node in self.plan.nodes if not self.is_running(node.id)]
        await asyncio.gather(*map(self.start_again, dead))
        await self.until_writable(START_LIMIT_S)

    def _require_running(self, node_id: str) -> None:
        if not self.is_running(self.plan.node(node_id).id):
            raise UserError(f"{node_id} does not run.")
