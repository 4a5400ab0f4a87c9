"""Several groups under faults, one added and one removed; and that the world sees what it is there to see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from admin_api.cluster import draining
from broker.registration import Registration
from ledgermq.local.plan import GroupPlan
from ledgermq.messaging import Consumer
from tests.node_simulation.groups_world import GroupsWorld
from tests.node_simulation.options import (
    IN_BOUNDS,
    FaultOptions,
    GroupsOptions,
    Options,
    WorkloadOptions,
    draw_groups_options,
)
from tests.simulation.invariants import InvariantError

SEEDS = range(2)
DRAWN_SEEDS = range(100, 112)
GROUPS = Options(
    seed=1,
    safety_ms=15_000,
    config=IN_BOUNDS | {"register_period_ms": 1_000},
    faults=FaultOptions(name_server_ms=4_000, client_ms=8_000, down_max_ms=2_000),
    workload=WorkloadOptions(interval_ms=100, queues=2),
    groups=GroupsOptions(
        add_ms=1_000, drain_ms=4_000, host_crash_ms=4_000, host_pause_ms=8_000, host_cut_ms=8_000
    ),
)
STEADY = replace(
    GROUPS,
    safety_ms=8_000,
    faults=FaultOptions(),
    groups=GroupsOptions(add_ms=0, drain_ms=1_000, route_ms=1_000, quiet_ms=2_000, slow_interval_ms=1_000),
)
KINDS = {
    "group added",
    "group removed",
    "host killed",
    "host paused",
    "host cut off",
    "name server",
    "client",
}
KNOWN_SEEDS = (2014,)  # a consumer that was killed had read what no send names (of the simulator)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not so after a while counts as never."""
    monkeypatch.setattr("tests.node_simulation.cluster.LIVENESS_LIMIT_MS", 25_000)


@pytest.mark.parametrize("seed", KNOWN_SEEDS)
def test_seeds_that_once_broke_something(seed: int) -> None:
    GroupsWorld(draw_groups_options(seed)).run()


def test_groups_hosts_and_name_servers_come_and_go() -> None:
    faults: Counter[str] = Counter()
    for seed in SEEDS:
        faults.update(GroupsWorld(replace(GROUPS, seed=seed)).run().faults)
    assert faults.keys() >= KINDS


@pytest.mark.long
@pytest.mark.parametrize("seed", DRAWN_SEEDS)
def test_drawn_seeds_hold(seed: int) -> None:
    GroupsWorld(draw_groups_options(seed)).run()


def test_a_seed_is_one_run() -> None:
    first, second = (GroupsWorld(STEADY, is_tracing=True) for _ in range(2))
    assert first.run() == second.run()
    assert first.lines == second.lines


def test_drawn_worlds_have_one_or_several_of_everything() -> None:
    drawn = [draw_groups_options(seed) for seed in range(40)]
    assert drawn == [draw_groups_options(seed) for seed in range(40)]
    groups = [each.groups for each in drawn if each.groups is not None]
    assert {each.nodes for each in drawn} == {1, 3}
    assert {each.groups for each in groups} == {2, 3}
    assert {each.name_servers for each in groups} == {1, 2}
    assert {(each.add_ms > 0, each.drain_ms > 0) for each in groups} == {
        (is_added, is_drained) for is_added in (False, True) for is_drained in (False, True)
    }


def test_a_group_is_kept_for_a_consumer_that_was_away_since_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no offset there that would say so."""
    assert STEADY.groups is not None
    groups = replace(STEADY.groups, add_ms=5_000, drain_ms=7_000, retry_probability=0.0)
    workload = replace(STEADY.workload, consumers=2)
    world = GroupsWorld(replace(STEADY, safety_ms=20_000, workload=workload, groups=groups))
    monkeypatch.setattr(world.operator.rng, "choice", lambda names: names[-1])

    def leave() -> None:
        world.clients["c1"].stop_by_force(is_power_lost=False)
        world.workload.crashed("c1")

    world.clock.schedule(7_000_000, leave)
    assert world.run().faults["group removed"] == 1


def without(reason: str) -> object:
    """The rule whether a group is left, without the reasons that have these words."""
    rule = draining._reasons

    def reasons(*arguments: object, accepts: bool) -> Iterator[str]:
        return (each for each in rule(*arguments, accepts=accepts) if reason not in each)  # type: ignore[arg-type]

    return reasons


def test_a_group_that_goes_with_messages_for_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert STEADY.groups is not None
    groups = replace(STEADY.groups, delay_probability=0.9, slow_interval_ms=20_000)
    monkeypatch.setattr(draining, "_reasons", without("Messages wait in the broker"))
    with pytest.raises(InvariantError, match="is removed, and not consumed"):
        GroupsWorld(replace(STEADY, seed=36, groups=groups)).run()


def test_a_group_that_goes_while_it_is_consumed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "_reasons", lambda *_, **__: ())
    with pytest.raises(InvariantError, match="is removed, and not consumed"):
        GroupsWorld(STEADY).run()


def test_a_name_server_that_brokers_leave_out_is_found(monkeypatch: pytest.MonkeyPatch, soon: None) -> None:
    init = Registration.__init__

    def at_the_first(self: Registration, *arguments: object) -> None:
        init(self, *arguments)  # type: ignore[arg-type]
        del self._links[1:]

    monkeypatch.setattr(Registration, "__init__", at_the_first)
    with pytest.raises(InvariantError, match="each name server has the groups that are there"):
        GroupsWorld(STEADY).run()


def test_leaders_on_one_host_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupPlan, "preferred_leader", property(lambda self: self.nodes[0].id))
    with pytest.raises(InvariantError, match="leaders are not spread"):
        GroupsWorld(STEADY).run()


def test_a_consumer_that_does_not_look_for_new_groups_is_found(
    monkeypatch: pytest.MonkeyPatch, soon: None
) -> None:
    refresh = Consumer._refresh_route

    async def refresh_once(self: Consumer) -> bool:
        return bool(self._queues) or await refresh(self)

    assert STEADY.groups is not None
    groups = replace(STEADY.groups, add_ms=1_000, drain_ms=0)
    monkeypatch.setattr(Consumer, "_refresh_route", refresh_once)
    with pytest.raises(InvariantError, match="everything acknowledged is consumed"):
        GroupsWorld(replace(STEADY, groups=groups)).run()
