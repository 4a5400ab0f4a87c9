"""Consumers in the zone of a follower pull from it, and do not go to and fro."""

import asyncio
from pathlib import Path

import pytest

from broker.consume.nearest import REPORT_VALID_MS, REPORTS_MAX, SENT_MAX, SERVED_AGE_MS, STAY_MS
from broker.consume.read_advice import LOOK_INTERVAL_MS, NEAR_LAG_BYTES_MAX
from broker.state.groups import SubscriptionGroupConfig
from dledger.core.types import PushState
from remoting.codes import RequestCode
from tests.support.fake_connection import FakeConnection
from tests.unit.broker.consume_bench import SUBSCRIPTION, make_bench, pull_request, request
from tests.unit.broker.test_read_advice import GROUP, PEERS, Case, peer

QUEUE = (1, "t", 0)


async def report(case: Case, broker_id: int, zone: str) -> int:
    asked = request(RequestCode.LEDGERMQ_READ_INDEX, brokerId=str(broker_id), zone=zone)
    answer = await case.nearest.answer(asked, FakeConnection().as_connection)
    assert int(answer.ext_fields["index"]) == -1
    return answer.code


def leader(tmp_path: Path, *, is_enabled: bool = True) -> Case:
    case = Case(tmp_path, 1 << 30, zone="a", is_enabled=is_enabled)
    case.now_ms = 100_000
    case.followers(peer("n1", 0), peer("n2", 0))
    return case


async def test_a_leader_suggests_the_follower_in_the_consumers_zone(tmp_path: Path) -> None:
    case = leader(tmp_path)
    await report(case, 2, "b")
    await report(case, 3, "c")
    assert case.advice.near("b", GROUP, (1, "t", 0)) == "2"
    assert case.advice.near("c", GROUP, (1, "t", 1)) == "3"
    assert case.advice.near("a", GROUP, (1, "t", 2)) == "0"
    assert case.advice.near("d", GROUP, (1, "t", 3)) is None
    assert case.advice.near("", GROUP, (1, "t", 4)) is None


async def test_a_consumer_that_comes_back_stays_for_a_while(tmp_path: Path) -> None:
    case = leader(tmp_path)
    await report(case, 2, "b")
    assert case.advice.near("b", GROUP, QUEUE) == "2"
    assert case.advice.near("b", GROUP, QUEUE) is None
    assert case.advice.near("b", GROUP, (2, "t", 0)) == "2"
    case.now_ms += STAY_MS
    await report(case, 2, "b")
    assert case.advice.near("b", GROUP, QUEUE) == "2"


async def test_a_follower_that_is_silent_behind_or_gone_is_not_suggested(tmp_path: Path) -> None:
    case = leader(tmp_path)
    await report(case, 2, "b")
    case.now_ms += REPORT_VALID_MS + 1
    assert case.advice.near("b", GROUP, QUEUE) is None
    await report(case, 2, "b")
    for status in (peer("n1", NEAR_LAG_BYTES_MAX + 1), peer("n1", 0, PushState.COMPARE)):
        case.followers(status)
        assert case.advice.near("b", GROUP, QUEUE) is None
    case.followers(peer("n1", 0))
    case.engine.connected = frozenset({"n2"})
    case.now_ms += LOOK_INTERVAL_MS
    assert case.advice.near("b", GROUP, QUEUE) is None


async def test_a_group_with_a_node_of_its_own_is_left_there(tmp_path: Path) -> None:
    case = leader(tmp_path)
    await report(case, 2, "b")
    assert case.advice.near("b", SubscriptionGroupConfig("g", broker_id=3), QUEUE) is None


async def test_zones_have_no_effect_without_reads_from_followers(tmp_path: Path) -> None:
    case = leader(tmp_path, is_enabled=False)
    await report(case, 2, "b")
    assert case.advice.near("b", GROUP, QUEUE) is None


@pytest.mark.parametrize(("broker_id", "zone"), [(0, "b"), (-1, "b"), (2, ""), (2, "b" * 65)])
async def test_a_report_that_no_node_sends_is_not_kept(tmp_path: Path, broker_id: int, zone: str) -> None:
    case = leader(tmp_path)
    await report(case, broker_id, zone)
    assert case.nearest._reports == {}


async def test_a_follower_with_a_large_number_in_its_id_is_suggested(tmp_path: Path) -> None:
    """Replaced machines leave their numbers behind."""
    case = leader(tmp_path)
    case.engine.connected = frozenset({"n1", "n123"})
    case.followers(peer("n1", 0), peer("n123", 0))
    await report(case, 124, "b")
    assert case.advice.near("b", GROUP, QUEUE) == "124"


async def test_the_newest_reports_are_kept(tmp_path: Path) -> None:
    case = leader(tmp_path)
    for broker_id in [1, *range(1, REPORTS_MAX + 1), 1, 1000]:
        await report(case, broker_id, "b")
    assert len(case.nearest._reports) == REPORTS_MAX
    assert case.nearest.in_zone("b") >= {1, 1000}
    assert 2 not in case.nearest.in_zone("b")


async def test_the_queues_that_were_sent_away_are_bounded(tmp_path: Path) -> None:
    case = leader(tmp_path)
    for number in range(SENT_MAX + 5):
        assert case.nearest.may_send((number, "t", 0))
    assert len(case.nearest._sent) == SENT_MAX


async def test_a_follower_keeps_the_consumers_of_its_zone_while_it_knows_its_age(tmp_path: Path) -> None:
    case = Case(tmp_path, 1 << 30, me="n2", zone="b")
    case.log.set_writable(False)
    assert case.advice.near("b", GROUP, QUEUE) == "0"
    case.read_index._as_of = case.now_ms, 1 << 60
    case.now_ms += SERVED_AGE_MS
    assert case.advice.near("b", GROUP, QUEUE) == "3"
    assert case.advice.near("b", GROUP, QUEUE) == "3"
    assert case.advice.near("a", GROUP, QUEUE) is None
    case.engine.leader_id = None
    assert case.advice.near("b", GROUP, QUEUE) == "0"
    case.engine.leader_id = "n0"
    case.now_ms += 1
    assert case.advice.near("b", GROUP, QUEUE) == "0"


async def test_a_follower_tells_its_zone_with_its_question(tmp_path: Path) -> None:
    case = Case(tmp_path, 1 << 30, me="n2", zone="b")
    case.log.set_writable(False)
    asked: list[dict[str, str]] = []

    async def ask_leader(fields: dict[str, str]) -> None:
        asked.append(fields)

    case.read_index.ask_leader = ask_leader  # type: ignore[method-assign]
    await case.nearest.start()
    while not asked:
        await asyncio.sleep(0)
    await case.nearest.stop()
    assert asked == [{"brokerId": "3", "zone": "b"}]


async def test_every_answer_keeps_the_consumer_at_the_follower(tmp_path: Path) -> None:
    """Also one without a message: otherwise the consumer left with each quiet moment."""
    bench = await make_bench(tmp_path, dLegerPeers=PEERS, dLegerSelfId="n1", slaveReadEnable="true", zone="b")
    await bench.put(b"one")
    bench.follow("n2")
    bench.engine.connected = frozenset({"n0", "n2"})
    bench.parts.monotonic_ms = lambda: 50_000
    bench.parts.core.read_index._as_of = 49_000, bench.now_ms
    for offset, code in ((0, 0), (1, 19), (9, 19)):
        answer = await bench.ask(pull_request(offset, flags=SUBSCRIPTION, __ZONE_NAME="b"))
        assert (answer.code, answer.ext_fields["suggestWhichBrokerId"]) == (code, "2")
        answer = await bench.ask(pull_request(offset, flags=SUBSCRIPTION))
        assert (answer.code, answer.ext_fields["suggestWhichBrokerId"]) == (code, "0")
