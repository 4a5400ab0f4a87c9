"""What a change of the group's members comes to: the configuration of its first step, its steps and warnings
in sentences, or why it is refused. Pure.

A change is at most one voter at a time (thesis 4.1). A member is added without a vote and gets it when it has
nearly the whole log, so a member that never catches up costs the group nothing (thesis 4.2.1).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from broker.admin.types import ChangeKind, MemberChange, split_address
from broker.config import follower_broker_id
from dledger.core.membership import (
    CHANGING_MEMBERS_LEVEL,
    FORMAT_LEVEL,
    MEMBERS_MAX,
    VOTERS_MAX,
    Configuration,
    Member,
    MemberRole,
    voters_changed,
)

RAISE_COMMAND: Final = "ledgermq upgrade-finish"


@dataclass(frozen=True, slots=True)
class GroupNow:
    """The group as its leader sees it. keeping_up: members, the leader among them, that are connected and
    near the end of the log. connected: those that are connected, near or far.
    """

    configuration: Configuration
    is_committed: bool
    leader_id: str
    keeping_up: Collection[str]
    connected: Collection[str]


@dataclass(frozen=True, slots=True)
class Plan:
    """new: the configuration of the first step. lost: what the change may cost, where it is forced."""

    new: Configuration
    steps: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    lost: str | None = None


class PlanRefusedError(ValueError):
    """The change is not made; the text is a sentence. is_forceable: `force` makes it all the same."""

    def __init__(self, sentence: str, *, is_forceable: bool = False) -> None:
        super().__init__(sentence)
        self.is_forceable = is_forceable


def plan_change(now: GroupNow, change: MemberChange) -> Plan:
    """Raises PlanRefusedError."""
    _require_finished(now, change)
    plan = _PLANS[change.change](now, change)
    assert len(voters_changed(now.configuration, plan.new)) <= 1, (now, plan)
    if plan.lost is not None and not change.force:
        raise PlanRefusedError(f"It would cost the majority: {plan.lost}", is_forceable=True)
    return plan


def _require_finished(now: GroupNow, change: MemberChange) -> None:
    if not now.is_committed:
        raise PlanRefusedError(
            "The change before this one is not committed yet: a majority has not stored it. Try again."
        )
    if change.change is ChangeKind.FORMAT_LEVEL:
        return
    level = now.configuration.format_level
    if level < CHANGING_MEMBERS_LEVEL:
        raise PlanRefusedError(
            f"The group's format is of level {level}, in which the members are those of dLegerPeers for "
            f"good: `{RAISE_COMMAND}` raises it, once every node runs this release."
        )
    unfinished = next((each for each in now.configuration.members if _is_unfinished(each)), None)
    is_cancelled = (
        change.change is ChangeKind.REMOVE and unfinished is not None and change.id == unfinished.id
    )
    if unfinished is None or (is_cancelled and not unfinished.is_voter):
        return
    if unfinished.is_voter:
        raise PlanRefusedError(
            f"{unfinished.id} votes and {unfinished.replaces} is being removed: try again."
        )
    raise PlanRefusedError(
        f"An earlier change is not finished: {unfinished.id} has not got the whole log yet. Wait until it "
        f"votes, or give it up: `ledgermq member remove {unfinished.id}`."
    )


def _is_unfinished(member: Member) -> bool:
    return member.role is MemberRole.JOINING or member.replaces is not None


def _add(now: GroupNow, change: MemberChange) -> Plan:
    new = _new_member(now, change)
    if change.role == "learner":
        member = replace(new, role=MemberRole.LEARNER)
        step = f"{new.id} at {_address(new)} gets the log, without a vote, until it is promoted or removed."
        return Plan(now.configuration.with_member(member), (step,), _unreached(now, new))
    final = (*now.configuration.voters, new.id)
    _require_room(final)
    steps = (_joins(new), _votes(new.id, final))
    return Plan(now.configuration.with_member(new), steps, (*_unreached(now, new), *_size_warnings(final)))


def _remove(now: GroupNow, change: MemberChange) -> Plan:
    member = _known(now, change.id)
    new_voters = _voters_without(now, member)
    step = f"{member.id} gets nothing more from the group and does not vote; its files stay on its disk."
    return _with_fewer(now, member, now.configuration.without(member.id), step, new_voters)


def _demote(now: GroupNow, change: MemberChange) -> Plan:
    member = _known(now, change.id)
    if not member.is_voter:
        raise PlanRefusedError(f"{member.id} has no vote: it is {_words(member.role)}.")
    new_voters = _voters_without(now, member)
    learner = replace(member, role=MemberRole.LEARNER)
    step = f"{member.id} still gets the log, and does not vote."
    return _with_fewer(now, member, now.configuration.with_member(learner), step, new_voters)


def _with_fewer(
    now: GroupNow, member: Member, new: Configuration, step: str, new_voters: tuple[str, ...]
) -> Plan:
    """Where `member` has no vote afterwards."""
    if not member.is_voter:
        return Plan(new, (step,))
    steps = [step]
    if member.id == now.leader_id:
        steps.append(f"{member.id} leads: it hands leadership over as soon as the change is committed.")
    steps.append(_majority(new_voters))
    keeping_up = [each for each in new_voters if each in now.keeping_up]
    return Plan(new, tuple(steps), _size_warnings(new_voters), _loss(new_voters, keeping_up))


def _replace(now: GroupNow, change: MemberChange) -> Plan:
    old = _known(now, change.old)
    if not old.is_voter:
        raise PlanRefusedError(
            f"{old.id} has no vote, it is {_words(old.role)}: remove it and add the other one instead."
        )
    new = replace(_new_member(now, change), replaces=old.id)
    both = (*now.configuration.voters, new.id)
    _require_room(both)
    final = tuple(each for each in both if each != old.id)
    keeping_up = [each for each in final if each in now.keeping_up or each == new.id]
    steps = [_joins(new), _votes(new.id, both)]
    if old.id == now.leader_id:
        steps.append(f"{old.id} leads: it hands leadership over before it leaves.")
    steps.append(f"{old.id} is removed: it does not vote and gets nothing more; its files stay on its disk.")
    return Plan(
        now.configuration.with_member(new),
        tuple(steps),
        (*_unreached(now, new), *_size_warnings(final)),
        _loss(final, keeping_up),
    )


def _move(now: GroupNow, change: MemberChange) -> Plan:
    member = _known(now, change.id)
    host, port = _parsed(change)
    if (host, port) == (member.host, member.port):
        raise PlanRefusedError(f"{member.id} has the address {_address(member)} already.")
    moved = replace(member, host=host, port=port)
    _require_free(now, moved)
    steps = (
        f"All members reach {member.id} at {_address(moved)} from now on.",
        f"Start {member.id} there: with its folder, and with that address in its dLegerPeers.",
    )
    warnings: tuple[str, ...] = ()
    if member.id == now.leader_id:
        warnings = (f"{member.id} leads: hand leadership over before it is stopped.",)
    voters = now.configuration.voters
    keeping_up = [each for each in voters if each in now.keeping_up and each != member.id]
    lost = _loss(voters, keeping_up) if member.is_voter and len(voters) > 1 else None
    return Plan(now.configuration.with_member(moved), steps, warnings, lost)


def _promote(now: GroupNow, change: MemberChange) -> Plan:
    member = _known(now, change.id)
    if member.is_voter:
        raise PlanRefusedError(f"{member.id} votes already.")
    final = (*now.configuration.voters, member.id)
    _require_room(final)
    joining = replace(member, role=MemberRole.JOINING)
    warnings = (*_unreached(now, member), *_size_warnings(final))
    return Plan(now.configuration.with_member(joining), (_votes(member.id, final),), warnings)


def _format_level(now: GroupNow, change: MemberChange) -> Plan:
    level, old = change.level, now.configuration.format_level
    assert level is not None, "the request is checked"
    if level <= old:
        raise PlanRefusedError(f"The group's format is of level {old} already; there is no way back.")
    if level > FORMAT_LEVEL:
        raise PlanRefusedError(f"This release knows formats up to level {FORMAT_LEVEL}, not {level}.")
    away = [each for each in now.configuration.ids if each not in now.connected]
    if away:
        raise PlanRefusedError(
            f"{_listed(away)} cannot be reached. Every member must be up, and run a release that knows level "
            f"{level}: one of an older release could not read the log any more."
        )
    steps = (f"Log and messages of the group may use formats of level {level}: its members can be changed.",)
    warnings = ("There is no way back: nodes of releases that do not know this level stay out of the group.",)
    return Plan(replace(now.configuration, format_level=level), steps, warnings)


_PLANS: Final = {
    ChangeKind.ADD: _add,
    ChangeKind.REMOVE: _remove,
    ChangeKind.REPLACE: _replace,
    ChangeKind.MOVE: _move,
    ChangeKind.PROMOTE: _promote,
    ChangeKind.DEMOTE: _demote,
    ChangeKind.FORMAT_LEVEL: _format_level,
}


def _known(now: GroupNow, member_id: str | None) -> Member:
    member = now.configuration.member(member_id or "")
    if member is None:
        ids = _listed(now.configuration.ids)
        raise PlanRefusedError(f"There is no member {member_id}; the members are {ids}.")
    return member


def _new_member(now: GroupNow, change: MemberChange) -> Member:
    host, port = _parsed(change)
    assert change.id is not None, "the request is checked"
    known = now.configuration.member(change.id)
    if known is not None:
        hint = "" if known.is_voter else f": `ledgermq member promote {known.id}` gives it a vote"
        raise PlanRefusedError(f"{known.id} is {_words(known.role)} of the group already{hint}.")
    number = follower_broker_id(change.id)
    twin = next((each for each in now.configuration.ids if follower_broker_id(each) == number), None)
    if twin is not None:
        raise PlanRefusedError(
            f"{change.id} would have the broker id {number} of {twin}, which is the number in its name: "
            "choose another."
        )
    if len(now.configuration.members) >= MEMBERS_MAX:
        raise PlanRefusedError(f"The group has {MEMBERS_MAX} members, more are not possible.")
    member = Member(change.id, host, port, MemberRole.JOINING)
    _require_free(now, member)
    return member


def _parsed(change: MemberChange) -> tuple[str, int]:
    assert change.address is not None, "the request is checked"
    return split_address(change.address)


def _require_free(now: GroupNow, member: Member) -> None:
    for other in now.configuration.members:
        if other.id != member.id and (other.host, other.port) == (member.host, member.port):
            raise PlanRefusedError(f"{_address(member)} is the address of {other.id}.")


def _require_room(voters: Collection[str]) -> None:
    if len(voters) > VOTERS_MAX:
        raise PlanRefusedError(
            f"The group has {VOTERS_MAX} voters, more are not possible; a learner (--learner) is."
        )


def _voters_without(now: GroupNow, member: Member) -> tuple[str, ...]:
    voters = tuple(each for each in now.configuration.voters if each != member.id)
    if not voters:
        raise PlanRefusedError(f"{member.id} is the only voter: add another one first.")
    return voters


def _loss(voters: Collection[str], keeping_up: Collection[str]) -> str | None:
    """What it may cost that only these of the voters keep up; None: they are a majority."""
    needed = len(voters) // 2 + 1
    if len(keeping_up) >= needed:
        return None
    behind = [each for each in voters if each not in keeping_up]
    few = f"only {_listed(keeping_up)} keeps up" if len(keeping_up) == 1 else f"{_listed(keeping_up)} keep up"
    few = few if keeping_up else "none keeps up"
    return (
        f"of the {len(voters)} voters {_listed(voters)} {few}, and {needed} are needed. Nothing can be "
        "written, and this change itself is not committed, until the log has reached "
        f"{_listed(behind)}. Acknowledged messages that only other disks have are lost if these fail before."
    )


def _size_warnings(voters: Collection[str]) -> tuple[str, ...]:
    """What a group of so many voters is worth."""
    size = len(voters)
    if size == 1:
        return (
            f"{_listed(voters)} is alone then: its disk is the only copy, and while it is down nothing is "
            "served.",
        )
    if size == 2:
        return (f"A group of two stops when one node stops: {_listed(voters)} are needed both.",)
    if size % 2 == 0:
        return (f"A group of {size} voters survives no more failures than one of {size - 1}.",)
    return ()


def _unreached(now: GroupNow, member: Member) -> tuple[str, ...]:
    if member.id in now.connected:
        return ()
    return (f"{member.id} is not connected yet: start it; until then nothing else happens.",)


def _joins(member: Member) -> str:
    return f"{member.id} at {_address(member)} gets the whole log, without a vote."


def _votes(member_id: str, voters: Collection[str]) -> str:
    return f"When it has nearly the whole log, {member_id} votes by itself. {_majority(voters)}"


def _majority(voters: Collection[str]) -> str:
    if len(voters) == 1:
        return f"{_listed(voters)} alone is the majority then."
    return f"{len(voters) // 2 + 1} of {len(voters)} voters ({_listed(sorted(voters))}) are a majority then."


def _words(role: MemberRole) -> str:
    return {
        MemberRole.VOTER: "a voter",
        MemberRole.LEARNER: "a learner",
        MemberRole.JOINING: "a joining member",
    }[role]


def _address(member: Member) -> str:
    return f"{member.host}:{member.port}"


def _listed(ids: Collection[str]) -> str:
    """`n0`, `n0 and n1`, `n0, n1 and n2`."""
    names = list(ids)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
