"""Which changes of the members are planned how, and which are refused."""

from dataclasses import replace
from typing import Any

import pytest

from broker.admin.member_plan import GroupNow, Plan, PlanRefusedError, plan_change
from broker.admin.types import MemberChange
from dledger.core.membership import Configuration, Member, MemberRole, voters_changed

NEW = {"id": "n3", "address": "10.0.0.3:10914"}
ADD = {"change": "add", **NEW}


def member(member_id: str, role: MemberRole = MemberRole.VOTER, replaces: str | None = None) -> Member:
    return Member(member_id, f"10.0.0.{member_id[1:]}", 10914, role, replaces)


def group(
    *voters: str, others: tuple[Member, ...] = (), down: tuple[str, ...] = (), level: int = 3
) -> GroupNow:
    """A group that n0 leads."""
    configuration = Configuration((*map(member, voters), *others), level)
    up = [each for each in configuration.ids if each not in down]
    return GroupNow(configuration, True, "n0", up, up)


THREE = group("n0", "n1", "n2")
ONE_DOWN = group("n0", "n1", "n2", down=("n2",))
TWO = group("n0", "n1")
ONE = group("n0")


def plan(now: GroupNow, **change: Any) -> Plan:
    return plan_change(now, MemberChange(**change))


def refusal(now: GroupNow, **change: Any) -> PlanRefusedError:
    with pytest.raises(PlanRefusedError) as caught:
        plan(now, **change)
    return caught.value


def roles(planned: Plan) -> dict[str, str]:
    return {each.id: each.role.value for each in planned.new.members}


def test_a_new_voter_joins_first_without_a_vote() -> None:
    planned = plan(THREE, **ADD)
    assert roles(planned) == {"n0": "voter", "n1": "voter", "n2": "voter", "n3": "joining"}
    added = planned.new.member("n3")
    assert added == Member("n3", "10.0.0.3", 10914, MemberRole.JOINING)
    assert planned.steps == (
        "n3 at 10.0.0.3:10914 gets the whole log, without a vote.",
        "When it has nearly the whole log, n3 votes by itself. 3 of 4 voters (n0, n1, n2 and n3) are a "
        "majority then.",
    )
    assert planned.warnings == (
        "n3 is not connected yet: start it; until then nothing else happens.",
        "A group of 4 voters survives no more failures than one of 3.",
    )


def test_a_learner_stays_without_a_vote() -> None:
    planned = plan(THREE, **ADD, role="learner")
    assert roles(planned)["n3"] == "learner"
    assert planned.new.voters == ("n0", "n1", "n2")
    assert planned.lost is None


def test_an_ipv6_address_is_taken_without_its_brackets() -> None:
    added = plan(THREE, **{**ADD, "address": "[2001:db8::7]:10914"}).new.member("n3")
    assert added is not None
    assert (added.host, added.port) == ("2001:db8::7", 10914)


def test_a_group_grows_from_one_by_one_voter_at_a_time() -> None:
    now = ONE
    for number in range(1, 5):
        planned = plan(now, change="add", id=f"n{number}", address=f"h:{number}")
        joined = tuple(replace(each, role=MemberRole.VOTER) for each in planned.new.members)
        now = replace(now, configuration=replace(planned.new, members=joined))
    assert now.configuration.voters == ("n0", "n1", "n2", "n3", "n4")


def test_a_group_of_two_is_warned_of() -> None:
    warning = "A group of two stops when one node stops: n0 and n1 are needed both."
    assert warning in plan(ONE, change="add", id="n1", address="h:1").warnings
    planned = plan(THREE, change="remove", id="n2")
    assert (planned.new.voters, planned.warnings) == (("n0", "n1"), (warning,))
    (alone,) = plan(TWO, change="remove", id="n1").warnings
    assert alone.startswith("n0 is alone then: its disk is the only copy")


def test_a_dead_member_is_removed() -> None:
    planned = plan(ONE_DOWN, change="remove", id="n2")
    assert (planned.new.voters, planned.lost) == (("n0", "n1"), None)


def test_the_leader_hands_over_when_it_is_removed() -> None:
    steps = plan(THREE, change="remove", id="n0").steps
    assert "n0 leads: it hands leadership over as soon as the change is committed." in steps
    assert not any("leads" in step for step in plan(THREE, change="remove", id="n1").steps)


@pytest.mark.parametrize("change", ["remove", "demote"])
def test_a_majority_that_would_be_lost_needs_force(change: str) -> None:
    error = refusal(ONE_DOWN, change=change, id="n1")
    assert error.is_forceable
    assert str(error).startswith(
        "It would cost the majority: of the 2 voters n0 and n2 only n0 keeps up, and 2 are needed. Nothing "
        "can be written"
    )
    forced = plan(ONE_DOWN, change=change, id="n1", force=True)
    assert forced.new.voters == ("n0", "n2")
    assert forced.lost is not None
    assert "until the log has reached n2." in forced.lost


def test_a_member_that_is_connected_and_far_behind_does_not_count() -> None:
    behind = replace(THREE, keeping_up=["n0", "n1"])
    assert refusal(behind, change="remove", id="n1").is_forceable
    assert plan(behind, change="remove", id="n2").lost is None


def test_a_learner_leaves_at_no_cost() -> None:
    now = group("n0", "n1", "n2", others=(member("n3", MemberRole.LEARNER),), down=("n2",))
    planned = plan(now, change="remove", id="n3")
    assert (planned.new.ids, planned.lost, planned.warnings) == (("n0", "n1", "n2"), None, ())


def test_a_voter_becomes_a_learner_and_a_learner_a_voter() -> None:
    demoted = plan(THREE, change="demote", id="n2")
    assert roles(demoted)["n2"] == "learner"
    now = replace(THREE, configuration=demoted.new)
    promoted = plan(now, change="promote", id="n2")
    assert roles(promoted)["n2"] == "joining"
    assert promoted.warnings == ()


def test_another_member_takes_the_place_of_a_dead_one() -> None:
    planned = plan(ONE_DOWN, change="replace", old="n2", **NEW)
    assert planned.new.member("n3") == member("n3", MemberRole.JOINING, "n2")
    assert planned.steps[-1].startswith("n2 is removed")
    assert (planned.lost, len(planned.steps)) == (None, 3)


def test_the_leader_that_is_replaced_hands_over() -> None:
    assert "n0 leads" in plan(THREE, change="replace", old="n0", **NEW).steps[2]


def test_a_replacement_that_would_cost_the_majority_needs_force() -> None:
    now = group("n0", "n1", "n2", "n4", "n5", down=("n2", "n4"))
    now = replace(now, keeping_up=["n0", "n1"])
    assert refusal(now, change="replace", old="n1", **NEW).is_forceable


def test_a_member_moves() -> None:
    planned = plan(THREE, change="move", id="n1", address="10.9.9.9:1")
    assert planned.new.member("n1") == Member("n1", "10.9.9.9", 1)
    assert (planned.new.voters, planned.warnings) == (("n0", "n1", "n2"), ())
    assert plan(THREE, change="move", id="n0", address="10.9.9.9:1").warnings == (
        "n0 leads: hand leadership over before it is stopped.",
    )


def test_a_member_that_moves_is_away_for_a_while() -> None:
    assert refusal(ONE_DOWN, change="move", id="n1", address="h:1").is_forceable
    assert refusal(TWO, change="move", id="n1", address="h:1").is_forceable
    assert plan(ONE_DOWN, change="move", id="n2", address="h:1").lost is None
    assert plan(ONE, change="move", id="n0", address="h:1").lost is None


def test_the_format_is_raised_once_all_are_there() -> None:
    old = group("n0", "n1", "n2", level=2)
    planned = plan(old, change="format_level", level=3)
    assert (planned.new.format_level, planned.new.members) == (3, old.configuration.members)
    assert "no way back" in planned.warnings[0]
    away = refusal(group("n0", "n1", "n2", level=2, down=("n1",)), change="format_level", level=3, force=True)
    assert str(away).startswith("n1 cannot be reached.")
    assert not away.is_forceable


LEARNER = group("n0", "n1", "n2", others=(member("n3", MemberRole.LEARNER),))
JOINING = group("n0", "n1", "n2", others=(member("n3", MemberRole.JOINING),))
LEAVING = group("n0", "n1", "n2", others=(member("n3", MemberRole.VOTER, "n2"),))
NINE = group(*(f"n{number}" for number in range(9)))
CROWD = group("n0", others=tuple(member(f"n{number}", MemberRole.LEARNER) for number in range(1, 32)))


@pytest.mark.parametrize(
    ("now", "change", "said"),
    [
        (THREE, {"change": "remove", "id": "n9"}, "There is no member n9; the members are n0, n1 and n2."),
        (THREE, {"change": "move", "id": "n9", "address": "h:1"}, "There is no member n9"),
        (THREE, {"change": "promote", "id": "n9"}, "There is no member n9"),
        (THREE, {"change": "demote", "id": "n9"}, "There is no member n9"),
        (THREE, {"change": "replace", "old": "n9", **NEW}, "There is no member n9"),
        (THREE, {**ADD, "id": "n1"}, "n1 is a voter of the group already."),
        (LEARNER, ADD, "n3 is a learner of the group already: `ledgermq member promote n3`"),
        (THREE, {"change": "replace", "old": "n1", **NEW, "id": "n2"}, "n2 is a voter of the group already."),
        (THREE, {**ADD, "id": "m1"}, "m1 would have the broker id 2 of n1"),
        (THREE, {**ADD, "address": "10.0.0.1:10914"}, "10.0.0.1:10914 is the address of n1."),
        (THREE, {"change": "move", "id": "n0", "address": "10.0.0.1:10914"}, "is the address of n1."),
        (THREE, {"change": "move", "id": "n0", "address": "10.0.0.0:10914"}, "n0 has the address"),
        (ONE, {"change": "remove", "id": "n0"}, "n0 is the only voter: add another one first."),
        (ONE, {"change": "demote", "id": "n0"}, "n0 is the only voter"),
        (LEARNER, {"change": "demote", "id": "n3"}, "n3 has no vote: it is a learner."),
        (THREE, {"change": "promote", "id": "n1"}, "n1 votes already."),
        (LEARNER, {"change": "replace", "old": "n3", "id": "n4", "address": "h:1"}, "n3 has no vote"),
        (JOINING, {**ADD, "id": "n4", "address": "h:1"}, "not finished: n3 has not got the whole log yet."),
        (JOINING, {"change": "remove", "id": "n1"}, "or give it up: `ledgermq member remove n3`"),
        (LEAVING, {"change": "remove", "id": "n3"}, "n3 votes and n2 is being removed"),
        (LEAVING, ADD, "n3 votes and n2 is being removed"),
        (replace(THREE, is_committed=False), ADD, "The change before this one is not committed yet"),
        (
            replace(group("n0", level=2), is_committed=False),
            {"change": "format_level", "level": 3},
            "The change before this one",
        ),
        (group("n0", level=2), ADD, "of level 2, in which the members are those of dLegerPeers for good"),
        (group("n0", level=2), ADD, "`ledgermq upgrade-finish` raises it"),
        (THREE, {"change": "format_level", "level": 3}, "of level 3 already; there is no way back."),
        (THREE, {"change": "format_level", "level": 2}, "of level 3 already"),
        (THREE, {"change": "format_level", "level": 4}, "This release knows formats up to level 3, not 4."),
        (NINE, {**ADD, "id": "n9", "address": "h:1"}, "The group has 9 voters, more are not possible"),
        (NINE, {"change": "replace", "old": "n1", "id": "n9", "address": "h:1"}, "The group has 9 voters"),
        (CROWD, {**ADD, "id": "n32", "address": "h:1"}, "The group has 32 members, more are not possible."),
    ],
)
def test_what_makes_no_sense_is_refused(now: GroupNow, change: dict[str, Any], said: str) -> None:
    for force in (False, True):
        error = refusal(now, **change, force=force)
        assert said in str(error)
        assert not error.is_forceable, "force is for the majority only"


def test_a_joining_member_can_be_given_up() -> None:
    assert plan(JOINING, change="remove", id="n3").new.ids == ("n0", "n1", "n2")


@pytest.mark.parametrize("now", [ONE, TWO, THREE, ONE_DOWN, LEARNER, NINE, group("n0", "n1", "n2", "n4")])
@pytest.mark.parametrize(
    "change",
    [
        *(
            {"change": what, "id": each}
            for what in ("remove", "promote", "demote")
            for each in ("n0", "n1", "n3")
        ),
        {"change": "add", "id": "n30", "address": "h:1"},
        {"change": "replace", "old": "n0", "id": "n30", "address": "h:1"},
    ],
)
def test_no_change_is_of_more_than_one_voter(now: GroupNow, change: dict[str, Any]) -> None:
    try:
        planned = plan(now, **change, force=True)
    except PlanRefusedError:
        return
    assert len(voters_changed(now.configuration, planned.new)) <= 1
