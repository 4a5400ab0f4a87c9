"""The members of a replication group: who they are, how much of the log a joining one has, and changes of
them.

The broker that leads plans a change and refuses what makes no sense; its sentences are the preview.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import Field, ValidationError

from admin_api.changes import Action, ChangeRefusedError, Effect, Outcome, Preview
from admin_api.cluster.replication import Replication, leader_of
from admin_api.cluster.schemas import GroupView, MemberProgress, NodeState, NodeView
from admin_api.errors import InvalidError, UnavailableError
from admin_api.gateway import AskError, Gateway
from admin_api.schema import Partial, RequestSchema, Schema, TroubleView
from admin_api.sources.broker_admin import change_members
from broker.admin.types import ADDRESS_CHARACTERS_MAX, ChangeKind, MemberChange, MemberPlanView, MemberView
from remoting.codes import ResponseCode

_ACTIONS: Final = {
    ChangeKind.ADD: Action.MEMBER_ADD,
    ChangeKind.REMOVE: Action.MEMBER_REMOVE,
    ChangeKind.REPLACE: Action.MEMBER_REPLACE,
    ChangeKind.MOVE: Action.MEMBER_MOVE,
    ChangeKind.PROMOTE: Action.MEMBER_ROLE,
    ChangeKind.DEMOTE: Action.MEMBER_ROLE,
}
_FORCE: Final = Field(
    default=False,
    description="also where fewer than a majority of the voters keep up afterwards: the preview says what it "
    "may cost",
)
_ADDRESS: Final = Field(max_length=ADDRESS_CHARACTERS_MAX, description="host:port for replication")


class NewMember(RequestSchema):
    """Who joins."""

    id: str = Field(max_length=10, description="one letter and a number, such as `n3`")
    address: str = _ADDRESS
    role: Literal["voter", "learner"] = Field(
        default="voter", description="a voter votes when it has nearly the whole log, a learner never"
    )
    force: bool = _FORCE


class Replacement(RequestSchema):
    """Who takes the place."""

    id: str = Field(max_length=10, description="one letter and a number, such as `n3`")
    address: str = _ADDRESS
    force: bool = _FORCE


class NewAddress(RequestSchema):
    """Where the member is from now on."""

    address: str = _ADDRESS
    force: bool = _FORCE


class NewRole(RequestSchema):
    """Whether the member votes."""

    role: Literal["voter", "learner"]
    force: bool = _FORCE


class MemberRow(Schema):
    """One member of the newest configuration in the leader's log."""

    id: str
    role: str = Field(description="voter, learner or joining: it votes when it has nearly the whole log")
    replaces: str | None = Field(description="the member that is removed when this one votes")
    is_leader: bool
    state: NodeState
    replication_address: str | None
    remoting_address: str | None
    progress: MemberProgress | None
    is_in_sync: bool | None
    problem: str | None = Field(description="why it did not answer")


class MembersView(Partial):
    """The members of one group."""

    group: str
    leader_id: str | None
    term: int | None
    format_level: int | None = Field(description="members can be changed from 3 on; null: unknown, or fixed")
    configuration_index: int | None = Field(description="the entry that made them the members; -1: none has")
    is_committed: bool | None = Field(description="whether a majority has stored that entry")
    members: list[MemberRow]
    strangers: list[str] = Field(description="nodes that run under the group's name and are no members")


class Members:
    """Looks at the members and makes the changes."""

    def __init__(self, gateway: Gateway, replication: Replication) -> None:
        self.gateway = gateway
        self._replication = replication

    async def view(self, group: str) -> MembersView:
        """Raises: NotFoundError, UnavailableError."""
        found = await self._replication.find(group)
        known = found.membership
        problem = None if leader_of(found) is not None else "the group has no leader now"
        return MembersView(
            group=found.group,
            leader_id=found.leader_id,
            term=found.term,
            format_level=None if known is None else known.format_level,
            configuration_index=None if known is None else known.configuration_index,
            is_committed=None if known is None else known.is_committed,
            members=[
                _row(found, node) for node in found.nodes if node.id is not None and is_member(found, node)
            ],
            strangers=[str(node.id) for node in found.nodes if node.id and not is_member(found, node)],
            is_partial=problem is not None,
            problems=[] if problem is None else [TroubleView(address=group, problem=problem)],
        )

    async def leader(self, group: str) -> tuple[GroupView, str]:
        """The group, and where its leader is asked. Raises: NotFoundError, UnavailableError."""
        found = await self._replication.find(group)
        leader = leader_of(found)
        if leader is None or leader.remoting_address is None:
            raise UnavailableError(
                f"{group} has no leader now: it is {found.state}. Where a majority of its members is gone "
                "for "
                "good, no change of the members brings it back."
            )
        return found, leader.remoting_address

    def change(self, group: str, kind: ChangeKind, **values: object) -> "ChangeMembers":
        """Raises: InvalidError."""
        try:
            return ChangeMembers(self, group, MemberChange.model_validate({"change": kind, **values}))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            message = str(first["msg"]).removeprefix("Value error, ")
            raise InvalidError(f"{where}: {message}." if where else f"{message}.") from error


@dataclass(frozen=True, slots=True)
class ChangeMembers:
    """One change, which the leader plans and makes. What follows from its first step the group does
    itself.
    """

    members: Members
    group: str
    wanted: MemberChange

    @property
    def action(self) -> Action:
        return _ACTIONS[self.wanted.change]

    @property
    def target(self) -> str:
        return f"replication group {self.group}"

    async def preview(self) -> Preview:
        found, leader = await self.members.leader(self.group)
        try:
            plan = await self._ask(leader, is_dry_run=True)
        except AskError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise ChangeRefusedError(
                    f"The leader of {self.group} runs a release whose members are fixed ({error})."
                ) from error
            if error.code == ResponseCode.NO_PERMISSION:
                raise ChangeRefusedError(str(error)) from error
            raise
        return Preview(
            self.action,
            self.target,
            (*_member_effects(found, plan), *_step_effects(plan)),
            (*plan.warnings, *(() if plan.lost is None else (f"Forced: {plan.lost}",))),
            is_destructive=True,
            basis=f"{_basis(found)}: {self.wanted.to_json().decode()}",
        )

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        _, leader = await self.members.leader(self.group)
        plan = await self._ask(leader, is_dry_run=False)
        return (Outcome(plan.steps[0], ok=True),)

    async def _ask(self, leader: str, *, is_dry_run: bool) -> MemberPlanView:
        wanted = self.wanted.model_copy(update={"dry_run": is_dry_run})
        return await change_members(self.members.gateway, leader, wanted)


def is_member(group: GroupView, node: NodeView) -> bool:
    """Where the members are not known, each named node counts."""
    return group.membership is None or node.member is not None


def _basis(group: GroupView) -> str:
    known = group.membership
    return "unknown" if known is None else f"configuration {known.configuration_index}"


def _member_effects(group: GroupView, plan: MemberPlanView) -> list[Effect]:
    """Each member that becomes different, and the group's format."""
    before = {node.id: _words(node) for node in group.nodes if node.member is not None}
    after = {member.id: _plan_words(member) for member in plan.members}
    ids = sorted({*filter(None, before), *after})
    return [
        Effect(f"member {each}", before.get(each), after.get(each))
        for each in ids
        if before.get(each) != after.get(each)
    ]


def _step_effects(plan: MemberPlanView) -> list[Effect]:
    return [Effect(f"step {number}", None, step) for number, step in enumerate(plan.steps, start=1)]


def _words(node: NodeView) -> str:
    assert node.member is not None, "only members are described"
    return _member_words(node.member.role, node.member.replaces, node.member.replication_address)


def _plan_words(member: MemberView) -> str:
    return _member_words(member.role, member.replaces, member.replication_address)


def _member_words(role: str, replaces: str | None, address: str) -> str:
    """`joining at 10.0.0.3:10914, replaces n2`."""
    return f"{role} at {address}" + ("" if replaces is None else f", replaces {replaces}")


def _row(group: GroupView, node: NodeView) -> MemberRow:
    member = node.member
    return MemberRow(
        id=str(node.id),
        role="voter" if member is None else member.role,
        replaces=None if member is None else member.replaces,
        is_leader=node.id == group.leader_id,
        state=node.state,
        replication_address=node.replication_address if member is None else member.replication_address,
        remoting_address=node.remoting_address,
        progress=None if member is None else member.progress,
        is_in_sync=node.is_in_sync,
        problem=node.problem,
    )
