"""Many queues at a time: what one search for each would find, with few questions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from rocketmq_spark.client.offset_lookup import offset_at, offsets_at
from rocketmq_spark.client.queue_offsets import bounds
from rocketmq_spark.errors import RequestRefusedError
from tests.unit.spark.source.fake_topics import FakeCluster, Topics

QUEUES = [MessageQueue("T", broker, number) for broker in "ab" for number in range(3)]
STORED = st.lists(st.integers(0, 30), max_size=12).map(sorted)


@given(
    st.dictionaries(st.sampled_from(QUEUES), st.tuples(STORED, st.integers(0, 12)), min_size=1),
    st.integers(0, 31),
    st.integers(-3, 3),
)
def test_it_is_what_a_search_of_each_queue_finds(
    given_queues: dict[MessageQueue, tuple[list[int], int]], time_ms: int, wrong_by: int
) -> None:
    """Of brokers that answer right, and of those that name a message nearby."""
    topics = Topics()
    for queue, (stored_ms, first) in given_queues.items():
        topics.put(queue, *stored_ms).first = min(first, len(stored_ms))
    cluster = Nearby(topics, wrong_by)
    found = bounds(cluster, given_queues)
    times_ms = dict.fromkeys(found, time_ms)
    expected = {queue: offset_at(cluster, queue, time_ms, ends) for queue, ends in found.items()}
    assert offsets_at(cluster, times_ms, found) == expected


class Nearby(FakeCluster):
    """Its brokers answer a search for a time with an offset that is wrong by so much."""

    def __init__(self, topics: Topics, wrong_by: int = 0) -> None:
        super().__init__(topics)
        self.wrong_by, self.alone = wrong_by, 0

    def _try_leader(
        self, broker_name: str, command: RemotingCommand, timeout_s: float | None
    ) -> RemotingCommand:
        self.alone += 1
        answer = super()._try_leader(broker_name, command, timeout_s)
        if command.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP and "offset" in answer.ext_fields:
            answer.ext_fields["offset"] = str(int(answer.ext_fields["offset"]) + self.wrong_by)
        return answer

    def _try_many(self, broker_name: str, commands: Sequence[RemotingCommand]) -> list[RemotingCommand]:
        found = [self._try_leader(broker_name, command, None) for command in commands]
        self.alone -= len(commands)
        return found


def test_no_request_waits_for_another_one_where_brokers_answer_right() -> None:
    topics = Topics()
    queues = [MessageQueue("T", "a", number) for number in range(100)]
    for queue in queues:
        topics.put(queue, 1, 2, 3)
    cluster = Nearby(topics)
    found = bounds(cluster, queues)
    assert offsets_at(cluster, dict.fromkeys(queues, 2), found) == dict.fromkeys(queues, 1)
    assert cluster.alone == 0


def test_a_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = Topics()
    topics.put(QUEUES[0], 1, 2)
    cluster = Nearby(topics)
    found = bounds(cluster, QUEUES[:1])

    def refuse(broker_name: str, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand(24, request.opaque, 1, "no such group")

    monkeypatch.setattr(topics, "of_leader", refuse)
    with pytest.raises(RequestRefusedError, match="T/a:0"):
        offsets_at(cluster, {QUEUES[0]: 2}, found)
