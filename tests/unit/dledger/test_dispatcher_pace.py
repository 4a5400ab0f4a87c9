"""How much a peer gets that is far behind."""

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
