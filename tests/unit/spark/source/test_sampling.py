"""How large messages are taken to be, from few looks at them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from remoting.client.routes import MessageQueue
from remoting.command import RemotingCommand
from rocketmq_spark.client.pulling import QueueRange
from rocketmq_spark.source.message_sizes import AT_ONCE, RANGES_MAX, message_bytes
from tests.unit.spark.source.fake_topics import FakeCluster, Topics


class Counting(FakeCluster):
    """Notes how many answers are asked for, and held, at a time."""

    def __init__(self, topics: Topics) -> None:
        super().__init__(topics)
        self.asked_at_once: list[int] = []

    def invoke_leader_many(
        self, broker_name: str, commands: Sequence[RemotingCommand], deadline_s: float | None = None
    ) -> list[RemotingCommand]:
        self.asked_at_once.append(len(commands))
        return super().invoke_leader_many(broker_name, commands, deadline_s)


def test_each_of_few_ranges_is_looked_at() -> None:
    topics = Topics()
    small, large = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
    for queue, size in ((small, 10), (large, 1_000)):
        topics.put(queue, *[1_000] * 50).bodies = dict.fromkeys(range(50), b"x" * size)
    found = message_bytes(FakeCluster(topics), [QueueRange(one, 0, 50) for one in (small, large)], "G")
    assert found[large] - found[small] == pytest.approx(990)


def test_of_very_many_ranges_the_longest_are_looked_at_a_few_at_a_time() -> None:
    topics = Topics()
    queues = [MessageQueue("T", "a", number) for number in range(RANGES_MAX + 500)]
    for queue in queues:
        topics.put(queue, 1_000, 1_000).bodies = {0: b"x" * 100, 1: b"x" * 100}
    cluster = Counting(topics)
    longest = queues[-RANGES_MAX:]
    found = message_bytes(
        cluster, [QueueRange(one, 0, 2 if one in longest[:3] else 1) for one in queues], "G"
    )
    assert found.keys() == set(queues)
    assert max(found.values()) == pytest.approx(min(found.values()))
    asked = [request.ext_fields["queueId"] for request in topics.asked]
    assert len(set(asked)) == RANGES_MAX
    assert {str(one.queue_id) for one in longest[:3]} <= set(asked)
    assert max(cluster.asked_at_once) <= AT_ONCE
