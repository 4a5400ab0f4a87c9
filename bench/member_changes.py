"""Every kind of change of a group's members under a stock Java producer: the longest time between two
acknowledgements, the times of the sends, errors.

The producer is RocketMQ's with its defaults, two retries and a route poll every 30 s among them. The
group has three members, and certificates, as `ledgermq up` makes it.

usage: python -m bench.member_changes [--poll-ms 30000] [--save member-changes]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.results_file import machine, save
from bench.rolling_upgrade import JAVA, START_LIMIT_S, STEADY_S, figures
from remoting.codes import RequestCode
from tests.integration.client_runs import finish, java_driver, read_report
from tests.integration.cluster import Cluster
from tests.integration.member_group import CHANGE_LIMIT_S, Group
from tests.integration.waiting import wait_for
from tests.integration.wire import call

TOPIC = "BenchMembers"
NODES_MAX = 6


class Changes:
    """The kinds of change, in the order in which one follows the other. Each returns when it is done."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._group = Group(cluster)

    def all(self) -> dict[str, Callable[[], None]]:
        return {
            "leadership handed over": self.hand_over,
            "member added": self.add,
            "follower's vote taken and given back": self.demote_and_promote,
            "follower removed": self.remove_follower,
            "follower killed": self.kill_follower,
            "dead member replaced": self.replace_dead,
            "leader removed": self.remove_leader,
            "leader killed": self.kill_leader,
        }

    def _others(self) -> list[str]:
        leader = self._cluster.wait_leader()
        return [each for each in self._group.members() if each != leader]

    def hand_over(self) -> None:
        leader, target = self._cluster.wait_leader(), self._others()[0]
        address = self._cluster.address(leader)
        call(address, RequestCode.LEDGERMQ_TRANSFER_LEADER, {"transferee": target})
        wait_for("it leads", lambda: self._cluster.leader() == target, CHANGE_LIMIT_S)

    def add(self) -> None:
        self._group.grow("n3", *self._group.members())

    def demote_and_promote(self) -> None:
        voters, one = tuple(self._group.members()), self._others()[0]
        self._group.change("demote", one)
        self._wait_role(one, "learner")
        self._group.change("promote", one)
        self._group.wait_members(*voters)

    def _wait_role(self, node_id: str, role: str) -> None:
        wait_for(f"{node_id} is {role}", lambda: self._group.members().get(node_id) == role, CHANGE_LIMIT_S)

    def remove_follower(self) -> None:
        self._remove(self._others()[0])

    def remove_leader(self) -> None:
        self._remove(self._cluster.wait_leader())

    def _remove(self, node_id: str) -> None:
        self._group.remove(node_id, *(each for each in self._group.members() if each != node_id))

    def kill_follower(self) -> None:
        self._dead = self._others()[0]
        self._group.kill(self._dead)
        shutil.rmtree(self._cluster.data / self._dead)
        del self._cluster.nodes[self._dead]

    def replace_dead(self) -> None:
        voters = [each for each in self._group.members() if each != self._dead]
        self._group.change_local("replace", self._dead, "n4")
        self._cluster.start_joined("n4")
        self._group.wait_members(*voters, "n4")
        self._group.grow("n5", *self._group.members())

    def kill_leader(self) -> None:
        dead = self._cluster.wait_leader()
        self._group.kill(dead)
        wait_for("another one leads", lambda: self._cluster.leader() not in (None, dead), CHANGE_LIMIT_S)


def measure(poll_ms: int) -> dict[str, Any]:
    """All kinds of change, one after the other, under one producer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = Cluster(folder / "cluster", 3, nodes_max=NODES_MAX)
        out, stop = folder / "sends.jsonl", folder / "stop"
        spans: dict[str, tuple[float, float]] = {}
        try:
            cluster.start()
            options = {"namesrv": cluster.namesrv, "topic": TOPIC, "group": "Members", "poll_ms": poll_ms}
            options |= {"retries": 2, "timeout_ms": 3000, "out": out, "stop": stop}
            arguments = ["stream", *(f"{key}={value}" for key, value in options.items())]
            producer = java_driver(JAVA, folder).start(arguments, out)
            wait_for("sends", lambda: len(read_report(out)) > 100, START_LIMIT_S)
            for kind, change in Changes(cluster).all().items():
                time.sleep(STEADY_S)
                began_ms = time.time() * 1000
                change()
                time.sleep(1.0)
                spans[kind] = began_ms, time.time() * 1000
                print(kind, flush=True)
            time.sleep(STEADY_S)
            stop.touch()
            rows = finish(producer, out)
        finally:
            stop.touch()
            cluster.stop()
    return {kind: figures(rows, *span) for kind, span in spans.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--poll-ms", type=int, default=30_000)
    parser.add_argument("--save", help="name of the file in bench/results")
    arguments = parser.parse_args()
    measured_on = machine()
    results = measure(arguments.poll_ms)
    for kind, found in results.items():
        print(kind, found, flush=True)
    if arguments.save:
        load = {
            "nodes": 3,
            "client": f"rocketmq-client {JAVA} (Java), two retries",
            "poll_ms": arguments.poll_ms,
        }
        print(save(arguments.save, load, results, measured_on))


if __name__ == "__main__":
    main()
