"""One run: a cluster, clients, what is done to them, and at the end the checked history.

Everything a failure is looked at with lies in the run's folder: logs, stores, `history.jsonl`, and
`done.txt`, the faults in their order.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.chaos.cluster import ChaosCluster, Disk, eventually
from tests.chaos.faulty_fs import DiskFaults
from tests.chaos.workload import Workload
from tests.histories.checker import check
from tests.histories.files import HistoryWriter, read_history
from tests.histories.words import Report
from tests.integration.log_files import first_difference

HEALED_LIMIT_S = 90.0
SENDS_AFTER = 50
JUDGED = frozenset({"send ok", "poll ok", "seek", "commit ok", "fetch ok", "drain", "values read"})
"""What every run's history must have some of, or a word of the checker could not have come."""


class Run:
    """Made by `start_run`."""

    def __init__(self, cluster: ChaosCluster, load: Workload, history: Path) -> None:
        self.cluster = cluster
        self.network = cluster.network
        self.load = load
        self.history = history
        self._began_s = time.monotonic()

    def note(self, text: str) -> None:
        """Write down what is done, with the time since the start."""
        line = f"{time.monotonic() - self._began_s:7.2f} s  {text}"
        print(line, flush=True)
        with (self.cluster.folder / "done.txt").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def mend_network(self, *, is_reset: bool = False) -> None:
        self.note(f"the network is mended{', its connections reset' if is_reset else ''}")
        self.network.mend(is_reset=is_reset)

    async def heal(self) -> None:
        """End every fault and start every node; return when all have one log and messages are taken again."""
        self.note("all faults end")
        self.network.mend()
        for node in self.cluster.nodes.values():
            node.fault(DiskFaults())
            node.send_signal(signal.SIGCONT)
        await self.revive()
        for node_id in self.cluster.nodes:
            await self.cluster.wait_answers(node_id)
        await self.load.wait_acknowledged(SENDS_AFTER, HEALED_LIMIT_S)

    async def revive(self) -> None:
        """Start every node that has ended, and wait till they answer."""
        dead = [node_id for node_id, node in self.cluster.nodes.items() if not node.is_running]
        for node_id in dead:
            self.note(f"{node_id} is started")
            self.cluster.start_node(node_id)
        for node_id in dead:
            await self.cluster.wait_answers(node_id)

    async def finish(self, *, from_each: bool = False) -> Report:
        """Heal, let the clients end, read everything, and judge. Raises AssertionError on what is wrong.

        `from_each`: all is read from every node, each leading in its turn. What is damaged in a follower's
        queues and tables is seen by no reader.
        """
        report = await self.judge(from_each=from_each)
        report.assert_clean()
        idle = JUDGED - {kind for kind, count in report.operations.items() if count}
        assert self.load.read > 0, "no consumer read anything before the end"
        assert not idle, f"the history has none of {sorted(idle)}: it shows less than it seems to"
        assert self.load.moved == [], f"consumers were sent elsewhere: {self.load.moved[:5]}"
        return report

    async def judge(self, *, from_each: bool = False) -> Report:
        """The same, but the report is returned whatever it says."""
        await self.heal()
        await self.load.stop()
        await self.cluster.wait_whole(HEALED_LIMIT_S)
        if from_each:
            await self._drain_each()
        else:
            await self.load.drain()
        statuses = await self.cluster.wait_whole(HEALED_LIMIT_S)
        self.load.history.flush()
        (end,) = {status["committedPosition"] for status in statuses.values()}
        self.assert_same_bytes(end)
        report = check(read_history(self.history))
        self.note(str(report))
        return report

    async def _drain_each(self) -> None:
        """A node that reads a damaged unit of one of its queues stops, and its next start builds its queues
        again (docs/crash_safety.md): it is started once, as a supervisor would do it.
        """
        for node_id, node in self.cluster.nodes.items():
            await self._drain_from(node_id)
            if not node.is_running:
                assert "a queue's unit points" in self.cluster.last_log(node_id)
                await self.revive()
                await self.cluster.wait_whole(HEALED_LIMIT_S)
                await self._drain_from(node_id)
                assert node.is_running, self.cluster.log_end(node_id)

    async def _drain_from(self, node_id: str) -> None:
        node = self.cluster.nodes[node_id]
        await self.cluster.lead(node_id)

        async def is_named(address: str = f"{node.public_ip}:{node.port}") -> bool:
            self.load.forget_broker()
            return await self.load.find_broker() == address

        await eventually(f"the name server names {node_id}", is_named, HEALED_LIMIT_S)
        await self.load.drain()
        await self.load.find_by_keys()

    def assert_same_bytes(self, end: int) -> None:
        """The replicas' data files are equal up to what is committed."""
        first, *others = (node.folder for node in self.cluster.nodes.values())
        for other in others:
            assert first_difference(first, other, end) is None


@asynccontextmanager
async def start_run(
    folder: Path,
    seed: int,
    *,
    nodes: int = 3,
    spares: int = 0,
    disk: Disk | None = None,
    settings: Mapping[str, str | int | bool] | None = None,
) -> AsyncIterator[Run]:
    """A cluster with clients at work; everything of it has ended when the context is left."""
    rng = random.Random(seed)
    cluster = ChaosCluster(folder, rng, nodes, disk or Disk(), settings or {}, spares)
    history = folder / "history.jsonl"
    with HistoryWriter(history) as writer:
        try:
            await cluster.start()
            load = Workload(cluster.namesrv, f"Chaos{seed}", writer, random.Random(seed))
            try:
                await load.start()
                yield Run(cluster, load, history)
            finally:
                await load.close()
        finally:
            await cluster.stop()
