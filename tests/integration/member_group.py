"""The operator of a cluster whose members change, by `ledgermq member`."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

from tests.integration.client_runs import ROOT
from tests.integration.cluster import COMMAND, Cluster
from tests.integration.waiting import wait_for

COMMAND_LIMIT_S, CHANGE_LIMIT_S = 60, 60.0


class Group:
    """A cluster of `ledgermq up`, and its operator."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`ledgermq member …`, whatever its end."""
        return subprocess.run(
            [str(COMMAND), "member", *arguments, "--namesrv", self.cluster.namesrv],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )

    def change(self, *arguments: str) -> None:
        done = self.ask(*arguments, "--yes")
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)

    def change_local(self, *arguments: str) -> None:
        """With the files and the plan of the cluster's folder."""
        self.change(*arguments, "--local", "--data", str(self.cluster.data))

    def members(self) -> dict[str, str]:
        """The role of each, in the newest configuration that the leader's log has; none without a leader."""
        leader = self.cluster.leader()
        status = self.cluster.status(leader) if leader is not None else None
        if status is None or not status["isConfigurationCommitted"]:
            return {}
        return {member["id"]: member["role"] for member in status["members"]}

    def wait_members(self, *voters: str) -> None:
        wanted = dict.fromkeys(voters, "voter")
        last: list[dict[str, str]] = []

        def is_so() -> bool:
            last[:] = [self.members()]
            return last[0] == wanted

        try:
            wait_for(f"{voters} vote, and no other node is a member", is_so, CHANGE_LIMIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; {last}; {self.cluster.statuses()}") from None

    def grow(self, node_id: str, *voters: str) -> None:
        self.change_local("add", node_id)
        self.cluster.start_joined(node_id)
        self.wait_members(*voters, node_id)

    def remove(self, node_id: str, *voters: str) -> None:
        """The node runs on."""
        self.change_local("remove", node_id)
        self.wait_members(*voters)
        self.cluster.wait_leader()

    def kill(self, node_id: str, signal_number: int = signal.SIGKILL) -> None:
        self.cluster.kill(node_id, signal_number)
        wait_for("it has ended", lambda: self.cluster.has_ended(node_id), CHANGE_LIMIT_S)

    def terms(self, node_ids: list[str]) -> dict[str, tuple[int, str]]:
        """What each says of the term and its leader."""
        statuses = self.cluster.statuses()
        return {node_id: (statuses[node_id]["term"], statuses[node_id]["leaderId"]) for node_id in node_ids}

    def peers(self) -> dict[str, dict[str, Any]]:
        """The others, as the leader sees them."""
        status = self.cluster.status(self.cluster.wait_leader())
        assert status is not None
        return {peer["id"]: peer for peer in status["peers"]}
