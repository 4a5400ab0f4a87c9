"""Fills topics for the tests of the pipeline: through the pipeline's own connection, each send pipelined."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from commitlog.record import format_properties
from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.queue_offsets import max_offsets
from tests.integration.waiting import wait_for
from tests.integration.wire import call

IN_FLIGHT_MAX = 200
READY_LIMIT_S = 90.0


@dataclass(frozen=True, slots=True)
class Out:
    """A message to send."""

    body: bytes
    queue_id: int = 0
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    born_timestamp_ms: int = 0
    flag: int = 0
    sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a message went."""

    out: Out
    queue_id: int
    offset: int


def create_topic(namesrv: str, topic: str, queues: int = 4) -> None:
    """Make the topic on every broker of the cluster, and wait until the name server routes to all of them."""
    with Cluster(namesrv) as cluster:

        def brokers() -> list[str]:
            cluster.refresh()
            found = cluster.cluster_info().brokers
            return [name for name, broker in found.items() if broker.master_addr]

        names = wait_for("a broker with a leader", brokers, READY_LIMIT_S)
        for name in names:
            answer = cluster.invoke_leader(name, lambda: _topic_command(topic, queues))
            assert answer.code == ResponseCode.SUCCESS, answer

        def is_routed() -> bool:
            cluster.refresh()
            try:
                return len(cluster.write_queues(topic)) == queues * len(names)
            except Exception:  # noqa: BLE001 - not known yet
                return False

        wait_for(f"a route of {topic}", is_routed, READY_LIMIT_S)


def delete_topic(namesrv: str, topic: str) -> None:
    """As mqadmin does: of every broker, then of the name server."""
    request = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": topic})
    with Cluster(namesrv) as cluster:
        for name in cluster.registered_leaders():
            answer = cluster.invoke_leader(name, lambda: request)
            assert answer.code == ResponseCode.SUCCESS, answer
    call(namesrv, RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})


def send(namesrv: str, topic: str, messages: Iterable[Out]) -> list[Stored]:
    """Send to the topic's first broker, in order; a message is sent again only if it was refused for good.

    Raises AssertionError when an acknowledgement does not come: the message may be stored or not.
    """
    with Cluster(namesrv) as cluster:
        return send_to(cluster, cluster.write_queues(topic)[0].broker_name, topic, messages)


def send_to(cluster: Cluster, broker_name: str, topic: str, messages: Iterable[Out]) -> list[Stored]:
    """The same to one broker of a cluster that is known."""
    waiting = list(messages)
    stored: list[Stored] = []
    for start in range(0, len(waiting), IN_FLIGHT_MAX):
        stored += _send_stretch(cluster, broker_name, topic, waiting[start : start + IN_FLIGHT_MAX])
    _wait_readable(cluster, broker_name, topic, stored)
    return stored


def _wait_readable(cluster: Cluster, broker_name: str, topic: str, stored: Sequence[Stored]) -> None:
    """What is acknowledged can be read a moment later."""
    ends: dict[MessageQueue, int] = {}
    for one in stored:
        queue = MessageQueue(topic, broker_name, one.queue_id)
        ends[queue] = max(ends.get(queue, 0), one.offset + 1)

    def is_readable() -> bool:
        newest = max_offsets(cluster, ends)
        return all(newest[queue] >= end for queue, end in ends.items())

    wait_for("what was sent can be read", is_readable, READY_LIMIT_S)


def numbered(count: int, queues: int = 4, tags: Sequence[str] = ("TagA", "TagB"), size: int = 0) -> list[Out]:
    """Messages `message-0` … over the queues in turn, with the tags in turn, padded to `size` bytes."""
    return [
        Out(
            f"message-{number}".encode().ljust(size, b"."),
            number % queues,
            tags[number % len(tags)],
            f"key-{number}",
            {"number": str(number)},
        )
        for number in range(count)
    ]


def _send_stretch(cluster: Cluster, broker_name: str, topic: str, messages: list[Out]) -> list[Stored]:
    connection = cluster.leader_connection(broker_name)
    asked = {connection.send(_send_command(topic, message)): message for message in messages}
    stored: dict[int, Stored] = {}
    refused: list[Out] = []
    while len(stored) + len(refused) < len(asked):
        try:
            answer = connection.receive(READY_LIMIT_S)
        except RemotingError as error:
            raise AssertionError(f"no acknowledgement: {error}") from error
        if answer.code == ResponseCode.SUCCESS:
            ext = answer.ext_fields
            out = asked[answer.opaque]
            stored[answer.opaque] = Stored(out, int(ext["queueId"]), int(ext["queueOffset"]))
        else:
            assert answer.code in (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE), answer
            refused.append(asked[answer.opaque])
    done = [stored[opaque] for opaque in asked if opaque in stored]
    if refused:
        cluster.forget_leader(broker_name)
        time.sleep(0.1)
        done += _send_stretch(cluster, broker_name, topic, refused)
    return done


def _topic_command(topic: str, queues: int) -> RemotingCommand:
    ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues)}
    ext |= {"writeQueueNums": str(queues), "perm": "6", "topicFilterType": "SINGLE_TAG"}
    ext |= {"topicSysFlag": "0", "order": "false"}
    return RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=ext)


def _send_command(topic: str, message: Out) -> RemotingCommand:
    properties = dict(message.properties)
    if message.tags is not None:
        properties["TAGS"] = message.tags
    if message.keys is not None:
        properties["KEYS"] = message.keys
    born_ms = message.born_timestamp_ms or time.time_ns() // 1_000_000
    ext = {"a": "SparkTests", "b": topic, "c": "TBW102", "d": "4", "e": str(message.queue_id)}
    ext |= {"f": str(message.sys_flag), "g": str(born_ms), "h": str(message.flag), "j": "0", "k": "false"}
    ext |= {"i": format_properties(properties).decode(), "m": "false"}
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=ext, body=message.body)
