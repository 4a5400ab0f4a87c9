"""The three-node cluster that every file of the suite uses, with what an operator does to it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.route import parse_topic_route
from tests.integration.cluster import Cluster
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire, call

WHOLE_LIMIT_S = 60.0
CHANGE_LIMIT_S = 60.0

SETTINGS = {
    "enablePropertyFilter": "true",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "500",
    "traceTopicEnable": "true",
    "recallMessageEnable": "true",
}
"""Of all nodes: what some behaviour needs, and waiting times that suit a test."""


class Stage:
    """A running cluster. A test may kill nodes: `make_whole` runs after each test."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(folder)

    @property
    def namesrv(self) -> str:
        return self.cluster.namesrv

    def start(
        self, settings: Mapping[str, str] = SETTINGS, options: Sequence[str] = (), *, admin: bool = False
    ) -> None:
        self.cluster.start(settings, options=options, admin=admin)

    def stop(self) -> None:
        self.cluster.stop()

    @staticmethod
    def unique(prefix: str) -> str:
        """A name for a topic or group that nothing else has."""
        return f"{prefix}-{secrets.token_hex(4)}"

    def topic(self, prefix: str, queues: int = 8, *, perm: int = 6, attributes: str = "") -> str:
        """Create a topic of its own name with so many queues; return when producers find its route.

        `attributes` as mqadmin sends them: `+message.type=FIFO,+key=value`.
        """
        name = self.unique(prefix)
        self.put_topic(name, queues, perm=perm, attributes=attributes)
        return name

    def put_topic(self, name: str, queues: int = 8, *, perm: int = 6, attributes: str = "") -> None:
        """Create or change a topic; return when the name server tells it so."""
        ext = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": attributes,
        }
        self.invoke_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        wait_for(f"the route of {name}", lambda: self._route_has(name, queues, perm), CHANGE_LIMIT_S)

    def _route_has(self, topic: str, queues: int, perm: int) -> bool:
        with Wire(self.namesrv) as wire:
            answer = wire.invoke(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if answer.code != ResponseCode.SUCCESS:
            return False
        route = parse_topic_route(answer.body)
        has_leader = any(broker.master_addr is not None for broker in route.broker_datas)
        return has_leader and any(
            (each.write_queue_nums, each.perm) == (queues, perm) for each in route.queue_datas
        )

    def invoke_leader(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", limit_s: float = 10.0
    ) -> RemotingCommand:
        """One request to the writable leader. Raises WireError when the answer is not success."""
        return call(self.leader_address(), code, ext, body, limit_s)

    def leader_address(self) -> str:
        return self.cluster.address(self.cluster.wait_leader())

    def follower_ids(self) -> list[str]:
        leader = self.cluster.wait_leader()
        return sorted(node_id for node_id in self.cluster.nodes if node_id != leader)

    def kill_leader(self) -> str:
        """SIGKILL the leader; return its id. `restart` starts it again, `make_whole` at the latest."""
        leader = self.cluster.wait_leader()
        self.cluster.kill(leader)
        wait_for(f"{leader} is gone", lambda: self.cluster.has_ended(leader), CHANGE_LIMIT_S)
        return leader

    def restart(self, node_id: str) -> None:
        self.cluster.restart(node_id)

    def transfer_leader(self, node_id: str) -> None:
        """Hand leadership over; return when that node takes messages."""
        self.invoke_leader(RequestCode.LEDGERMQ_TRANSFER_LEADER, {"transferee": node_id})
        wait_for(f"{node_id} leads", lambda: self.cluster.leader() == node_id, CHANGE_LIMIT_S)

    @contextmanager
    def leader_dead(self) -> Iterator[str]:
        """Kill the leader; in the block another one takes messages; the dead node is back at its end."""
        dead = self.kill_leader()
        try:
            self.cluster.wait_leader()
            yield dead
        finally:
            self.make_whole()

    def make_whole(self) -> None:
        """Start what is dead; return when a leader is in touch with both others."""
        for node_id in self.cluster.nodes:
            if self.cluster.has_ended(node_id):
                self.cluster.restart(node_id)
        wait_for("three nodes in touch", self.is_whole, WHOLE_LIMIT_S)

    def is_whole(self) -> bool:
        """Whether a leader knows how far each of its peers is, so that the next kill leaves a majority."""
        leader = self.cluster.leader()
        status = self.cluster.status(leader) if leader is not None else None
        peers = status["peers"] if status is not None else []
        followers = [peer for peer in peers if peer["id"] != leader]
        return bool(followers) and all(
            peer["pushState"] == "APPEND" and peer["isConnected"] for peer in followers
        )
