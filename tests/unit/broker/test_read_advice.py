"""Where a consumer is sent that lags: to a follower that is close to the end, with slaveReadEnable only."""

from dataclasses import replace
from pathlib import Path

import pytest

from broker.consume.nearest import NearestReplica
from broker.consume.read_advice import LOOK_INTERVAL_MS, ReadAdvice
from broker.state.groups import SubscriptionGroupConfig
from commitlog.record import Message
from dledger.core.status import PeerStatus
from dledger.core.types import PushState
from tests.support.broker_parts import FakeEngine, make_parts
from tests.support.fake_log import FakeLog
from tests.unit.broker.consume_bench import (
    SUBSCRIPTION,
    ignore,
    make_bench,
    pull_request,
)

PEERS = "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3"
GROUP = SubscriptionGroupConfig("g", which_broker_when_consume_slowly=1)


def peer(node_id: str, lag_bytes: int | None, state: PushState = PushState.APPEND) -> PeerStatus:
    return PeerStatus(node_id, state, 1, 2, 0, lag_bytes, 5)


class Case:
    """A node of three with some messages; `memory_bytes` of them count as warm."""

    def __init__(
        self, tmp_path: Path, memory_bytes: int, *, is_enabled: bool = True, me: str = "n0", zone: str = ""
    ) -> None:
        self.now_ms = 0
        self.log = FakeLog()
        self.engine = FakeEngine(connected=frozenset({"n0", "n1", "n2"} - {me}))
        parts = make_parts(
            tmp_path,
            self.log,
            self.engine,
            dLegerPeers=PEERS,
            dLegerSelfId=me,
            slaveReadEnable=str(is_enabled).lower(),
            accessMessageInMemoryMaxRatio="50",
            zone=zone,
        )
        config = self.config = parts.config
        self.log.auto_commit = False
        result = self.log.put([Message("t", 0, bytes(1000)) for _ in range(10)], ignore)
        self.log.commit()
        self.first = self.log.read(result.positions[0], len(self.log.record_at(result.positions[0]) or b""))
        self.last = self.log.read(result.positions[-1], len(self.first))
        now_ms = lambda: self.now_ms  # noqa: E731
        parts.monotonic_ms = now_ms
        self.read_index = parts.core.read_index
        self.nearest = NearestReplica(config, self.log, self.read_index, now_ms)
        self.advice = ReadAdvice(config, self.log, self.engine, now_ms, memory_bytes, self.nearest)

    def followers(self, *peers: PeerStatus) -> None:
        self.engine.node_status = replace(self.engine.node_status, peers=peers)
        self.now_ms += LOOK_INTERVAL_MS


async def test_a_consumer_that_is_near_the_end_stays_with_the_leader(tmp_path: Path) -> None:
    case = Case(tmp_path, 10_000)
    case.followers(peer("n1", 0), peer("n2", 0))
    assert case.advice.after(case.last, GROUP) == "0"
    assert case.advice.after(case.first, GROUP) != "0"


async def test_it_is_off_by_default(tmp_path: Path) -> None:
    case = Case(tmp_path, 0, is_enabled=False)
    case.followers(peer("n1", 0), peer("n2", 0))
    assert case.advice.after(case.first, GROUP) == "0"


@pytest.mark.parametrize(
    ("named", "peers", "expected"),
    [
        (2, (peer("n1", 0), peer("n2", 0)), "2"),
        (3, (peer("n1", 0), peer("n2", 0)), "3"),
        (2, (peer("n1", 9_000), peer("n2", 0)), "3"),
        (2, (peer("n1", 0, PushState.COMPARE), peer("n2", 9_000)), "0"),
        (2, (peer("n1", None), peer("n2", None)), "0"),
    ],
)
async def test_the_follower_is_the_named_one_or_one_that_is_close(
    tmp_path: Path, named: int, peers: tuple[PeerStatus, ...], expected: str
) -> None:
    case = Case(tmp_path, 0)
    case.followers(*peers)
    group = SubscriptionGroupConfig("g", which_broker_when_consume_slowly=named)
    assert case.advice.after(case.first, group) == expected


async def test_a_follower_that_is_not_connected_is_not_suggested(tmp_path: Path) -> None:
    case = Case(tmp_path, 0)
    case.engine.connected = frozenset({"n2"})
    case.followers(peer("n1", 0), peer("n2", 0))
    assert case.advice.after(case.first, GROUP) == "3"


async def test_a_follower_keeps_the_consumer_while_it_lags_and_a_leader_is_heard(tmp_path: Path) -> None:
    case = Case(tmp_path, 10_000, me="n1")
    case.log.set_writable(False)
    assert case.advice.after(case.first, GROUP) == "2"
    assert case.advice.after(case.last, GROUP) == "0"
    case.engine.leader_id = None
    assert case.advice.after(case.first, GROUP) == "0"


async def test_a_group_may_be_at_home_elsewhere(tmp_path: Path) -> None:
    case = Case(tmp_path, 1 << 30)
    assert case.advice.after(case.first, SubscriptionGroupConfig("g", broker_id=2)) == "2"


async def test_a_pull_is_answered_with_the_advice(tmp_path: Path) -> None:
    bench = await make_bench(
        tmp_path, dLegerPeers=PEERS, slaveReadEnable="true", accessMessageInMemoryMaxRatio="0"
    )
    await bench.put(b"one", b"two")
    bench.engine.connected = frozenset({"n1", "n2"})
    bench.engine.node_status = replace(bench.engine.node_status, peers=(peer("n1", 0), peer("n2", 0)))
    found = await bench.ask(pull_request(0))
    assert found.ext_fields["suggestWhichBrokerId"] in {"2", "3"}
    end = await bench.ask(pull_request(2, flags=SUBSCRIPTION))
    assert end.ext_fields["suggestWhichBrokerId"] == "0"


async def test_a_broker_that_may_not_be_read_serves_no_pull(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path, brokerPermission="2")
    answer = await bench.ask(pull_request(0))
    assert (answer.code, answer.remark) == (16, "the broker[127.0.0.1] pulling message is forbidden")
