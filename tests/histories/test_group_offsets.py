"""Made-up bad histories of consumer offsets, and near misses."""

from __future__ import annotations

from tests.histories.operations import Outcome
from tests.histories.story import Story
from tests.histories.words import Word


def test_fetch_of_what_was_committed() -> None:
    Story().commit(5).fetch(5).check().assert_clean()


def test_fetch_below_an_acknowledged_commit_is_stale() -> None:
    report = Story().commit(5).commit(7).fetch(5).check()
    assert set(report.counts) == {Word.STALE_OFFSET}
    assert report.faults[0].operations == (1, 2)


def test_fetch_of_nothing_after_an_acknowledged_commit_is_stale() -> None:
    assert Story().commit(5).fetch(None).words() == {Word.STALE_OFFSET}
    assert Story().commit(5).fetch(0).words() == {Word.STALE_OFFSET}


def test_group_without_an_offset_begins_at_0() -> None:
    Story().fetch(None).fetch(0).check().assert_clean()


def test_fetch_during_a_commit_may_give_either() -> None:
    story = Story().commit(5).commit(7, time=(10, 20))
    story.fetch(5, process="d", time=(11, 12)).fetch(7, process="e", time=(11, 12)).check().assert_clean()


def test_fetch_that_began_before_the_acknowledgement_may_give_the_older_one() -> None:
    story = Story().commit(5).commit(7, time=(10, 20)).fetch(5, process="d", time=(20, 30))
    story.check().assert_clean()
    assert Story().commit(5).commit(7, time=(10, 20)).fetch(5, time=(21, 30)).words() == {Word.STALE_OFFSET}


def test_commit_without_an_answer_may_take_effect_at_any_time() -> None:
    story = Story().commit(5).commit(7, outcome=Outcome.INFO).fetch(5).fetch(7)
    story.commit(9, process="d").fetch(9).fetch(7, process="d").check().assert_clean()


def test_commit_that_failed_never_takes_effect() -> None:
    story = Story().commit(5).commit(7, outcome=Outcome.FAIL)
    assert story.fetch(7).words() == {Word.UNKNOWN_OFFSET}


def test_fetch_of_what_nobody_committed_is_unknown() -> None:
    assert Story().commit(5).fetch(6).words() == {Word.UNKNOWN_OFFSET}
    assert Story().fetch(6).words() == {Word.UNKNOWN_OFFSET}


def test_fetch_of_a_commit_that_began_only_later_is_unknown() -> None:
    assert Story().fetch(6).commit(6).words() == {Word.UNKNOWN_OFFSET}


def test_offset_may_be_set_back_on_purpose() -> None:
    story = Story().commit(7).commit(3, process="operator").fetch(3)
    story.check().assert_clean()
    assert story.fetch(7).words() == {Word.STALE_OFFSET}


def test_commits_that_overlap_may_end_up_in_either_order() -> None:
    story = Story().commit(5, process="c", time=(1, 10)).commit(7, process="d", time=(2, 9))
    story.fetch(5, time=(11, 12)).fetch(7, time=(13, 14)).check().assert_clean()


def test_one_fetch_after_another_is_judged_alone() -> None:
    """A later commit of the same offset makes it current again."""
    Story().commit(5).commit(7).commit(5).fetch(5).check().assert_clean()
