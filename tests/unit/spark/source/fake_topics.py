"""Topics on several brokers in memory, behind what a `Cluster` needs of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import orjson

from commitlog.record import Message, encode_record
from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import OWN_LANGUAGE, RESPONSE_FLAG, RemotingCommand
from remoting.errors import ConnectFailedError
from remoting.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
    format_cluster_info,
    format_topic_route,
)
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.errors import ClusterUnavailableError

NO_BODY = b"."


@dataclass
class Queue:
    """`stored_ms` are the store times of its messages; those before `first` are gone."""

    stored_ms: list[int] = field(default_factory=list)
    first: int = 0
    bodies: dict[int, bytes] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return len(self.stored_ms)


@dataclass
class Topics:
    """What there is.

    closed: queues that their topics have no more; brokers still know where they end. unlisted: brokers that
    the name server does not know. dead: brokers that do not answer, and of which it knows no leader.
    is_silent: whether the name server does not answer.
    """

    queues: dict[MessageQueue, Queue] = field(default_factory=dict)
    closed: set[MessageQueue] = field(default_factory=set)
    unlisted: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    is_silent: bool = False
    asked: list[RemotingCommand] = field(default_factory=list)
    committed: dict[MessageQueue, int] = field(default_factory=dict)

    def put(self, queue: MessageQueue, *stored_ms: int) -> Queue:
        """Store messages in a queue, which is made if it is new."""
        found = self.queues.setdefault(queue, Queue())
        found.stored_ms += stored_ms
        return found

    def of_namesrv(self, request: RemotingCommand) -> RemotingCommand:
        open_queues = self.queues.keys() - self.closed
        listed = [queue for queue in open_queues if queue.broker_name not in self.unlisted]
        names = sorted({queue.broker_name for queue in self.queues} - self.unlisted)
        brokers = {name: BrokerData("C", name, self._addresses(name)) for name in names}
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            body = format_cluster_info(ClusterInfo(brokers, {"C": tuple(names)}))
            return _answer(request, 0, body=body)
        if request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            topics = sorted({queue.topic for queue in listed})
            return _answer(request, 0, body=orjson.dumps({"topicList": topics}))
        topic = request.ext_fields["topic"]
        counts: dict[str, int] = {}
        for queue in listed:
            if queue.topic == topic:
                counts[queue.broker_name] = max(counts.get(queue.broker_name, 0), queue.queue_id + 1)
        if not counts:
            return _answer(request, ResponseCode.TOPIC_NOT_EXIST)
        datas = tuple(QueueData(name, count, count, 6) for name, count in sorted(counts.items()))
        route = TopicRoute(datas, tuple(brokers[name] for name in sorted(counts)))
        return _answer(request, 0, body=format_topic_route(route))

    def _addresses(self, name: str) -> dict[int, str]:
        return {1: f"{name}:2"} if name in self.dead else {0: f"{name}:1", 1: f"{name}:2"}

    def of_leader(self, broker_name: str, request: RemotingCommand) -> RemotingCommand:
        self.asked.append(request)
        ext = request.ext_fields
        queue = MessageQueue(ext["topic"], broker_name, int(ext["queueId"]))
        found = self.queues.get(queue, Queue())
        if request.code == RequestCode.GET_MAX_OFFSET:
            return _answer(request, 0, {"offset": str(found.end)})
        if request.code == RequestCode.GET_MIN_OFFSET:
            return _answer(request, 0, {"offset": str(found.first)})
        if request.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            wanted_ms = int(ext["timestamp"])
            late = [n for n in range(found.first, found.end) if found.stored_ms[n] >= wanted_ms]
            return _answer(request, 0, {"offset": str(late[0] if late else found.end)})
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.committed[queue] = int(ext["commitOffset"])
            return _answer(request, 0)
        assert request.code == RequestCode.PULL_MESSAGE, request
        if queue not in self.queues or queue in self.closed:
            return self._refuse(request, queue)
        return self._pull(request, queue, found)

    def _refuse(self, request: RemotingCommand, queue: MessageQueue) -> RemotingCommand:
        """As brokers refuse a queue that they do not have."""
        topics = {other.topic for other in self.queues if other.broker_name == queue.broker_name}
        if queue.topic not in topics:
            return _answer(request, ResponseCode.TOPIC_NOT_EXIST)
        refused = _answer(request, ResponseCode.INVALID_PARAMETER)
        refused.remark = f"queueId[{queue.queue_id}] is illegal, topic:[{queue.topic}]"
        return refused

    def _pull(self, request: RemotingCommand, queue: MessageQueue, found: Queue) -> RemotingCommand:
        at, room = int(request.ext_fields["queueOffset"]), int(request.ext_fields["maxMsgBytes"])
        stop = min(found.end, at + int(request.ext_fields["maxMsgNums"]))
        data = b""
        while at < stop:
            message = Message(queue.topic, queue.queue_id, found.bodies.get(at, NO_BODY))
            record = encode_record(message, at, found.stored_ms[at])
            if data and len(data) + len(record) > room:
                break
            data += record
            at += 1
        code = ResponseCode.SUCCESS if data else ResponseCode.PULL_NOT_FOUND
        ext = {"nextBeginOffset": str(at), "minOffset": str(found.first), "maxOffset": str(found.end)}
        return _answer(request, code, ext, data)


class FakeCluster(Cluster):
    """Asks the Topics in place of sockets."""

    def __init__(self, topics: Topics, deadline_s: float = 5.0) -> None:
        super().__init__("fake:1", 1.0, deadline_s)
        self.topics_now = topics

    def _ask_namesrvs(
        self,
        code: RequestCode,
        ext: dict[str, str],
        expected: Collection[int] = (),
        deadline_s: float | None = None,
    ) -> list[RemotingCommand]:
        if self.topics_now.is_silent:
            raise ClusterUnavailableError("no name server answers")
        return [self.topics_now.of_namesrv(RemotingCommand(code, ext_fields=ext))]

    def _try_many(self, broker_name: str, commands: Sequence[RemotingCommand]) -> list[RemotingCommand]:
        return [self._try_leader(broker_name, command, None) for command in commands]

    def _try_leader(
        self, broker_name: str, command: RemotingCommand, timeout_s: float | None
    ) -> RemotingCommand:
        assert self.leader(broker_name) == f"{broker_name}:1"
        if broker_name in self.topics_now.dead:
            raise ConnectFailedError(f"{broker_name}:1 is dead")
        return self.topics_now.of_leader(broker_name, command)


def _answer(
    request: RemotingCommand, code: int, ext: dict[str, str] | None = None, body: bytes = b""
) -> RemotingCommand:
    answer = RemotingCommand(code, request.opaque, RESPONSE_FLAG, None, ext or {}, body)
    answer.language = OWN_LANGUAGE
    return answer
