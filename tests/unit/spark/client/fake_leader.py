"""A leader that takes sends, with the broker's own rules for numbered ones, and faults on demand."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from broker.send.admission import split_batch
from broker.send.sequenced import SequencedAdmission
from broker.send.sequencing import SequenceRefusedError, Sequencing
from broker.state.writers import WriterTable
from commitlog.log import PutStatus
from commitlog.sequences import writer_key
from remoting.client.blocking import Connection
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RESPONSE_FLAG, RemotingCommand
from remoting.errors import RemotingClosedError
from remoting.headers.send import SequencedSendRequestHeader
from rocketmq_spark.client.cluster import Cluster
from tests.support.fake_log import FakeLog

FAULTS = ("", "busy", "refuse", "in doubt", "close before", "close after", "new leader")


@dataclass
class Leader:
    """`entries` are (key, batch, number, body) in log order; those before `committed` are committed."""

    faults: deque[str] = field(default_factory=deque)
    entries: list[tuple[bytes, int, int, bytes]] = field(default_factory=list)
    committed: int = 0
    digests: dict[int, bytes] = field(default_factory=dict)
    """By the number of the entry."""
    changes: int = 0

    def __post_init__(self) -> None:
        self._lead()

    def _lead(self) -> None:
        """Derive everything anew from what is in the log."""
        self.table = WriterTable()
        self.committed = self.applied = 0
        self.sequencing = Sequencing(FakeLog(), lambda: self.table, lambda: 0)
        self._commit()

    def change(self) -> None:
        """Another leads; half of what was not committed is in its log."""
        self.changes += 1
        del self.entries[self.committed + (len(self.entries) - self.committed) // 2 :]
        self._lead()

    def _commit(self) -> None:
        self.committed = len(self.entries)
        for index in range(self.applied, self.committed):
            key, batch_id, number, _ = self.entries[index]
            self.table.apply((key, batch_id, number, 1, index, 1, self.digests.get(index, b"")), index - 1)
        self.applied = self.committed

    def take(self, request: RemotingCommand, fault: str) -> RemotingCommand:
        if fault == "refuse":
            return _answer(request, ResponseCode.SERVICE_NOT_AVAILABLE, "not the leader")
        if fault == "busy":
            return _answer(request, ResponseCode.SYSTEM_BUSY, "busy")
        if request.code != RequestCode.LEDGERMQ_SEND_SEQUENCED:
            self.entries += [(b"", 0, 0, part.body) for part in split_batch(request.body, 100)]
            return self._end(request, fault, 0)
        header = SequencedSendRequestHeader.parse(request.ext_fields)
        key = writer_key(header.writer_id, header.partition)
        parts = split_batch(request.body, 100)
        digests = SequencedAdmission.digests(header, request.body)
        try:
            verdict = self.sequencing.admit(key, header.batch_id, header.sequence, len(parts), digests)
        except SequenceRefusedError as error:
            return _answer(request, error.code, error.remark)
        flight = verdict.flight
        if flight is None:
            if verdict.status is PutStatus.PUT_OK:
                return _answer(request, 0, repeats=len(parts))
            self._commit()  # it was in doubt: by now it is committed, or the next try finds it so
            return _answer(request, ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
        numbered = list(enumerate(parts, header.sequence))[verdict.repeats :]
        new = digests[1 + verdict.repeats :]
        self.digests |= dict(enumerate(new, len(self.entries)))
        self.entries += [(key, header.batch_id, number, part.body) for number, part in numbered]
        self.sequencing.finish(flight, PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH if fault else PutStatus.PUT_OK)
        return self._end(request, fault, verdict.repeats)

    def _end(self, request: RemotingCommand, fault: str, repeats: int) -> RemotingCommand:
        if fault == "in doubt":
            return _answer(request, ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
        self._commit()
        return _answer(request, 0, repeats=repeats)


def _answer(
    request: RemotingCommand, code: int, remark: str | None = None, repeats: int = 0
) -> RemotingCommand:
    return RemotingCommand(code, request.opaque, RESPONSE_FLAG, remark, {"repeats": str(repeats)})


class LeaderConnection(Connection):
    """Requests are taken when an answer is waited for, in their order."""

    def __init__(self, leader: Leader) -> None:
        self.is_open = True
        self._leader = leader
        self._opaque = 0
        self._sent: deque[RemotingCommand] = deque()
        self.most_waiting_bytes = 0

    def close(self) -> None:
        self.is_open = False

    def send(self, command: RemotingCommand) -> int:
        if not self.is_open:
            raise RemotingClosedError("closed")
        self._opaque += 1
        command.opaque = self._opaque
        copy = RemotingCommand(command.code, self._opaque, ext_fields=command.ext_fields, body=command.body)
        self._sent.append(copy)
        self.most_waiting_bytes = max(self.most_waiting_bytes, sum(len(one.body) for one in self._sent))
        return self._opaque

    def receive(self, timeout_s: float | None = None) -> RemotingCommand:
        leader = self._leader
        fault = leader.faults.popleft() if leader.faults else ""
        if fault == "close after":
            while self._sent:
                leader.take(self._sent.popleft(), "")
        if fault == "new leader":
            leader.change()
        if fault in ("close before", "close after", "new leader"):
            self.close()
            raise RemotingClosedError("closed")
        assert self._sent, "the client waits for an answer that nobody owes it"
        return leader.take(self._sent.popleft(), fault)


class LeaderCluster(Cluster):
    """A cluster of one broker. Tries cost no time."""

    def __init__(self, leader: Leader) -> None:
        super().__init__("127.0.0.1:1")
        self.leader_now = leader
        self.connections: list[LeaderConnection] = []

    def leader_connection(self, broker_name: str) -> Connection:
        if not self.connections or not self.connections[-1].is_open:
            self.connections.append(LeaderConnection(self.leader_now))
        return self.connections[-1]

    def forget_leader(self, broker_name: str) -> None:
        if self.connections:
            self.connections[-1].close()
