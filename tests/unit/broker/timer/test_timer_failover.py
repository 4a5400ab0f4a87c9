"""A new leader goes on where the old one stopped, wherever the log ends."""

import random
from collections import Counter
from pathlib import Path

from broker.timer.feature import timer_feature
from broker.timer.records import ALL_KEPT
from broker.timer.scheduling import TIMER_TOPIC
from commitlog.record import Message
from tests.support.broker_parts import NOW_MS, FakeEngine, make_parts
from tests.support.fake_log import FakeLog
from tests.support.timer_bench import SECOND, TimerBench, make_timer_bench
from tests.unit.broker.consume_bench import ignore


def log_of(messages: list[Message]) -> FakeLog:
    """A log that holds these and no more: another leader's, as a node has it that takes over."""
    log = FakeLog(is_writable=True)
    log.put(messages, ignore)
    log.commit()
    return log


async def taken_over(bench: TimerBench, messages: list[Message], folder: Path) -> TimerBench:
    return await bench.next_leader(log_of(messages), folder, timerPrecisionMs=100)


async def test_a_new_leader_delivers_what_the_old_one_did_not(tmp_path: Path) -> None:
    bench = await make_timer_bench(tmp_path)
    for seconds in (1, 2, 3):
        await bench.send(b"%d" % seconds, TIMER_DELAY_SEC=seconds)
    assert await bench.at(2 * SECOND) == [b"1", b"2"]
    new = await bench.next_leader()
    assert await new.at(3 * SECOND) == [b"3"]
    assert new.delivered == [b"1", b"2", b"3"]
    await new.stop()


async def test_any_prefix_of_the_log_delivers_each_message_once(tmp_path: Path) -> None:
    """Three leaders in a row, each of which finds the log of the one before cut off anywhere."""
    bench = await make_timer_bench(tmp_path / "n", timerPrecisionMs=100)
    bodies = [b"%d" % number for number in range(6)]
    for number, body in enumerate(bodies):
        await bench.send(body, TIMER_DELAY_MS=100 + 100 * (number // 3))
    sent = len(bench.log.messages)
    await bench.at(100)
    await bench.at(300)
    first = bench.log.messages
    assert len(first) == sent + 2 + len(bodies)
    folders = (tmp_path / f"n{number}" for number in range(10_000))
    for cut in range(sent, len(first) + 1):
        second = await taken_over(bench, first[:cut], next(folders))
        await second.at(400)
        assert Counter(second.delivered) == Counter(bodies), cut
        whole = second.log.messages
        for second_cut in range(cut, len(whole) + 1):
            third = await taken_over(second, whole[:second_cut], next(folders))
            await third.at(500)
            assert Counter(third.delivered) == Counter(bodies), (cut, second_cut)
            assert third.waiting == 0
            await third.stop()
        await second.stop()


async def test_an_index_on_the_disk_of_any_age_serves_a_new_leader(tmp_path: Path) -> None:
    """The node was a follower, and stopped and started at any time."""
    rng = random.Random(5)
    for number in range(6):
        folder = tmp_path / str(number)
        bench = await make_timer_bench(folder / "a", timerPrecisionMs=100)
        now = 0
        for step in range(30):
            await bench.send(b"%d" % step, TIMER_DELAY_MS=rng.randrange(100, 3_000))
            now += rng.randrange(0, 200)
            await bench.at(now)
            if rng.random() < 0.3:
                bench.journal.index.save()
        bench = await bench.next_leader(timerPrecisionMs=100)
        await bench.at(now + 10_000)
        assert sorted(map(int, bench.delivered)) == list(range(30))
        await bench.stop()


async def test_a_log_that_ends_within_the_last_put_is_seen_by_an_old_index_too(tmp_path: Path) -> None:
    bench = await make_timer_bench(tmp_path / "a")
    for body in (b"a", b"b", b"c"):
        await bench.send(body, TIMER_DELAY_SEC=1)
    await bench.at(SECOND)
    bench.journal.index.save()
    new = await bench.next_leader(log_of(bench.log.messages[:-2]))
    assert new.delivered == [b"a", b"b", b"c"]
    assert [each.kept for each in new.deliveries] == [ALL_KEPT, 1]
    newer = await new.next_leader(tmp_path=tmp_path / "b")
    await newer.at(9 * SECOND)
    assert newer.delivered == [b"a", b"b", b"c"]
    assert newer.waiting == 0
    await newer.stop()


async def test_an_index_of_another_log_is_built_anew(tmp_path: Path) -> None:
    bench = await make_timer_bench(tmp_path)
    for _ in range(5):
        await bench.send(TIMER_DELAY_SEC=9)
    await bench.stop()
    other = await make_timer_bench(tmp_path)
    assert other.waiting == 0
    await other.send(b"mine", TIMER_DELAY_SEC=1)
    assert await other.at(20 * SECOND) == [b"mine"]
    await other.stop()


async def test_an_index_that_is_damaged_is_built_anew(tmp_path: Path) -> None:
    bench = await make_timer_bench(tmp_path)
    for seconds in range(1, 9):
        await bench.send(b"%d" % seconds, TIMER_DELAY_SEC=seconds)
    await bench.at(3 * SECOND)
    for name in ("checkpoint", "run-"):
        bench.journal.index.save()
        await bench.stop()
        path = next((tmp_path / "timer").glob(f"{name}*"))
        path.write_bytes(path.read_bytes()[:-7])
        bench = await bench.next_leader()
        assert bench.waiting == 5
    assert await bench.at(20 * SECOND) == [b"4", b"5", b"6", b"7", b"8"]
    await bench.stop()


async def test_a_run_that_goes_bad_while_the_node_runs_is_built_anew(tmp_path: Path) -> None:
    bench = await make_timer_bench(tmp_path)
    for seconds in range(1, 9):
        await bench.send(b"%d" % seconds, TIMER_DELAY_SEC=seconds)
    bench.journal.index.save()
    (run,) = (tmp_path / "timer").glob("run-*")
    run.write_bytes(b"")
    await bench.at(8 * SECOND)
    assert await bench.at(9 * SECOND) == []
    assert sorted(bench.delivered) == [b"%d" % seconds for seconds in range(1, 9)]
    await bench.stop()


async def test_what_retention_took_is_taken_as_complete(tmp_path: Path) -> None:
    """A leader that cannot read the last deliveries must not have others deliver them again."""
    bench = await make_timer_bench(tmp_path / "a")
    for body in (b"a", b"b"):
        await bench.send(body, TIMER_DELAY_SEC=1)
    await bench.at(SECOND)
    await bench.send(b"c", TIMER_DELAY_SEC=9)
    log = bench.log.reopened()
    log.put_calls = list(bench.log.put_calls)
    log.fake_queues.by_key[TIMER_TOPIC, 0].drop_before(3)
    new = await bench.next_leader(log, tmp_path / "b")
    assert await new.at(10 * SECOND) == [b"c"]
    assert new.deliveries[-1].kept == ALL_KEPT
    whole = FakeLog()
    whole.put(bench.log.messages + new.log.messages[len(bench.log.messages) :], ignore)
    whole.commit()
    other = await new.next_leader(whole, tmp_path / "c")
    assert other.waiting == 0
    assert await other.at(20 * SECOND) == []
    await other.stop()


async def test_rows_of_another_record_are_not_believed(tmp_path: Path) -> None:
    """As if a queue had been made anew, of which the index does not know."""
    bench = await make_timer_bench(tmp_path)
    await bench.send(b"a", TIMER_DELAY_SEC=5)
    (row,) = bench.journal.index.due(NOW_MS + 10 * SECOND, 9)
    bench.journal.index._near = [row._replace(key=bytes(8), wake_ms=NOW_MS).pack()]
    assert await bench.at(2 * SECOND) == []
    assert bench.waiting == 1
    assert await bench.at(5 * SECOND) == [b"a"]
    await bench.stop()


async def test_a_node_that_missed_deliveries_with_the_begin_of_the_log_holds_nothing_for_them(
    tmp_path: Path,
) -> None:
    """It was away for longer than the log goes back; by itself it would hold the log for ever."""
    away = await make_timer_bench(tmp_path / "away")
    await away.send(b"1", TIMER_DELAY_SEC=1)
    await away.send(b"2", TIMER_DELAY_SEC=2)
    leader = await away.next_leader(None, tmp_path / "leader")
    assert await leader.at(3 * SECOND) == [b"1", b"2"]
    await leader.send(b"over", TIMER_DELAY_SEC=1)
    assert await leader.at(5 * SECOND) == [b"over"]
    await leader.send(b"waits", TIMER_DELAY_SEC=60)
    late = leader.log.reopened()
    queue = late.fake_queues.by_key[TIMER_TOPIC, 0]
    queue.drop_before(3)
    await leader.stop()
    late.set_writable(False)
    back = TimerBench(tmp_path / "away", late, make_parts(tmp_path / "away", late, FakeEngine()))
    await late.start()
    await back.start()
    assert back.waiting == 1
    assert back.journal.hold() == queue.rows[-1][0]
    await back.stop()


async def test_a_follower_has_the_timers_and_leaves_their_number_to_the_leader(tmp_path: Path) -> None:
    """A sum over the nodes would count them once for each."""
    log = FakeLog()
    parts = make_parts(tmp_path, log)
    feature, _ = timer_feature(parts.core)
    parts.add(feature)
    assert parts.features.waiting["timer"]() == 0
    log.set_writable(False)
    assert parts.features.waiting["timer"]() is None
