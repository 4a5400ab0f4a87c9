"""When a node says that it is ready, and why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from broker.monitoring.health import NodeHealth
from broker.read_index import ReadIndex
from tests.support.broker_parts import FakeEngine, make_parts
from tests.support.fake_log import FakeLog

BOUND_MS = 10_000


class KnownAge:
    """A read index whose age is known to the test."""

    def __init__(self, age_ms: int | None) -> None:
        self.age = age_ms
        self.wanted: list[int | None] = []

    async def age_ms(self, wanted_ms: int | None) -> int | None:
        self.wanted.append(wanted_ms)
        return self.age


def health(
    tmp_path: Path, engine: FakeEngine | None, age_ms: int | None = None, *, is_writable: bool = False
) -> NodeHealth:
    parts = make_parts(tmp_path, FakeLog(is_writable=is_writable), engine, readyLagMaxMs=BOUND_MS)
    core = parts.core
    return NodeHealth(core.config, core.engine, core.readiness, cast("ReadIndex", KnownAge(age_ms)))


def following(**values: object) -> FakeEngine:
    engine = FakeEngine(leader_id="n1", client_addresses={"n1": "10.0.0.1:10911"})
    for name, value in values.items():
        setattr(engine, name, value)
    return engine


async def test_the_writable_leader_is_ready_and_asks_no_other(tmp_path: Path) -> None:
    node = health(tmp_path, FakeEngine(leader_id="n0"), is_writable=True)
    assert (await node.ready()).is_good
    assert cast("KnownAge", node.read_index).wanted == []


@pytest.mark.parametrize(
    ("leader_id", "words"), [(None, "no leader is known now"), ("n0", "leads but is not ready yet")]
)
async def test_without_a_leader_that_takes_messages_no_node_is_ready(
    tmp_path: Path, leader_id: str | None, words: str
) -> None:
    verdict = await health(tmp_path, FakeEngine(leader_id=leader_id), 0).ready()
    assert not verdict.is_good
    assert words in verdict.sentence


@pytest.mark.parametrize(
    ("age_ms", "is_good", "words"),
    [
        (0, True, "acknowledged 0 ms ago; the leader is n1 at 10.0.0.1:10911"),
        (BOUND_MS, True, "acknowledged 10000 ms ago"),
        (BOUND_MS + 1, False, "more than 10000 (readyLagMaxMs)"),
        (None, False, "has shown nothing"),
    ],
)
async def test_a_follower_is_ready_while_its_lag_is_within_the_bound(
    tmp_path: Path, age_ms: int | None, is_good: bool, words: str
) -> None:
    node = health(tmp_path, following(), age_ms)
    verdict = await node.ready()
    assert (verdict.is_good, words in verdict.sentence) == (is_good, True), verdict
    assert cast("KnownAge", node.read_index).wanted == [BOUND_MS]


async def test_a_node_that_is_being_healed_is_not_ready(tmp_path: Path) -> None:
    status = replace(FakeEngine().node_status, impairment="it lost its vote")
    verdict = await health(tmp_path, following(node_status=status), 0).ready()
    assert not verdict.is_good
    assert "it lost its vote" in verdict.sentence


async def test_a_node_that_was_left_behind_is_not_ready(tmp_path: Path) -> None:
    verdict = await health(tmp_path, following(newer_generation=3), 0).ready()
    assert not verdict.is_good
    assert "generation 3" in verdict.sentence


@pytest.mark.parametrize("is_writable", [True, False])
async def test_a_plain_log_is_ready_when_it_is_writable(tmp_path: Path, is_writable: bool) -> None:
    verdict = await health(tmp_path, None, is_writable=is_writable).ready()
    assert verdict.is_good is is_writable


async def test_a_node_without_a_leader_is_live(tmp_path: Path) -> None:
    assert (await health(tmp_path, FakeEngine(leader_id=None)).live()).is_good
