"""A model of Kafka's two rules for truncation, with two replicas and nothing else; no part of the product.

It shows why the engine compares epochs: `high_watermark` is the rule the article begins with, by which an
acknowledged message is lost; `leader_epoch` is the rule (KIP-101) that keeps it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.golden.runner import Command


@dataclass(slots=True)
class Replica:
    """Entries are (epoch, body). high_watermark counts the entries known to be committed."""

    name: str
    log: list[tuple[int, str]] = field(default_factory=list)
    high_watermark: int = 0
    is_up: bool = True

    @property
    def log_end(self) -> int:
        return len(self.log)

    def end_of_epoch(self, epoch: int) -> int:
        """OffsetsForLeaderEpoch: where the first later epoch begins, or the log ends."""
        return next((at for at, (other, _) in enumerate(self.log) if other > epoch), self.log_end)


class Replicas:
    """min.insync.replicas=1: a message is acknowledged when every live replica is known to hold it."""

    def __init__(self) -> None:
        self.replicas: dict[str, Replica] = {}
        self.rule = ""
        self.leader = ""
        self.epoch = 0
        self.remote_log_end: dict[str, int] = {}

    def run(self, command: Command) -> list[str]:
        action: Callable[[Command], list[str]] = getattr(self, f"do_{command.name}")
        return action(command)

    def do_replicas(self, command: Command) -> list[str]:
        self.replicas = {name: Replica(name) for name in command.words}
        self.rule = command.get("rule") or ""
        assert self.rule in ("high_watermark", "leader_epoch"), self.rule
        return []

    def do_lead(self, command: Command) -> list[str]:
        self.leader, self.epoch = command.words[0], self.epoch + 1
        self.remote_log_end = {}
        return [f"{self.leader} leads epoch {self.epoch}, {self._show(self.replicas[self.leader])}"]

    def do_produce(self, command: Command) -> list[str]:
        leader = self.replicas[command.words[0]]
        leader.log += [(self.epoch, body) for body in command.all("body")]
        return [self._show(leader), *self._advance(leader)]

    def do_fetch(self, command: Command) -> list[str]:
        """fetch B [lost]: B asks from its log end on; lost: the answer does not arrive."""
        follower, leader = self.replicas[command.words[0]], self.replicas[self.leader]
        self._cut_to_leader(follower, leader)
        self.remote_log_end[follower.name] = follower.log_end
        lines = self._advance(leader)
        if "lost" not in command.words:
            follower.log += leader.log[follower.log_end :]
            follower.high_watermark = min(leader.high_watermark, follower.log_end)
            lines.append(self._show(follower))
        return lines

    def do_crash(self, command: Command) -> list[str]:
        self.replicas[command.words[0]].is_up = False
        return []

    def do_restart(self, command: Command) -> list[str]:
        replica = self.replicas[command.words[0]]
        replica.is_up = True
        if self.rule == "high_watermark":
            del replica.log[replica.high_watermark :]
        return [f"{replica.name} restarts, {self._show(replica)}"]

    def do_log(self, command: Command) -> list[str]:
        return [self._show(replica) for replica in self.replicas.values()]

    def _cut_to_leader(self, follower: Replica, leader: Replica) -> None:
        if self.rule == "high_watermark":
            del follower.log[leader.log_end :]
        elif follower.log:
            del follower.log[leader.end_of_epoch(follower.log[-1][0]) :]

    def _advance(self, leader: Replica) -> list[str]:
        others = [replica for replica in self.replicas.values() if replica.is_up and replica is not leader]
        ends = [self.remote_log_end.get(other.name, 0) for other in others]
        high_watermark = min([leader.log_end, *ends])
        if high_watermark <= leader.high_watermark:
            return []
        acknowledged = [body for _, body in leader.log[leader.high_watermark : high_watermark]]
        leader.high_watermark = high_watermark
        return [f"{leader.name} acknowledges {' '.join(acknowledged)}"]

    def _show(self, replica: Replica) -> str:
        entries = " ".join(f"{body}@{epoch}" for epoch, body in replica.log)
        return f"{replica.name}: log=[{entries}] high watermark={replica.high_watermark}"
