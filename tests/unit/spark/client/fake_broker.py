"""A broker's one queue in memory, behind what a `Cluster` needs of it, with faults on demand."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from commitlog.record import Message, encode_record, tags_code
from remoting.client.blocking import Connection
from remoting.client.protocol import Allocate
from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RESPONSE_FLAG, RemotingCommand
from remoting.errors import RemotingClosedError
from rocketmq_spark.client.cluster import Cluster

QUEUE = MessageQueue("T", "broker-a", 0)


@dataclass
class FakeBroker:
    """What the leader holds. A `None` body is an offset that no message has.

    faults: taken one for each answer: `close`, `busy`, `refuse` (not the leader), `behind` (a node that has
    not got the messages yet), `unknown` (nor the topic), or nothing. is_deleted: whether the topic is.
    """

    bodies: list[bytes | None]
    tags: list[str] = field(default_factory=list)
    min_offset: int = 0
    count_max: int = 32
    bytes_max: int = 4096
    faults: deque[str] = field(default_factory=deque)
    removing: frozenset[int] = frozenset()
    language: str = "PYTHON"
    is_deleted: bool = False
    asked: list[int] = field(default_factory=list)

    @property
    def max_offset(self) -> int:
        return len(self.bodies)

    def record(self, offset: int) -> bytes | None:
        body = self.bodies[offset]
        if body is None:
            return None
        text = f"TAGS\x01{self.tags[offset]}\x02".encode() if self.tags else b""
        return encode_record(Message("T", 0, body, text), offset, 1_000 + offset)

    def answer(self, request: RemotingCommand, fault: str) -> RemotingCommand:
        ext = request.ext_fields
        if fault == "refuse":
            return _answer(request, ResponseCode.SERVICE_NOT_AVAILABLE, {}, "only the leader answers this")
        if fault == "busy":
            return _answer(request, ResponseCode.SYSTEM_BUSY, {}, "busy")
        if request.code == RequestCode.GET_MAX_OFFSET:
            return _answer(request, 0, {"offset": str(self.max_offset)})
        if request.code == RequestCode.GET_MIN_OFFSET:
            return _answer(request, 0, {"offset": str(self.min_offset)})
        assert request.code == RequestCode.PULL_MESSAGE, request
        if self.is_deleted or fault == "unknown":
            return _answer(request, ResponseCode.TOPIC_NOT_EXIST, {}, "topic[T] not exist")
        offset = int(ext["queueOffset"])
        if fault == "behind":
            return self._pulled(request, ResponseCode.PULL_NOT_FOUND, offset)
        return self._pull(request, offset, min(int(ext["maxMsgNums"]), self.count_max), ext["subscription"])

    def _pull(self, request: RemotingCommand, offset: int, count: int, tags: str) -> RemotingCommand:
        self.asked.append(offset)
        if offset == self.max_offset:
            return self._pulled(request, ResponseCode.PULL_NOT_FOUND, offset)
        if not self.min_offset <= offset < self.max_offset:
            nearest = self.min_offset if offset < self.min_offset else self.max_offset
            return self._pulled(request, ResponseCode.PULL_OFFSET_MOVED, nearest)
        if offset in self.removing:
            return self._pulled(
                request, ResponseCode.PULL_RETRY_IMMEDIATELY, offset + 1, "MESSAGE_WAS_REMOVING"
            )
        wanted = None if tags == "*" else {tags_code(tag.strip()) for tag in tags.split("||")}
        data, taken, at = b"", 0, offset
        while at < self.max_offset and at - offset < 4 * count and taken < count:
            record = self.record(at)
            if record is not None and (wanted is None or tags_code(self.tags[at]) in wanted):
                if data and len(data) + len(record) > self.bytes_max:
                    break
                data += record
                taken += 1
            at += 1
            if wanted is None and at - offset == count:
                break
        if not data:
            return self._pulled(request, ResponseCode.PULL_RETRY_IMMEDIATELY, at, "NO_MATCHED_MESSAGE")
        return self._pulled(request, ResponseCode.SUCCESS, at, "FOUND", data)

    def _pulled(
        self, request: RemotingCommand, code: int, next_offset: int, remark: str = "", body: bytes = b""
    ) -> RemotingCommand:
        ext = {"nextBeginOffset": str(next_offset), "suggestWhichBrokerId": "0"}
        ext |= {"minOffset": str(self.min_offset), "maxOffset": str(self.max_offset)}
        answer = _answer(request, code, ext, remark, body)
        answer.language = self.language
        return answer


def _answer(
    request: RemotingCommand, code: int, ext: dict[str, str], remark: str = "", body: bytes = b""
) -> RemotingCommand:
    return RemotingCommand(code, request.opaque, RESPONSE_FLAG, remark, ext, body)


class FakeConnection(Connection):
    """A connection whose peer is a FakeBroker. Answers come in the order of the requests."""

    def __init__(self, broker: FakeBroker) -> None:
        self.address = "fake:1"
        self.is_open = True
        self._broker = broker
        self._timeout_s = 1.0
        self._opaque = 0
        self._sent: deque[RemotingCommand] = deque()

    def close(self) -> None:
        self.is_open = False
        self._sent.clear()

    def send(self, command: RemotingCommand) -> int:
        self._opaque += 1
        command.opaque = self._opaque
        self._sent.append(command)
        return self._opaque

    def receive_into(self, allocate: Allocate) -> tuple[RemotingCommand, memoryview]:
        answer = self._receive_until(0.0)
        block = allocate(len(answer.body))[: len(answer.body)]
        block[:], answer.body = answer.body, b""
        return answer, block

    def _receive_until(self, deadline_s: float) -> RemotingCommand:
        faults = self._broker.faults
        fault = faults.popleft() if faults else ""
        if fault == "close":
            self.close()
            raise RemotingClosedError("the fake broker closed")
        return self._broker.answer(self._sent.popleft(), fault)


class FakeCluster(Cluster):
    """A cluster of one FakeBroker; its leader's connection is made again when it was closed."""

    def __init__(self, broker: FakeBroker, deadline_s: float = 5.0) -> None:
        super().__init__("fake:1", 1.0, deadline_s)
        self._broker = broker
        self._connection = FakeConnection(broker)

    def leader_connection(self, broker_name: str) -> Connection:
        assert broker_name == QUEUE.broker_name
        if not self._connection.is_open:
            self._connection = FakeConnection(self._broker)
        return self._connection

    def forget_leader(self, broker_name: str) -> None:
        super().forget_leader(broker_name)
        self._connection.close()
