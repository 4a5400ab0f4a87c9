"""Reads topics back through pulls, to hold them against what was written."""

from __future__ import annotations

from collections.abc import Iterator

from commitlog.record import Record, decode_record
from remoting.client.routes import MessageQueue
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.pulling import PullStatus, pull


def read_topic(namesrv: str, topic: str) -> dict[MessageQueue, list[Record]]:
    """Every message of every queue, in order."""
    with Cluster(namesrv) as cluster:
        return {queue: list(read_queue(cluster, queue)) for queue in cluster.queues(topic)}


def read_bodies(namesrv: str, topic: str) -> list[str]:
    """The bodies of all messages as text, queue after queue."""
    found = read_topic(namesrv, topic)
    return [record.body.decode() for records in found.values() for record in records]


def read_queue(cluster: Cluster, queue: MessageQueue, offset: int = 0) -> Iterator[Record]:
    while True:
        result = pull(cluster, queue, offset)
        if result.status is PullStatus.NO_NEW_MESSAGE:
            return
        assert result.status in (PullStatus.FOUND, PullStatus.NO_MATCH), result
        at = 0
        while at < len(result.data):
            record = decode_record(result.data, at, check_crc=True)
            at += record.size
            yield record
        offset = result.next_offset
