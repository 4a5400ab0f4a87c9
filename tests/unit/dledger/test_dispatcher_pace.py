"""How much a peer gets that is far behind."""

from dledger.core.flow_control import TURN_BYTES_MAX, Progress
from tests.unit.dledger.dispatcher_bench import ENTRY_BYTES, Bench, ranges

CATCH_UP = {
    "catch_up_lag_bytes": 5 * ENTRY_BYTES,
    "catch_up_bytes_per_s_min": 1_000,
    "push_bytes_max": 2 * ENTRY_BYTES,
}


def test_peer_far_behind_gets_its_share_of_a_rate_when_a_quorum_does_without_it() -> None:
    bench = Bench(*[1] * 40, **CATCH_UP)
    bench.is_optional = True
    first = ranges(bench.match(0))
    assert not bench.dispatcher.keeps_up
    assert bench.dispatcher.status(None).is_throttled
    until_ms = bench.dispatcher.deadline_ms()
    assert len(first) < 10
    assert until_ms > bench.now_ms
    assert bench.pump() == []
    assert len(ranges(bench.pump(until_ms - bench.now_ms))) == 1


def test_peer_that_a_quorum_needs_gets_all_at_once() -> None:
    bench = Bench(*[1] * 40, **CATCH_UP)
    assert ranges(bench.match(0))[-1][1] == 39
    assert bench.dispatcher.keeps_up
    assert bench.dispatcher.status(None).is_throttled is False


def test_what_a_quorum_needed_is_not_waited_for_when_it_needs_the_peer_no_more() -> None:
    bench = Bench(*[1] * 40, **CATCH_UP)
    bench.is_optional = True
    bench.match(0)
    bench.is_optional = False
    assert ranges(bench.pump())[-1][1] == 39
    bench.is_optional = True
    bench.now_ms += 100
    bench.dispatcher.invalidate_match()
    assert len(ranges(bench.match(0))) > 0


def test_peer_that_is_nearly_there_gets_all_at_once() -> None:
    bench = Bench(*[1] * 40, **CATCH_UP)
    bench.is_optional = True
    assert ranges(bench.match(35))[-1][1] == 39
    assert bench.dispatcher.keeps_up


def test_little_is_under_way_to_a_peer_that_is_far_behind() -> None:
    bench = Bench(*[1] * 400, **CATCH_UP)
    bench.is_optional = True
    sent = ranges(bench.match(0))
    for _ in range(50):
        sent += ranges(bench.pump(10))
    last_index = sent[-1][1]
    assert last_index * ENTRY_BYTES < 300
    assert len(ranges(bench.answer_append("SUCCESS", 1, last_index))) > 0


def test_little_is_pushed_in_one_turn_and_the_next_comes_soon() -> None:
    """A turn that reads and sends much delays heartbeats and producers."""
    entries = 3 * TURN_BYTES_MAX // ENTRY_BYTES
    bench = Bench(*[1] * entries, catch_up_lag_bytes=5 * ENTRY_BYTES)
    assert not bench.is_optional
    pushed = ranges(bench.match(0))
    assert TURN_BYTES_MAX <= (pushed[-1][1] - pushed[0][0]) * ENTRY_BYTES < TURN_BYTES_MAX + (1 << 20)
    assert bench.dispatcher.deadline_ms() == bench.now_ms + 1
    while bench.dispatcher.deadline_ms() == bench.now_ms + 1:
        pushed += ranges(bench.pump(1))
    assert pushed[-1][1] == entries - 1
    assert bench.dispatcher.status(None).pushed_bytes == (entries - 1) * ENTRY_BYTES


def test_status_tells_how_fast_a_late_peer_gets_the_log_and_until_when() -> None:
    bench = Bench(*[1] * 4_000, **CATCH_UP)
    bench.is_optional = True
    bench.match(0)
    assert bench.dispatcher.status(None).bytes_per_s is None
    for second in range(1, 10):
        bench.answer_append("SUCCESS", 1, 100 * second)
        bench.pump(1_000)
    status = bench.dispatcher.status(None)
    assert status.held_bytes == 901 * ENTRY_BYTES
    assert status.lag_bytes == (4_000 - 901) * ENTRY_BYTES
    assert status.bytes_per_s == 100 * ENTRY_BYTES
    assert status.caught_up_in_ms == 30_990


def test_peer_that_falls_behind_faster_than_it_catches_up_has_no_end_in_sight() -> None:
    progress = Progress()
    progress.add(0, 100, 1_000)
    progress.add(1_000, 150, 1_010)
    assert (progress.bytes_per_s, progress.caught_up_in_ms) == (50, None)
    progress.clear()
    assert (progress.bytes_per_s, progress.caught_up_in_ms) == (None, None)
