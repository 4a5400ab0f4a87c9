"""The marks of offset resets: whom they keep out, whom they send where, how many there are."""

import asyncio
from collections.abc import Mapping

import pytest

from broker.consume.offset_resets import SENT_MS, OffsetResets
from broker.state.changes import CommitOffsets, decode_changes, encode_change, join_changes
from commitlog.log import PutStatus

Answer = asyncio.Future[PutStatus]


def make_resets(marks_max: int = 1_000) -> OffsetResets:
    return OffsetResets(lambda: marks_max)


def begun(resets: OffsetResets, offsets: Mapping[int, int]) -> Answer:
    """A reset of group g in topic t that was proposed."""
    future: Answer = asyncio.get_running_loop().create_future()
    resets.begin("g", "t", offsets, future)
    return future


async def settle(future: Answer, status: PutStatus) -> None:
    future.set_result(status)
    await asyncio.sleep(0)


def test_a_consumer_that_never_comes_back_is_not_waited_for_forever() -> None:
    resets = make_resets()
    resets.mark("g", "t", {0: 1})
    assert resets.keeps_out("g", "t", 0, 9, now_ms=10**9), "it has not been told"
    assert not resets.keeps_out("g", "t", 0, 1, now_ms=0), "the new offset itself"
    assert resets.send("g", "t", 0, 9, now_ms=0) == 1
    assert resets.keeps_out("g", "t", 0, 9, now_ms=SENT_MS - 1)
    assert not resets.keeps_out("g", "t", 0, 9, now_ms=SENT_MS)
    assert len(resets) == 0


async def test_a_reset_that_is_not_stored_leaves_no_mark() -> None:
    resets = make_resets()
    future = begun(resets, {0: 1, 1: 1})
    assert resets.keeps_out("g", "t", 0, 9, now_ms=0)
    assert (resets.send("g", "t", 0, 9, now_ms=0), resets.take("g", "t", 0)) == (None, None)
    await settle(future, PutStatus.SERVICE_NOT_AVAILABLE)
    assert not resets.keeps_out("g", "t", 0, 9, now_ms=0)
    assert not resets


async def test_a_reset_that_is_not_stored_leaves_the_mark_of_the_one_before() -> None:
    resets = make_resets()
    resets.mark("g", "t", {0: 1})
    futures = [begun(resets, {0: offset}) for offset in (5, 6)]
    assert resets.keeps_out("g", "t", 0, 1, now_ms=0)
    for future in futures:
        await settle(future, PutStatus.OS_PAGE_CACHE_BUSY)
    assert resets.keeps_out("g", "t", 0, 9, now_ms=0)
    assert resets.send("g", "t", 0, 9, now_ms=0) == 1


async def test_who_leads_no_more_keeps_the_mark_before_the_reset_it_was_storing() -> None:
    resets = make_resets()
    resets.mark("g", "t", {0: 1})
    begun(resets, {0: 5, 1: 5})
    resets.become_follower(until_ms=100)
    assert resets.send("g", "t", 0, 9, now_ms=0) == 1
    assert not resets.keeps_out("g", "t", 1, 9, now_ms=0)


async def test_of_two_resets_on_their_way_the_last_counts_from_when_it_was_proposed() -> None:
    resets = make_resets()
    woken: list[tuple[str, int]] = []
    resets.on_mark(lambda topic, queue_id: woken.append((topic, queue_id)))
    first, second = begun(resets, {0: 1}), begun(resets, {0: 5})
    resets.mark("g", "t", {0: 1})
    await settle(first, PutStatus.PUT_OK)
    assert (woken, resets.send("g", "t", 0, 9, now_ms=0), resets.take("g", "t", 0)) == ([], None, None)
    assert [resets.keeps_out("g", "t", 0, offset, now_ms=0) for offset in (9, 1, 5)] == [True, True, False]
    resets.drop("g", "t", {0: 5})
    assert resets.keeps_out("g", "t", 0, 9, now_ms=0), "what is dropped is a reset that is stored"
    resets.mark("g", "t", {0: 5})
    assert woken == [("t", 0)]
    resets.drop("g", "t", {0: 1})
    await settle(second, PutStatus.PUT_OK)
    assert resets.send("g", "t", 0, 1, now_ms=0) == 5


async def test_two_resets_to_the_same_offset_are_two() -> None:
    resets = make_resets()
    begun(resets, {0: 5})
    begun(resets, {0: 5})
    resets.mark("g", "t", {0: 5})
    assert resets.send("g", "t", 0, 9, now_ms=0) is None, "the second is on its way"
    resets.mark("g", "t", {0: 5})
    assert resets.send("g", "t", 0, 9, now_ms=0) == 5


@pytest.mark.parametrize(
    "status",
    [PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.OS_PAGE_CACHE_BUSY, PutStatus.MESSAGE_ILLEGAL],
)
async def test_the_reset_before_one_that_came_to_nothing_is_heard_of(status: PutStatus) -> None:
    resets = make_resets()
    woken: list[int] = []
    resets.on_mark(lambda _, queue_id: woken.append(queue_id))
    begun(resets, {0: 1})
    refused = begun(resets, {0: 5})
    resets.mark("g", "t", {0: 1})
    assert woken == []
    await settle(refused, status)
    assert woken == [0], "pulls that are held were not told before"
    assert resets.send("g", "t", 0, 9, now_ms=0) == 1


async def test_a_reset_that_never_was_in_the_log_is_not_taken_for_the_next_one() -> None:
    """Its answer is known at once, and told a turn of the loop later."""
    resets = make_resets()
    refused = begun(resets, {0: 5})
    begun(resets, {0: 5})
    refused.set_result(PutStatus.SERVICE_NOT_AVAILABLE)
    resets.mark("g", "t", {0: 5})
    assert resets.send("g", "t", 0, 9, now_ms=0) == 5


async def test_an_old_answer_does_not_touch_what_was_begun_since() -> None:
    resets = make_resets()
    before = begun(resets, {0: 1})
    resets.become_follower(until_ms=100)
    begun(resets, {0: 5})
    await settle(before, PutStatus.SERVICE_NOT_AVAILABLE)
    assert resets.keeps_out("g", "t", 0, 9, now_ms=0)


async def test_a_reset_of_which_it_is_not_known_whether_it_is_stored_is_waited_for() -> None:
    resets = make_resets()
    await settle(begun(resets, {0: 1}), PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)
    await settle(begun(resets, {0: 5}), PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)
    assert resets.keeps_out("g", "t", 0, 1, now_ms=10**9)
    resets.mark("g", "t", {0: 1})
    assert resets.send("g", "t", 0, 9, now_ms=0) is None
    resets.mark("g", "t", {0: 5})
    assert resets.send("g", "t", 0, 9, now_ms=0) == 5


# -- how many there are ------------------------------------------------------------------------------------


def test_there_is_room_for_so_many_queues() -> None:
    resets = make_resets(3)
    resets.mark("g", "t", {0: 1, 1: 1})

    def has_room(group: str, *queue_ids: int, running: tuple[str, ...] = ("g", "h")) -> bool:
        return resets.has_room(group, "t", queue_ids, 0, lambda name: name in running)

    assert has_room("g", 0, 1, 2)
    assert has_room("h", 0)
    assert not has_room("h", 0, 1)
    assert len(resets) == 2, "a reset that is refused takes nobody's place"
    assert resets.send("g", "t", 0, 9, now_ms=0) == 1
    assert not has_room("h", 0, 1), "who was sent there still commits what it had"
    assert resets.has_room("h", "t", (0, 1), SENT_MS, lambda _: True)
    assert has_room("h", 0, 1, 2, running=("h",))
    assert len(resets) == 0, "nobody of g is left to hear of it"


async def test_what_is_on_its_way_takes_room() -> None:
    resets = make_resets(2)
    begun(resets, {0: 1, 1: 1})
    assert not resets.has_room("h", "t", (0,), 0, lambda _: False)
    assert resets.has_room("g", "t", (0, 1), 0, lambda _: False)


def test_a_follower_forgets_the_oldest_that_it_did_not_let_in(caplog: pytest.LogCaptureFixture) -> None:
    resets = make_resets(3)
    resets.mark("g", "t", {0: 1, 1: 1, 2: 1}, until_ms=100)
    resets.mark("g", "t", {0: 2, 3: 1}, until_ms=100)
    assert [resets.send("g", "t", queue_id, 9, now_ms=0) for queue_id in range(4)] == [2, None, 1, 1]
    assert "1 offset resets are dropped" in caplog.text


def test_what_another_leader_made_is_over_after_a_while() -> None:
    resets = make_resets()
    resets.mark("g", "t", {0: 1, 1: 1}, until_ms=100)
    assert resets.send("g", "t", 0, 9, now_ms=99) == 1
    assert resets.send("g", "t", 1, 9, now_ms=100) is None
    resets.mark("g", "t", {0: 1})
    resets.become_follower(until_ms=200)
    resets.become_leader(now_ms=199)
    assert resets.keeps_out("g", "t", 0, 9, now_ms=199)
    resets.become_leader(now_ms=200)
    assert len(resets) == 0


def test_marks_go_with_the_offsets() -> None:
    resets = make_resets()
    everything = [(group, topic) for group in ("g", "h") for topic in ("t", "u")]

    def left(group: str | None, topic: str | None) -> list[tuple[str, str]]:
        for each in everything:
            resets.mark(*each, {0: 1})
        resets.forget(group, topic)
        return [each for each in everything if resets.keeps_out(*each, 0, 9, now_ms=0)]

    assert left("g", None) == [("h", "t"), ("h", "u")]
    assert left(None, "t") == [("g", "u"), ("h", "u")]
    assert left("g", "t") == [("g", "u"), ("h", "t"), ("h", "u")]


def test_a_change_that_is_a_reset_says_so_and_others_are_as_they_were() -> None:
    plain, marked = CommitOffsets("g", "t", {0: 5}), CommitOffsets("g", "t", {0: 5}, is_reset=True)
    assert encode_change(plain) == b'["commitOffsets","g","t",[[0,5]]]'
    assert decode_changes(join_changes([encode_change(plain), encode_change(marked)])) == [plain, marked]


def test_marks_are_told_once_all_are_set_and_taken_once() -> None:
    resets = make_resets()
    woken: list[tuple[str, int]] = []
    resets.on_mark(lambda topic, queue_id: woken.append((topic, queue_id)))
    resets.mark("g", "t", {0: 1, 1: 2})
    assert woken == [("t", 0), ("t", 1)]
    assert [resets.take("g", "t", queue_id) for queue_id in (0, 1, 0)] == [1, 2, None]
