"""What a node says to a pull that does not lead, or shows less than it committed: never "out of range"."""

from pathlib import Path

import pytest

from tests.unit.broker.consume_bench import (
    SUBSCRIPTION,
    ConsumeBench,
    eventually_answered,
    expire_all,
    header_offsets,
    make_bench,
    pull_request,
    records,
)


@pytest.fixture
async def bench(tmp_path: Path) -> ConsumeBench:
    return await make_bench(tmp_path)


async def test_a_lagging_follower_holds_a_pull_beyond_its_end_until_it_has_the_message(
    bench: ConsumeBench,
) -> None:
    await bench.put(b"one")
    bench.follow()
    bench.start(pull_request(2))
    await bench.replicate(b"two")
    assert bench.connection.answers == []
    await bench.replicate(b"three")
    (answer,) = bench.connection.take_answers()
    assert [each.body for each in records(answer.body)] == [b"three"]
    assert header_offsets(answer) == (3, 0, 3)


async def test_a_follower_never_answers_21(bench: ConsumeBench) -> None:
    await bench.put(b"one", b"two")
    bench.log.fake_queues.by_key["t", 0].drop_before(1)
    bench.follow()
    beyond = await bench.ask(pull_request(9, flags=SUBSCRIPTION))
    assert (beyond.code, header_offsets(beyond)[0]) == (19, 9)
    no_queue = await bench.ask(pull_request(7, queue_id=3, flags=SUBSCRIPTION))
    assert (no_queue.code, header_offsets(no_queue)[0]) == (19, 7)
    below = await bench.ask(pull_request(0, flags=SUBSCRIPTION))
    assert (below.code, header_offsets(below)[0]) == (20, 0)


async def test_a_leader_whose_own_disk_is_late_sends_nobody_back(bench: ConsumeBench) -> None:
    """A consumer came from a follower that has shown what this leader has committed, and not yet written."""
    await bench.put(b"one")
    bench.engine.are_reads_held = True
    bench.start(pull_request(2, flags=SUBSCRIPTION))
    await bench.settle()
    bench.engine.end_reads(bench.log.applied_index + 1)
    await bench.settle()
    assert bench.connection.answers == []
    await bench.put(b"two")
    answer = await eventually_answered(bench)
    assert (answer.code, header_offsets(answer)[0]) == (19, 2)


async def test_a_follower_keeps_the_asked_offset_when_the_time_of_a_held_pull_is_up(
    bench: ConsumeBench,
) -> None:
    bench.follow()
    bench.start(pull_request(9))
    await bench.settle()
    expire_all(bench)
    (answer,) = bench.connection.take_answers()
    assert (answer.code, header_offsets(answer)[0]) == (19, 9)


async def test_a_follower_keeps_a_pull_below_its_first_message_for_a_moment(bench: ConsumeBench) -> None:
    await bench.put(b"one", b"two")
    bench.log.fake_queues.by_key["t", 0].drop_before(1)
    bench.follow()
    bench.start(pull_request(0))
    await bench.settle()
    assert bench.connection.answers == []
    expire_all(bench)
    (answer,) = bench.connection.take_answers()
    assert (answer.code, header_offsets(answer)[0]) == (20, 0)


async def test_a_follower_serves_what_it_has_applied(bench: ConsumeBench) -> None:
    await bench.put(b"one")
    bench.follow()
    answer = await bench.ask(pull_request(0))
    assert answer.code == 0
    assert header_offsets(answer) == (1, 0, 1)


async def test_a_new_leader_settles_the_pulls_beyond_its_end_and_keeps_those_at_it(
    bench: ConsumeBench,
) -> None:
    await bench.put(b"one")
    bench.follow()
    bench.start(pull_request(9, opaque=9))
    bench.start(pull_request(1, opaque=1))
    await bench.settle()
    bench.lead()
    await bench.settle()
    (answer,) = bench.connection.take_answers()
    assert (answer.opaque, answer.code, header_offsets(answer)[0]) == (9, 21, 1)
    await bench.put(b"two")
    (woken,) = bench.connection.take_answers()
    assert (woken.opaque, woken.code) == (1, 0)


async def test_a_follower_serves_a_group_it_cannot_create(bench: ConsumeBench) -> None:
    await bench.put(b"one")
    bench.follow()
    assert (await bench.ask(pull_request(0, group="new"))).code == 0
    assert "new" not in bench.parts.state.groups
