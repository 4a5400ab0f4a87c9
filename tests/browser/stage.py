"""What there is to see on the page: topics, groups that are behind, dead letters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import httpx

from ledgermq.client import Message, Producer
from remoting.codes import RequestCode
from tests.integration.cluster import Cluster
from tests.integration.wire import call
from tests.support.secured import secured_values

TOPIC = "Orders"
GROUP = "billing"
KEY = "order-7"
BODY = '{"order":7,"items":["tea","naïve ☕ 你好"]}'
MESSAGES = 24
CONSUMED = 2
DEAD = 3
QUEUES = 4
"""As many as a first send makes."""
TO_DLQ = "-1"


@dataclass(frozen=True, slots=True)
class Stage:
    """One cluster with data in it. `dead_keys`: of the messages that became dead letters, oldest first."""

    cluster: Cluster
    dead_keys: tuple[str, ...]


def keeping_users(folder: Path) -> dict[str, str]:
    """Settings of a cluster that has users, and whose access control is off."""
    return secured_values(folder, authenticationEnabled="false", authorizationEnabled="false")


def set_up(cluster: Cluster) -> Stage:
    """Messages with keys, a group that consumed some of them, and a few that it gave up."""
    _make_group(cluster)
    positions = asyncio.run(_send(cluster))
    leader = cluster.address(cluster.wait_leader())
    for queue_id in range(QUEUES):
        ext = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": str(queue_id),
            "commitOffset": str(CONSUMED),
        }
        call(leader, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    dead = range(DEAD)
    for number in dead:
        ext = {
            "offset": str(positions[number]),
            "group": GROUP,
            "delayLevel": TO_DLQ,
            "originTopic": TOPIC,
        }
        call(leader, RequestCode.CONSUMER_SEND_MSG_BACK, ext)
    return Stage(cluster, tuple(f"order-{number}" for number in dead))


def _make_group(cluster: Cluster) -> None:
    """With its retry topic, as its first consumer would make it."""
    answer = httpx.put(
        f"{cluster.admin}/api/v1/consumer-groups/{GROUP}",
        params={"dryRun": False},
        json={"retryMaxTimes": 3},
        timeout=10,
    )
    assert answer.status_code == 200, answer.text
    retry = {"name": f"%RETRY%{GROUP}", "readQueues": 1, "writeQueues": 1}
    answer = httpx.post(f"{cluster.admin}/api/v1/topics", params={"dryRun": False}, json=retry, timeout=10)
    assert answer.status_code == 200, answer.text


async def _send(cluster: Cluster) -> list[int]:
    """The positions of the messages in the log."""
    sent = []
    async with Producer(cluster.namesrv) as producer:
        for number in range(MESSAGES):
            key = f"order-{number}"
            body = BODY if key == KEY else f"order {number}"
            sent.append(await producer.send(Message(TOPIC, body.encode(), keys=(key,), tag="new")))
    return [int(result.offset_message_id[-16:], 16) for result in sent]
