"""The marks of offset resets: whom they keep out, whom they send where, how many there are."""

from broker.offset_resets import SENT_MS, OffsetResets
from broker.state.changes import CommitOffsets, decode_changes, encode_change, join_changes


def test_a_consumer_that_never_comes_back_is_not_waited_for_forever() -> None:
    resets = OffsetResets()
    resets.mark("g", "t", {0: 1})
    assert resets.keeps_out("g", "t", 0, 9, now_ms=10**9), "it has not been told"
    assert not resets.keeps_out("g", "t", 0, 1, now_ms=0), "the new offset itself"
    assert resets.send("g", "t", 0, 9, now_ms=0) == 1
    assert resets.keeps_out("g", "t", 0, 9, now_ms=SENT_MS - 1)
    assert not resets.keeps_out("g", "t", 0, 9, now_ms=SENT_MS)
    assert len(resets) == 0


def test_a_reset_that_is_not_stored_leaves_no_mark() -> None:
    resets = OffsetResets()
    resets.begin("g", "t", {0: 1, 1: 1})
    assert resets.keeps_out("g", "t", 0, 9, now_ms=0)
    assert (resets.send("g", "t", 0, 9, now_ms=0), resets.take("g", "t", 0)) == (None, None)
    resets.abandon("g", "t", [0, 1])
    assert not resets.keeps_out("g", "t", 0, 9, now_ms=0)


def test_a_reset_that_is_not_stored_leaves_the_mark_of_the_one_before() -> None:
    resets = OffsetResets()
    resets.mark("g", "t", {0: 1})
    resets.begin("g", "t", {0: 5})
    resets.begin("g", "t", {0: 6})
    assert resets.keeps_out("g", "t", 0, 1, now_ms=0)
    resets.abandon("g", "t", [0])
    assert resets.keeps_out("g", "t", 0, 9, now_ms=0)
    assert resets.send("g", "t", 0, 9, now_ms=0) == 1


def test_who_leads_no_more_keeps_the_mark_before_the_reset_it_was_storing() -> None:
    resets = OffsetResets()
    resets.mark("g", "t", {0: 1})
    resets.begin("g", "t", {0: 5, 1: 5})
    resets.lose_leadership(until_ms=100)
    assert resets.send("g", "t", 0, 9, now_ms=0) == 1
    assert not resets.keeps_out("g", "t", 1, 9, now_ms=0)


def test_marks_of_consumers_that_were_sent_make_room() -> None:
    resets = OffsetResets(marks_max=1)
    resets.mark("g", "t", {0: 1})
    resets.mark("g", "t", {1: 1})
    assert resets.send("g", "t", 1, 9, now_ms=0) is None, "beyond the bound"
    assert resets.send("g", "t", 0, 9, now_ms=0) == 1
    resets.mark("g", "t", {1: 1})
    assert resets.send("g", "t", 1, 9, now_ms=0) == 1


def test_a_full_table_is_looked_through_once_for_all_queues_of_a_reset() -> None:
    looks: list[int] = []

    class Counted(OffsetResets):
        def _make_room(self) -> None:
            looks.append(len(self))
            super()._make_room()

    resets = Counted(marks_max=3)
    resets.mark("g", "t", {0: 1, 1: 1, 2: 1})
    assert looks == []
    assert resets.send("g", "t", 0, 9, now_ms=0) == 1
    resets.begin("h", "t", dict.fromkeys(range(50), 1))
    assert (looks, len(resets)) == ([3], 3)
    assert resets.keeps_out("h", "t", 0, 9, now_ms=0)
    assert not resets.keeps_out("h", "t", 1, 9, now_ms=0)


def test_what_another_leader_made_is_over_after_a_while() -> None:
    resets = OffsetResets()
    resets.mark("g", "t", {0: 1, 1: 1}, until_ms=100)
    assert resets.send("g", "t", 0, 9, now_ms=99) == 1
    assert resets.send("g", "t", 1, 9, now_ms=100) is None
    resets.mark("g", "t", {0: 1})
    resets.lose_leadership(until_ms=200)
    resets.take_leadership(now_ms=199)
    assert resets.keeps_out("g", "t", 0, 9, now_ms=199)
    resets.take_leadership(now_ms=200)
    assert len(resets) == 0


def test_marks_go_with_the_offsets() -> None:
    resets = OffsetResets()
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


def test_marks_are_bounded_and_taken_once() -> None:
    resets = OffsetResets(marks_max=2)
    woken: list[tuple[str, int]] = []
    resets.on_mark(lambda topic, queue_id: woken.append((topic, queue_id)))
    resets.mark("g", "t", {0: 1, 1: 2, 2: 3})
    assert woken == [("t", 0), ("t", 1), ("t", 2)]
    assert [resets.take("g", "t", queue_id) for queue_id in (0, 1, 2, 0)] == [1, 2, None, None]
