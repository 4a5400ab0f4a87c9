"""Made-up bad histories, one and more for each word about what stands where, and near misses."""

from __future__ import annotations

import pytest

from tests.histories.files import HistoryError
from tests.histories.operations import Outcome, Queue, Send
from tests.histories.story import QUEUE, Story
from tests.histories.words import KEPT_MAX, Word

OTHER = Queue("T", 1)


def test_empty_history_is_clean() -> None:
    Story().check().assert_clean()


def test_whole_history_is_clean_and_counted() -> None:
    story = Story().send("a", 0).send("b", 1).poll([(0, "a"), (1, "b")], start=0, next_offset=2)
    report = story.drain(["a", "b"]).check()
    report.assert_clean()
    assert not report.counts
    assert report.operations["values acknowledged"] == report.operations["values read"] == 2


def test_acknowledged_value_below_a_read_one_is_lost() -> None:
    report = Story().send("a", 0).send("b", 1).poll([(1, "b")]).check()
    assert report.counts[Word.LOST_WRITE] == 1
    assert report.faults[0].operations == (0, 2)


def test_acknowledged_value_that_a_whole_reading_lacks_is_lost() -> None:
    assert Story().send("a", 0).send("b", 1).drain(["a"]).words() == {Word.LOST_WRITE}


def test_acknowledged_value_that_vanishes_after_it_was_read_is_lost() -> None:
    assert Story().send("a", 0).poll([(0, "a")]).drain([]).words() == {Word.LOST_WRITE}


def test_acknowledged_value_that_is_left_out_of_the_middle_is_lost() -> None:
    story = Story().send("a", 0).send("b", 1).send("c", 2).drain(["a", None, "c"])
    assert Word.LOST_WRITE in story.words()
    assert story.words() <= {Word.LOST_WRITE, Word.POLL_SKIP}


def test_value_acknowledged_without_a_place_must_be_somewhere() -> None:
    """The C++ client tells no queue."""
    story = Story().send("a", 0)
    story.operations.append(Send("p", 1, 2, Outcome.OK, ("b",), None, (), None))
    story.drain(["a"])
    assert story.words() == {Word.LOST_WRITE}


def test_value_acknowledged_without_a_place_that_is_there_is_not_lost() -> None:
    story = Story()
    story.operations.append(Send("p", 0, 1, Outcome.OK, ("a",), None, (), None))
    story.drain(["a"]).check().assert_clean()


def test_acknowledged_value_behind_all_that_was_read_is_unseen() -> None:
    report = Story().send("a", 0).send("b", 1).poll([(0, "a")]).check()
    assert set(report.counts) == {Word.UNSEEN}
    report.assert_clean()


def test_value_acknowledged_after_the_whole_reading_began_is_not_lost() -> None:
    story = Story().send("a", 0).drain(["a"]).send("b", 1)
    story.check().assert_clean()
    overlapping = Story().send("a", 0).drain(["a"])
    overlapping.send("b", 1, process="q", time=(2, 100)).check().assert_clean()


def test_values_that_retention_removed_are_not_lost() -> None:
    story = Story().send("a", 0).send("b", 1).send("c", 2).drain(["c"], begin=2)
    story.check(may_expire=True).assert_clean()
    assert story.words() == {Word.LOST_WRITE}


def test_send_without_an_answer_may_be_there_or_not() -> None:
    Story().send("a", 0).lost_send("b").drain(["a"]).check().assert_clean()
    Story().send("a", 0).lost_send("b").drain(["a", "b"]).check().assert_clean()


def test_value_of_one_try_at_two_offsets_is_a_duplicate() -> None:
    assert Story().send("a", 0).drain(["a", "a"]).words() == {Word.DUPLICATE}


def test_value_of_one_try_without_an_answer_at_two_offsets_is_a_duplicate() -> None:
    assert Story().lost_send("a").drain(["a", "a"]).words() == {Word.DUPLICATE}


def test_value_in_two_queues_is_a_duplicate() -> None:
    assert Story().send("a", 0).drain(["a"]).drain(["a"], queue=OTHER).words() == {Word.DUPLICATE}


def test_value_at_more_places_than_tries_is_a_duplicate() -> None:
    assert Story().send("a", 1, tries=2).drain(["a", "a", "a"]).words() == {Word.DUPLICATE}


@pytest.mark.parametrize("tries", [2, 3, None])
def test_value_at_as_many_places_as_tries_is_repeated(tries: int | None) -> None:
    story = Story().send("a", 1, tries=tries).drain(["a", "a"])
    assert set(story.check().counts) == {Word.REPEATED}
    assert story.words() == set()
    assert story.words(is_deduplicated=True) == {Word.REPEATED}


def test_value_acknowledged_at_one_offset_and_read_at_another_is_two_places() -> None:
    story = Story().send("a", 1).drain(["a"])
    assert story.words() == {Word.DUPLICATE, Word.LOST_WRITE}


def test_two_values_acknowledged_at_one_offset_are_inconsistent() -> None:
    story = Story().send("a", 0, process="p", time=(1, 9)).send("b", 0, process="q", time=(2, 8))
    assert Word.INCONSISTENT_OFFSETS in story.words()


def test_two_values_read_at_one_offset_are_inconsistent() -> None:
    story = Story().lost_send("a").lost_send("b").poll([(0, "a")]).poll([(0, "b")], process="d")
    assert story.words() == {Word.INCONSISTENT_OFFSETS}


def test_value_acknowledged_where_another_is_read_is_inconsistent() -> None:
    assert Word.INCONSISTENT_OFFSETS in Story().send("a", 0).lost_send("b").drain(["b"]).words()


def test_one_offset_of_two_queues_is_consistent() -> None:
    story = Story().send("a", 0).send("b", 0, queue=OTHER).drain(["a"]).drain(["b"], queue=OTHER)
    story.check().assert_clean()


def test_read_of_a_failed_send_is_aborted() -> None:
    story = Story().send("a", None, outcome=Outcome.FAIL).drain(["a"])
    assert story.words() == {Word.ABORTED_READ}


def test_failed_send_that_nobody_reads_is_fine() -> None:
    Story().send("a", None, outcome=Outcome.FAIL).send("b", 0).drain(["b"]).check().assert_clean()


def test_read_of_an_unanswered_send_that_is_gone_later_was_dirty() -> None:
    assert Story().lost_send("a").poll([(0, "a")]).drain([]).words() == {Word.DIRTY_READ}


def test_read_that_ended_while_the_queue_was_being_read_is_not_dirty() -> None:
    Story().lost_send("a").drain([]).poll([(0, "a")]).check().assert_clean()


def test_value_that_nobody_sent_is_unknown() -> None:
    assert Story().drain(["a"]).words() == {Word.UNKNOWN_VALUE}


def test_value_whose_send_ends_after_it_was_read_is_known() -> None:
    Story().poll([(0, "a")], time=(3, 4)).send("a", 0, time=(1, 6)).drain(["a"]).check().assert_clean()


def test_offset_without_a_value_is_a_gap() -> None:
    assert Story().send("a", 0).send("b", 2).drain(["a", None, "b"]).words() == {Word.GAP}


def test_queue_that_does_not_begin_at_0_has_a_gap_unless_values_expire() -> None:
    story = Story().send("a", 5).drain(["a"], begin=5)
    assert story.words() == {Word.GAP}
    story.check(may_expire=True).assert_clean()


def test_gap_shows_in_polls_too() -> None:
    story = Story().send("a", 0).send("b", 2).poll([(0, "a"), (2, "b")])
    assert story.words() == {Word.GAP}


def test_drain_counts_only_what_was_read_since_its_process_began_anew() -> None:
    story = Story().send("a", 0).send("b", 1).poll([(0, "a")], process="final").drain([None, "b"])
    assert Word.LOST_WRITE in story.words()


def test_findings_are_bounded_and_counts_are_not() -> None:
    story = Story()
    for number in range(3 * KEPT_MAX):
        story.send(str(number), number)
    report = story.drain([]).check()
    assert report.counts[Word.LOST_WRITE] == 3 * KEPT_MAX
    assert len(report.findings) == KEPT_MAX
    with pytest.raises(AssertionError, match=f"{3 * KEPT_MAX} lost-write"):
        report.assert_clean()


def test_two_sends_of_one_value_are_no_history() -> None:
    with pytest.raises(HistoryError, match="'a' is sent by #0 and #1"):
        Story().send("a", 0).send("a", 1).check()


def test_batch_with_too_few_offsets_is_no_history() -> None:
    with pytest.raises(HistoryError, match="for 2 values"):
        Story().batch(["a", "b"], [0]).check()


def test_report_names_the_queue_and_the_operations() -> None:
    text = str(Story().send("a", 0).drain([]).check())
    assert f"lost-write in {QUEUE}: 'a' at 0" in text
    assert "#0" in text
