"""Brokers in processes of their own, as context managers: `broker` has one node, `cluster` three. All methods
block; a test with an event loop of its own calls the slow ones by `asyncio.to_thread`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

from ledgermq.errors import UserError
from ledgermq.local.plan import ClusterPlan, Scalar
from ledgermq.testing.homes import home_at, plan_in
from ledgermq.testing.processes import RELAYED, LoopThread, Processes

CLUSTER_NODES: Final = 3
WRITABLE_LIMIT_S: Final = 30.0
_T = TypeVar("_T")


class RunningBroker:
    """One node and its name server, in one process."""

    def __init__(self, plan: ClusterPlan, thread: LoopThread, processes: Processes) -> None:
        self._plan = plan
        self._thread = thread
        self._processes = processes
        self._tests = count(1)
        self._prefix = ""

    @property
    def namesrv(self) -> str:
        """`host:port` of the name server, which every client needs."""
        return self._plan.namesrv_address

    @property
    def home(self) -> Path:
        """The folder with the store (`n0/store`) and the logs of the processes (`logs`)."""
        return self._plan.data_dir

    def topic(self, name: str) -> str:
        """The name with the prefix of the test that runs: no other test has this topic."""
        return f"{self._prefix}{name}"

    def group(self, name: str) -> str:
        """The same for a group of producers or consumers."""
        return f"{self._prefix}{name}"

    def begin_test(self) -> None:
        """From now on `topic` and `group` have another prefix."""
        self._prefix = f"t{next(self._tests)}-"


class RunningCluster(RunningBroker):
    """A name server and a group of three nodes, `n0`, `n1` and `n2`, each in a process of its own."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Their ids."""
        return tuple(node.id for node in self._plan.nodes)

    def address(self, node: str) -> str:
        """`host:port` where this node serves clients. Raises: UserError when there is no such node."""
        return self._plan.node(node).remoting_address

    def leader(self) -> str | None:
        """The node that accepts messages, by its own word; None while there is none."""
        return self._thread.call(self._processes.leader())

    def wait_until_writable(self, limit_s: float = WRITABLE_LIMIT_S) -> str:
        """The leader, once a message was acknowledged: after a failure that is a new one.

        Raises: UserError when there is none within the limit, or too few nodes run.
        """
        return self._thread.call(self._processes.until_writable(limit_s))

    def kill_leader(self) -> str:
        """SIGKILL to the leader; which node it was. Raises: UserError when there is none."""
        leader = self.leader()
        if leader is None:
            raise UserError("no node leads; `wait_until_writable` waits for one.")
        self.kill(leader)
        return leader

    def kill(self, node: str) -> None:
        """SIGKILL. Raises: UserError when it does not run."""
        self._thread.call(self._processes.kill(node))

    def stop(self, node: str) -> None:
        """As an operator does (SIGTERM): a leader hands leadership over first. Raises: UserError when it does
        not run.
        """
        self._thread.call(self._processes.stop(node))

    def start(self, node: str) -> None:
        """Again, after `kill` or `stop`, with the files that it had; returns when it answers, which may be
        before it has what it missed. Raises: UserError when it runs.
        """
        self._thread.call(self._processes.start_again(node))

    def pause(self, node: str) -> None:
        """The node does nothing until `resume` (SIGSTOP), and its connections stay open. Raises: UserError
        when it does not run.
        """
        self._thread.call(_later(lambda: self._processes.pause(node)))

    def resume(self, node: str) -> None:
        """Raises: UserError when it does not run."""
        self._thread.call(_later(lambda: self._processes.resume(node)))

    def partition(self, *nodes: str) -> None:
        """Cut these nodes off from the others until `heal`: they replicate nothing to each other. Clients and
        the name server still reach every node. An earlier partition ends. Linux only.

        Raises: UserError when there is no such node, or on other systems.
        """
        self._thread.call(_later(lambda: self._processes.partition(nodes)))

    def heal(self) -> None:
        """End the partition."""
        self._thread.call(_later(self._processes.heal))

    def restore(self) -> None:
        """Start what is stopped, resume what is paused, end a partition, and wait until a message can be
        written. Raises: UserError.
        """
        self._thread.call(self._processes.restore())


@contextmanager
def broker(
    path: Path | str | None = None, *, settings: Mapping[str, Scalar] | None = None
) -> Iterator[RunningBroker]:
    """One node with its name server, ready for messages, until the end of the block.

    path: its folder, which stays, and with which it may start again later. Without one its folder is in
    memory where there is room, and is removed at the end.
    settings: keys of broker.toml (docs/broker.md).

    Raises: UserError when it cannot start.
    """
    with _running(path, 1, settings) as (plan, thread, processes):
        yield RunningBroker(plan, thread, processes)


@contextmanager
def cluster(
    path: Path | str | None = None, *, settings: Mapping[str, Scalar] | None = None
) -> Iterator[RunningCluster]:
    """A group of three nodes and a name server, ready for messages; otherwise as `broker`."""
    with _running(path, CLUSTER_NODES, settings) as (plan, thread, processes):
        yield RunningCluster(plan, thread, processes)


@contextmanager
def _running(
    path: Path | str | None, nodes: int, settings: Mapping[str, Scalar] | None
) -> Iterator[tuple[ClusterPlan, LoopThread, Processes]]:
    own = RELAYED if nodes > 1 and sys.platform == "linux" else {}
    with home_at(None if path is None else Path(path)) as home:
        plan = plan_in(home, nodes, settings, own)
        thread = LoopThread()
        try:
            processes = thread.call(_later(lambda: Processes(plan)))
            try:
                thread.call(processes.start())
                yield plan, thread, processes
            finally:
                thread.call(processes.close(keeps_files=path is not None))
        finally:
            thread.close()


async def _later(work: Callable[[], _T]) -> _T:
    """For `LoopThread.call`: the work is done on its loop."""
    return work()
