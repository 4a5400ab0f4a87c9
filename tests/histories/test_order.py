"""Made-up bad histories for each word about order, and near misses."""

from __future__ import annotations

from tests.histories.operations import Outcome, Poll, Queue
from tests.histories.story import QUEUE, Story
from tests.histories.words import Word

OTHER = Queue("T", 1)


def four() -> Story:
    return Story().send("a", 0).send("b", 1).send("c", 2).send("d", 3)


def test_poll_behind_values_the_consumer_did_not_get_is_a_skip() -> None:
    story = four().poll([(0, "a")], start=0, next_offset=1).poll([(2, "c"), (3, "d")], start=1)
    assert story.drain(["a", "b", "c", "d"]).words() == {Word.POLL_SKIP}


def test_consumer_sent_forward_over_values_is_a_skip() -> None:
    story = four().poll([(0, "a")], start=0, next_offset=1).poll([], start=1, next_offset=3)
    assert story.drain(["a", "b", "c", "d"]).words() == {Word.POLL_SKIP}


def test_consumer_sent_forward_by_retention_is_no_skip() -> None:
    story = four().poll([(0, "a")], start=0, next_offset=1).poll([], start=1, next_offset=3)
    story.drain(["d"], begin=3).check(may_expire=True).assert_clean()


def test_skip_within_a_poll() -> None:
    story = four().poll([(0, "a"), (3, "d")], start=0).drain(["a", "b", "c", "d"])
    assert story.words() == {Word.INT_POLL_SKIP}


def test_poll_of_what_the_consumer_had_is_nonmonotonic() -> None:
    story = four().poll([(0, "a"), (1, "b")], start=0, next_offset=2).poll([(1, "b")], start=2)
    assert story.drain(["a", "b", "c", "d"]).words() == {Word.NONMONOTONIC_POLL}


def test_listener_called_again_is_nonmonotonic() -> None:
    story = four().poll([(1, "b")]).poll([(0, "a")]).drain(["a", "b", "c", "d"])
    assert story.words() == {Word.NONMONOTONIC_POLL}


def test_consumer_sent_back_from_where_it_had_read_to_is_nonmonotonic() -> None:
    """A new leader that lost the end of the queue says: your offset is too large."""
    story = four().poll([(0, "a"), (1, "b")], start=0, next_offset=2).poll([], start=2, next_offset=1)
    assert Word.NONMONOTONIC_POLL in story.drain(["a", "b", "c", "d"]).words()


def test_consumer_sent_back_from_an_offset_it_was_only_told_is_fine() -> None:
    """An operator's reset may name an offset behind the end."""
    story = four().seek(100).poll([], start=100, next_offset=4).send("e", 4).poll([(4, "e")], start=4)
    story.drain(["a", "b", "c", "d", "e"]).check().assert_clean()


def test_order_within_a_poll() -> None:
    story = four().poll([(1, "b"), (0, "a")]).drain(["a", "b", "c", "d"])
    assert story.words() == {Word.INT_NONMONOTONIC_POLL}


def test_consumer_may_read_again_after_a_seek_an_assign_or_a_crash() -> None:
    story = four().poll([(0, "a"), (1, "b")]).seek(0).poll([(0, "a")], start=0, next_offset=1)
    story.assign(QUEUE).poll([(0, "a")]).crash().poll([(0, "a"), (1, "b")])
    story.drain(["a", "b", "c", "d"]).check().assert_clean()


def test_seek_in_one_queue_says_nothing_of_another() -> None:
    story = four().send("x", 0, queue=OTHER).poll([(0, "x")], queue=OTHER).seek(0)
    story.poll([(0, "x")], queue=OTHER).drain(["a", "b", "c", "d"]).drain(["x"], queue=OTHER)
    assert story.words() == {Word.NONMONOTONIC_POLL}


def test_consumer_may_begin_anywhere() -> None:
    four().poll([(2, "c")], start=2).drain(["a", "b", "c", "d"]).check().assert_clean()


def test_consumer_that_is_given_less_than_the_seek_is_nonmonotonic() -> None:
    story = four().seek(2).poll([(1, "b"), (2, "c")], start=2).drain(["a", "b", "c", "d"])
    assert story.words() == {Word.NONMONOTONIC_POLL}


def test_two_consumers_do_not_share_a_position() -> None:
    story = four().poll([(2, "c")], process="c").poll([(0, "a")], process="d")
    story.drain(["a", "b", "c", "d"]).check().assert_clean()


def test_concurrent_listener_promises_no_order() -> None:
    story = four()
    for offset, value in ((2, "c"), (0, "a"), (0, "a"), (3, "d")):
        story.poll([(offset, value)], is_ordered=False)
    story.drain(["a", "b", "c", "d"]).check().assert_clean()


def test_poll_without_an_answer_moves_nothing() -> None:
    story = four().poll([(0, "a")], start=0, next_offset=1)
    story.operations.append(Poll("c", 20, None, Outcome.INFO, QUEUE, 1))
    story.poll([(1, "b")], start=1).drain(["a", "b", "c", "d"]).check().assert_clean()


def test_message_before_one_acknowledged_earlier_is_nonmonotonic() -> None:
    assert Story().send("a", 1).send("b", 0).drain(["b", "a"]).words() == {Word.NONMONOTONIC_SEND}


def test_order_holds_between_processes() -> None:
    story = Story().send("a", 1, process="p").send("b", 0, process="q").drain(["b", "a"])
    assert story.words() == {Word.NONMONOTONIC_SEND}


def test_sends_that_overlap_have_no_order() -> None:
    story = Story().send("a", 1, process="p", time=(1, 5)).send("b", 0, process="q", time=(5, 9))
    story.drain(["b", "a"]).check().assert_clean()


def test_order_of_one_process_holds_though_the_clock_stands_still() -> None:
    story = Story().send("a", 1, time=(1, 5)).send("b", 0, time=(5, 9)).drain(["b", "a"])
    assert story.words() == {Word.NONMONOTONIC_SEND}


def test_unanswered_send_is_in_order_too_once_it_is_read() -> None:
    assert Story().send("a", 1).lost_send("b").drain(["b", "a"]).words() == {Word.NONMONOTONIC_SEND}


def test_unanswered_send_may_come_late() -> None:
    Story().lost_send("a").send("b", 0).drain(["b", "a"]).check().assert_clean()


def test_first_copy_of_a_send_may_be_older_than_its_acknowledged_one() -> None:
    story = Story().send("a", 2, tries=2, time=(1, 10)).send("b", 1, process="q", time=(3, 4))
    story.drain(["a", "b", "a"]).check().assert_clean()


def test_order_is_by_queue() -> None:
    story = Story().send("a", 1).send("b", 0, queue=OTHER).lost_send("x")
    story.drain(["x", "a"]).drain(["b"], queue=OTHER)
    assert story.words() == {Word.NONMONOTONIC_SEND}, "x was sent after a, and stands before it"
    story = Story().lost_send("x").send("a", 1).send("b", 0, queue=OTHER)
    story.drain(["x", "a"]).drain(["b"], queue=OTHER).check().assert_clean()


def test_batch_out_of_order() -> None:
    story = Story().batch(["a", "b"], [1, 0]).drain(["b", "a"])
    assert story.words() == {Word.INT_NONMONOTONIC_SEND}


def test_batch_with_another_message_in_it() -> None:
    story = Story().batch(["a", "b"], [0, 2]).send("x", 1, process="q", time=(1, 9)).drain(["a", "x", "b"])
    assert story.words() == {Word.INT_SEND_SKIP}


def test_batch_side_by_side() -> None:
    Story().batch(["a", "b", "c"], [0, 1, 2]).drain(["a", "b", "c"]).check().assert_clean()
