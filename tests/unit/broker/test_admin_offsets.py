"""Offsets for operators: resets that running consumers follow, clones, tables."""

import asyncio
from pathlib import Path

import pytest

from broker.consume.clients import HEARD_WITHIN_MS
from broker.state.changes import (
    Change,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    DropOffsets,
    PutGroup,
    PutTopic,
)
from broker.state.groups import SubscriptionGroupConfig
from broker.state.tables import HEARD_OF_MS
from broker.state.topics import TopicConfig
from commitlog.log import PutStatus
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.fastjson import loads
from remoting.slices import finish
from tests.support.broker_parts import FakeEngine
from tests.support.group_requests import RESET, begin_reset, commit, pull_at, pull_request
from tests.support.operator import Operator, connect_client


@pytest.fixture
async def operator(tmp_path: Path) -> Operator:
    """Topic t with two queues, 5 messages in queue 1; group g has consumed 2 of them."""
    made = Operator(tmp_path, FakeEngine())
    made.parts.consumers.running_groups.heard_since_ms -= HEARD_WITHIN_MS
    await made.parts.state.propose(
        PutTopic(TopicConfig("t", 2, 2)),
        PutGroup(SubscriptionGroupConfig("g")),
        CommitOffsets("g", "t", {0: 0, 1: 2}),
    )
    await made.store("t", 1, 5)
    return made


async def next_leader(operator: Operator, tmp_path: Path, later_ms: int = 0) -> Operator:
    """The node that takes over with what is committed, and began so much later."""
    operator.log.set_writable(False)
    log = operator.log.reopened()
    made = Operator(tmp_path / "next", FakeEngine(), log)
    made.parts.clock = lambda: log.now_ms + later_ms
    log.set_writable(False)
    await log.start()
    log.set_writable(True)
    return made


def offsets(operator: Operator, group: str = "g") -> dict[int, int]:
    return dict(operator.parts.state.offsets.queues(group, "t"))


async def reset(operator: Operator, **ext: str) -> dict[int, int]:
    answer = await operator.read(RESET, **{"topic": "t", "group": "g", "timestamp": "-1", **ext})
    return {loads(key)["queueId"]: offset for key, offset in answer["offsetTable"].items()}


async def test_a_reset_is_committed_before_it_is_answered(operator: Operator) -> None:
    assert await reset(operator) == {0: 0, 1: 5}
    assert offsets(operator) == {0: 0, 1: 5}
    assert await reset(operator, timestamp="0") == {0: 0, 1: 0}
    assert await reset(operator, timestamp=str(operator.log.now_ms + 1)) == {0: 0, 1: 5}
    assert offsets(operator) == {0: 0, 1: 5}
    assert len(operator.parts.consumers.resets) == 0, "nobody runs who must hear of it"


async def test_one_queue_can_be_reset_to_an_offset_within_it(operator: Operator) -> None:
    assert await reset(operator, queueId="1", offset="4") == {1: 4}
    assert offsets(operator) == {0: 0, 1: 4}
    refused = await operator.ask(RESET, topic="t", group="g", timestamp="-1", queueId="1", offset="6")
    assert (refused.code, "[0-5]" in (refused.remark or "")) == (1, True)
    assert offsets(operator) == {0: 0, 1: 4}


async def test_without_force_nothing_is_skipped(operator: Operator) -> None:
    assert await reset(operator, isForce="false") == {0: 0, 1: 2}
    assert await reset(operator, isForce="false", timestamp="0") == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        ({"topic": "absent"}, 17),
        ({"group": "absent"}, 26),
        ({"queueId": "2"}, 29),
        ({"timestamp": "soon"}, 1),
        ({"isForce": "perhaps"}, 1),
    ],
)
async def test_a_reset_of_nothing_is_refused(operator: Operator, ext: dict[str, str], code: int) -> None:
    before = offsets(operator)
    answer = await operator.ask(RESET, **{"topic": "t", "group": "g", "timestamp": "-1", **ext})
    assert answer.code == code
    assert offsets(operator) == before


async def test_a_follower_names_the_leader(operator: Operator) -> None:
    assert operator.engine is not None
    operator.engine.leader_id = "n1"
    operator.log.set_writable(False)
    for code, ext in (
        (RESET, {"topic": "t", "group": "g", "timestamp": "-1"}),
        (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "h", "topic": "t"}),
    ):
        answer = await operator.ask(code, **ext)
        assert (answer.code, "the leader is n1" in (answer.remark or "")) == (14, True)


async def test_a_running_consumer_is_sent_to_the_new_offset_once(operator: Operator) -> None:
    operator.add_pulls()
    connect_client(operator)
    await reset(operator, timestamp="0")
    moved = await pull_at(operator, 5, sysFlag="5", commitOffset="5")
    assert (moved.code, moved.ext_fields["nextBeginOffset"], moved.remark) == (21, "0", "OFFSET_RESET")
    assert operator.parts.consumers.commits.current("g", "t", 1) == 0, "what it had counts no more"
    again = await pull_at(operator, 0)
    assert (again.code, again.ext_fields["nextBeginOffset"]) == (0, "5")


async def test_a_consumer_that_is_there_already_just_goes_on(operator: Operator) -> None:
    operator.add_pulls()
    connect_client(operator)
    await reset(operator, timestamp="0")
    assert (await pull_at(operator, 0)).code == 0


async def test_a_held_pull_hears_of_the_reset_at_once(operator: Operator) -> None:
    operator.add_pulls()
    connect_client(operator)
    held = pull_request(5, 77, sysFlag="6", suspendTimeoutMillis="15000")
    operator.parts.router.dispatch([(operator.connection.as_connection, [held], held.code)])
    assert operator.connection.take_answers() == []
    request = RemotingCommand(RESET, opaque=5, ext_fields={"topic": "t", "group": "g", "timestamp": "0"})
    operator.parts.router.dispatch([(operator.connection.as_connection, [request], request.code)])
    answers = await operator.answers(2)
    moved = next(each for each in answers if each.opaque == 77)
    assert (moved.code, moved.ext_fields["nextBeginOffset"]) == (21, "0")


async def test_what_a_consumer_had_before_a_reset_is_not_taken_till_it_comes_back(operator: Operator) -> None:
    operator.add_pulls()
    operator.add_offsets()
    connect_client(operator)
    await reset(operator, timestamp="0")
    assert await commit(operator, 5) == 0, "it has not heard of the reset"
    assert (await pull_at(operator, 5)).code == 21
    assert await commit(operator, 5) == 0, "it has heard of it and is still at work on what it had"
    await pull_at(operator, 0, sysFlag="5", commitOffset="5")
    assert operator.parts.consumers.commits.current("g", "t", 1) == 0
    assert await commit(operator, 3) == 3, "it has gone on from there"
    assert len(operator.parts.consumers.resets) == 1, "nobody has pulled queue 0"


async def test_no_commit_overtakes_a_reset_that_is_on_its_way(operator: Operator) -> None:
    operator.add_offsets()
    connect_client(operator)
    operator.log.auto_commit = False
    await begin_reset(operator, 6)
    assert await commit(operator, 5) == 0
    operator.log.fail(PutStatus.UNKNOWN_ERROR)
    (refused,) = await operator.answers(1)
    assert (refused.opaque, refused.code != 0) == (6, True)
    operator.log.set_writable(False)
    assert len(operator.parts.consumers.resets) == 0, "whether it is stored, the next leader knows"


async def test_a_consumer_that_left_during_a_reset_is_not_waited_for(operator: Operator) -> None:
    operator.add_offsets()
    client = connect_client(operator)
    operator.log.auto_commit = False
    await begin_reset(operator, 6)
    finish(operator.parts.clients.connection_closed(client.connection_id))
    operator.log.auto_commit = True
    operator.log.commit()
    (done,) = await operator.answers(1)
    assert (done.opaque, done.code) == (6, 0)
    assert len(operator.parts.consumers.resets) == 0
    assert await commit(operator, 3) == 3, "the next one to run is kept out by nothing"


async def test_the_next_leader_sends_there_who_had_not_heard(operator: Operator, tmp_path: Path) -> None:
    connect_client(operator)
    await reset(operator, timestamp="0")
    next_one = await next_leader(operator, tmp_path)
    next_one.add_pulls()
    next_one.add_offsets()
    assert await commit(next_one, 5) == 0, "it has not heard of the reset"
    moved = await pull_at(next_one, 5)
    assert (moved.code, moved.ext_fields["nextBeginOffset"]) == (21, "0")
    assert (await pull_at(next_one, 0)).code == 0
    assert await commit(next_one, 3) == 3


async def test_the_next_leader_leaves_alone_who_went_on_from_there(
    operator: Operator, tmp_path: Path
) -> None:
    operator.add_pulls()
    operator.add_offsets()
    connect_client(operator)
    await reset(operator, timestamp="0")
    await pull_at(operator, 5)
    await pull_at(operator, 0)
    assert await commit(operator, 3) == 3
    next_one = await next_leader(operator, tmp_path)
    next_one.add_pulls()
    assert (await pull_at(next_one, 4)).code == 0


async def test_a_reset_of_long_ago_is_met_in_the_log_and_sends_nobody(
    operator: Operator, tmp_path: Path
) -> None:
    connect_client(operator)
    await reset(operator, timestamp="0")
    next_one = await next_leader(operator, tmp_path, HEARD_OF_MS + 1)
    assert len(next_one.parts.consumers.resets) == 0


async def test_a_consumer_that_reads_from_a_follower_is_sent_there_too(operator: Operator) -> None:
    """And comes to the leader with that, which then takes its offsets again."""
    operator.add_pulls()
    operator.log.auto_commit = False
    puts = len(operator.log.put_calls)
    operator.parts.state.propose(CommitOffsets("g", "t", {0: 0, 1: 1}, is_reset=True))
    while len(operator.log.put_calls) == puts:
        await asyncio.sleep(0)
    operator.log.set_writable(False)
    operator.log.commit()
    moved = await pull_at(operator, 5)
    assert (moved.code, moved.ext_fields["nextBeginOffset"]) == (21, "1")
    assert moved.ext_fields["suggestWhichBrokerId"] == "0"
    assert (await pull_at(operator, 1)).code == 0


async def test_a_topic_that_is_created_anew_is_read_from_its_begin(
    operator: Operator, tmp_path: Path
) -> None:
    """Where the old one's end was there is nothing yet: what comes first would be passed over."""
    connect_client(operator)
    assert (await reset(operator))[1] == 5
    await operator.parts.state.propose(DeleteTopic("t"))
    await operator.parts.state.propose(PutTopic(TopicConfig("t", 2, 2)))
    for node in (operator, await next_leader(operator, tmp_path)):
        node.add_pulls()
        assert (await pull_at(node, 0)).remark != "OFFSET_RESET"


@pytest.mark.parametrize(
    ("change", "left"),
    [(DropOffsets("g", "t"), 0), (DeleteGroup("g", True), 0), (DeleteGroup("g", False), 2)],
)
async def test_a_reset_goes_with_its_offsets(operator: Operator, change: Change, left: int) -> None:
    connect_client(operator)
    await reset(operator)
    await operator.parts.state.propose(change)
    assert len(operator.parts.consumers.resets) == left


async def test_a_reset_of_which_it_is_not_known_whether_it_is_stored_keeps_its_marks(
    operator: Operator,
) -> None:
    """Until it is applied, or this node leads no more."""
    operator.add_pulls()
    operator.add_offsets()
    connect_client(operator)
    operator.log.auto_commit = False
    await begin_reset(operator, 6)
    operator.log.time_out()
    (refused,) = await operator.answers(1)
    assert refused.code != 0
    assert await commit(operator, 5) == 2, "it would be stored behind the reset"
    operator.log.auto_commit = True
    operator.log.commit()
    assert (await pull_at(operator, 5)).code == 21


@pytest.mark.parametrize("status", [PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.OS_PAGE_CACHE_BUSY])
async def test_a_reset_that_is_not_in_the_log_keeps_nobody_out(operator: Operator, status: PutStatus) -> None:
    connect_client(operator)
    operator.log.next_status = status
    refused = await operator.ask(RESET, topic="t", group="g", timestamp="0")
    assert refused.code != 0
    assert len(operator.parts.consumers.resets) == 0


async def test_offsets_are_cloned(operator: Operator) -> None:
    cloned = {"srcGroup": "g", "destGroup": "h", "topic": "t", "offline": "true"}
    assert (await operator.ask(RequestCode.CLONE_GROUP_OFFSET, **cloned)).code == 0
    assert offsets(operator, "h") == {0: 0, 1: 2}
    everything = {"srcGroup": "g", "destGroup": "k"}
    assert (await operator.ask(RequestCode.CLONE_GROUP_OFFSET, **everything)).code == 0
    assert offsets(operator, "k") == {0: 0, 1: 2}
    operator.parts.consumers.commits.note("g", "t", 1, 4)
    assert (await operator.ask(RequestCode.CLONE_GROUP_OFFSET, **cloned)).code == 0
    assert offsets(operator, "h") == {0: 0, 1: 4}, "what came with a pull a moment ago counts"
    nothing = {"srcGroup": "absent", "destGroup": "h", "topic": "t"}
    assert (await operator.ask(RequestCode.CLONE_GROUP_OFFSET, **nothing)).code == 0
    bad = {"srcGroup": "g", "destGroup": "no group!", "topic": "t"}
    assert (await operator.ask(RequestCode.CLONE_GROUP_OFFSET, **bad)).code == 29


async def test_a_clone_makes_its_group_or_is_refused(operator: Operator) -> None:
    """The offsets of a group that does not exist go with the first old messages."""
    cloned = {"srcGroup": "g", "destGroup": "h", "topic": "t"}
    assert (await operator.ask(RequestCode.CLONE_GROUP_OFFSET, **cloned)).code == 0
    assert "h" in operator.parts.state.groups
    operator.parts.config.__dict__["auto_create_subscription_group"] = False
    refused = await operator.ask(RequestCode.CLONE_GROUP_OFFSET, **{**cloned, "destGroup": "k"})
    assert (refused.code, offsets(operator, "k")) == (26, {})
    assert (await operator.ask(RequestCode.CLONE_GROUP_OFFSET, **cloned)).code == 0


async def test_a_reset_by_time_goes_to_what_the_leader_finds_when_it_does_it(operator: Operator) -> None:
    """Messages at times 10 and 20 s, two each, in queue 1; queue 0 has none."""
    began_ms = operator.log.now_ms
    queue = operator.log.fake_queues.by_key["t", 1]
    queue.drop_before(5)
    for second in (10, 20):
        operator.log.now_ms = began_ms + second * 1_000
        await operator.store("t", 1, 2)

    async def reset_to(after_ms: int) -> dict[int, int]:
        return await reset(operator, timestamp=str(began_ms + after_ms))

    assert await reset_to(0) == {0: 0, 1: 5}, "before the first message: the first"
    assert await reset_to(10_000) == {0: 0, 1: 5}, "the first of those stored then"
    assert await reset_to(10_001) == {0: 0, 1: 7}, "between: the next one"
    assert await reset_to(20_001) == {0: 0, 1: 9}, "after the last: behind it"
    operator.log.now_ms = began_ms + 30_000
    await operator.store("t", 1, 1)
    assert await reset_to(20_001) == {0: 0, 1: 9}, "what came since is consumed"
    assert await reset_to(40_000) == {0: 0, 1: 10}, "a time to come: what comes till then is consumed, too"
    await operator.store("t", 1, 1)
    assert offsets(operator) == {0: 0, 1: 10}
    queue.drop_before(11)
    assert await reset_to(40_000) == {0: 0, 1: 11}, "no message is left: behind all there were"


async def test_all_offsets_are_shown_as_rocketmqs_files_hold_them(operator: Operator) -> None:
    shown = await operator.read(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert shown == {"offsetTable": {"t@g": {"0": 0, "1": 2}}}
    assert await operator.read(RequestCode.GET_ALL_DELAY_OFFSET) == {"offsetTable": {}}


async def test_time_spans_tell_how_far_behind_a_group_is(operator: Operator) -> None:
    read = await operator.read(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="t", group="g")
    empty, busy = read["consumeTimeSpanSet"]
    now_ms = operator.log.now_ms
    assert (busy["minTimeStamp"], busy["maxTimeStamp"], busy["consumeTimeStamp"]) == (now_ms,) * 3
    assert busy["messageQueue"]["queueId"] == 1
    assert (empty["minTimeStamp"], empty["delayTime"]) == (0, 0)
    assert (await operator.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="x", group="g")).code == 17


async def test_corrections_are_the_lowest_offsets_of_all_groups(operator: Operator) -> None:
    await operator.parts.state.propose(
        CommitOffsets("h", "t", {0: 3, 1: 1}),
        CommitOffsets("k", "t", {1: 0}),
        CommitOffsets("g", "u", {1: 9}),
    )
    asked = {"topic": "t", "compareGroup": "g", "filterGroups": "k"}
    read = await operator.read(RequestCode.QUERY_CORRECTION_OFFSET, **asked)
    assert read == {"correctionOffsets": {"0": 0, "1": 1}}
    asked = {"topic": "t", "compareGroup": "k", "filterGroups": "k"}
    read = await operator.read(RequestCode.QUERY_CORRECTION_OFFSET, **asked)
    assert read["correctionOffsets"]["1"] == 2**63 - 1
