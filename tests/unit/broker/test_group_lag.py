"""One rule says how far a group is behind, and both who tell it keep to it."""

from pathlib import Path

import pytest

from broker.admin.feature import admin_feature
from broker.admin.types import ProgressMessage
from broker.monitoring.lags import ConsumerLags, QueueEnds, TopicLag, topic_lag
from broker.state.changes import CommitOffsets, PutGroup, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import TopicConfig
from remoting.codes import RequestCode
from tests.unit.broker.consume_bench import make_bench, request


@pytest.mark.parametrize(
    ("ends", "offsets", "expected"),
    [
        ([30, 5, 0], {0: 10, 1: 5, 2: 0}, TopicLag(20, 0)),
        ([5, 7], {0: 9}, TopicLag(0, 1)),
        ([5, 7], {0: 1, 9: 0}, TopicLag(4, 1)),
        ([0, 0], {1: 0}, TopicLag(0, 0)),
        ([5, 0], {}, TopicLag(None, 1)),
        ([5, 0], {1: 0}, TopicLag(None, 1)),
    ],
    ids=["sum", "never negative", "read queues only", "nothing there", "no offset", "none where it counts"],
)
def test_lag(ends: list[int], offsets: dict[int, int], expected: TopicLag) -> None:
    assert topic_lag(ends, offsets) == expected


async def test_the_metric_and_the_request_say_the_same(tmp_path: Path) -> None:
    """Also of messages that were deleted unread, of a queue that is read no more and of a topic that is
    gone.
    """
    bench = await make_bench(tmp_path)
    parts = bench.parts
    parts.add(admin_feature(parts.core, parts.consumers))
    await parts.state.propose(
        PutTopic(TopicConfig("u", 2, 2)),
        PutGroup(SubscriptionGroupConfig("h")),
        CommitOffsets("g", "t", {0: 1, 1: 0, 7: 0}),
        CommitOffsets("h", "u", {0: 0}),
        CommitOffsets("h", "gone", {0: 0}),
    )
    await bench.put(*[b"x"] * 5)
    await bench.put(b"x", topic="u", queue_id=1)
    await bench.put(b"x", b"x", topic="gone")
    await bench.put(b"x", queue_id=7)
    bench.log.fake_queues.by_key["t", 0].drop_before(3)
    lags = ConsumerLags(
        lambda: parts.state.offsets,
        lambda: QueueEnds(parts.state.topics.get, parts.log.queues.get),
        parts.log.is_writable,
        10,
    )
    await lags.refresh()
    answer = await bench.ask(request(RequestCode.LEDGERMQ_GROUP_PROGRESS))
    told = {
        (topic, name): row.lag
        for name, group in ProgressMessage.from_json(answer.body).groups.items()
        for topic, row in group.topics.items()
    }
    assert told == {("t", "g"): 4, ("u", "h"): None}
    assert lags.shown == {("t", "g"): 4}
