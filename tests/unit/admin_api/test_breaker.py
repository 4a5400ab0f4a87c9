"""When a silent broker is asked again."""

from admin_api.gateway import PAUSE_MAX_S, Breaker


def test_timed_out_pauses_and_heard_ends_it() -> None:
    breaker = Breaker()
    breaker.timed_out(asked_at_s=0.0, now_s=1.0)
    assert breaker.is_silent
    assert breaker.pause_left_s(1.5) == 0.5
    breaker.heard(1.6)
    assert not breaker.is_silent
    assert breaker.pause_left_s(1.6) == 0.0


def test_timed_out_again_doubles_the_pause_up_to_its_bound() -> None:
    breaker = Breaker()
    pauses = []
    now_s = 0.0
    for _ in range(6):
        asked_at_s, now_s = now_s, now_s + 1.0
        breaker.timed_out(asked_at_s, now_s)
        pauses.append(breaker.pause_left_s(now_s))
        now_s += pauses[-1]
    assert pauses == [1.0, 2.0, 4.0, 8.0, PAUSE_MAX_S, PAUSE_MAX_S]


def test_timed_out_several_that_waited_together_count_once() -> None:
    breaker = Breaker()
    breaker.timed_out(asked_at_s=0.0, now_s=1.0)
    breaker.timed_out(asked_at_s=0.5, now_s=1.5)
    assert breaker.pause_left_s(1.5) == 0.5


def test_timed_out_while_others_were_answered_says_nothing() -> None:
    breaker = Breaker()
    breaker.heard(0.5)
    breaker.timed_out(asked_at_s=0.0, now_s=1.0)
    assert not breaker.is_silent


def test_heard_begins_the_pauses_anew() -> None:
    breaker = Breaker()
    breaker.timed_out(0.0, 1.0)
    breaker.timed_out(2.0, 3.0)
    breaker.heard(6.0)
    breaker.timed_out(7.0, 8.0)
    assert breaker.pause_left_s(8.0) == 1.0
