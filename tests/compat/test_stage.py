"""What the other files stand on: a created topic is there, and a dead leader has a successor."""

from __future__ import annotations

import asyncio

import pytest

from remoting.codes import RequestCode
from tests.compat.stage import Stage
from tests.integration.streams import read_topic

pytestmark = pytest.mark.integration


def test_topic_outlives_the_leader_that_created_it(stage: Stage) -> None:
    topic = stage.topic("Stage", queues=3)
    with stage.leader_dead() as dead:
        assert stage.cluster.wait_leader() != dead
        answer = stage.invoke_leader(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        assert answer.body.count(b"maxOffset") == 3
        assert asyncio.run(read_topic(stage.namesrv, topic)) == {0: [], 1: [], 2: []}
    assert stage.is_whole()
    assert len(stage.cluster.statuses()) == 3
