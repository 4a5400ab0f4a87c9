"""Replication groups: leader, preferred leader, leadership transfer. Stock brokers have none."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from admin_api.changes import Action, ChangeRefusedError, Effect, Outcome, Preview
from admin_api.cluster.reader import ClusterReader
from admin_api.cluster.schemas import ClusterView, GroupView, NodeState, NodeView
from admin_api.errors import NotFoundError, UnavailableError
from admin_api.gateway import AskError, Gateway
from admin_api.schema import Partial, RequestSchema, Schema, TroubleView
from admin_api.sources.broker_admin import ConfigSource, begin_transfer
from admin_api.sources.brokers import BrokerDirectory, leads, read_node_status


class ReplicationSettings(Schema):
    """What rules elections and pushes, as the leader has it in force; null: unknown."""

    heartbeat_interval_ms: int | None = None
    election_timeout_min_ms: int | None = None
    election_timeout_max_ms: int | None = None
    wait_ack_timeout_ms: int | None = Field(
        default=None, description="an append not committed after this time fails"
    )
    pending_appends_max: int | None = None
    throttle_bytes_per_s: int | None = Field(
        default=None, description="peerPushQuota; 0: what the producers leave free (decided by the leader)"
    )
    throttle_lag_bytes: int | None = Field(
        default=None, description="peerPushThrottlePoint: a member farther behind is throttled"
    )


class ReplicationView(Partial):
    """The group as in the cluster's view, who is in sync, who is to lead, and by which rules."""

    group: GroupView
    preferred_leader_id: str | None = Field(description="null: none, or unknown where `settings` is null")
    in_sync: list[str] | None = Field(description="as in `group`; null: unknown")
    settings: ReplicationSettings | None


class LeaderChoice(RequestSchema):
    """Who is to lead."""

    node_id: str | None = Field(
        default=None, max_length=64, description="a member such as `n2`; null: the one nearest to the leader"
    )


class PreferredLeader(RequestSchema):
    """Who is to lead whenever it can."""

    node_id: str | None = Field(max_length=64, description="a member such as `n2`; null: none")


TRANSFER_LAG_MAX: Final = 1_000
"""Entries; a leader refuses to hand over to a member farther behind (dledger.core.config)."""
TRANSFER_LIMIT_S: Final = 3.0
POLL_INTERVAL_S: Final = 0.05


class Replication:
    """Looks at the groups and makes the changes to their leadership."""

    def __init__(self, gateway: Gateway, directory: BrokerDirectory, reader: ClusterReader) -> None:
        self.gateway = gateway
        self._directory = directory
        self._reader = reader
        self.configs = ConfigSource(gateway)

    async def view(self, group: str) -> ReplicationView:
        """Raises: NotFoundError, UnavailableError."""
        found = await self.find(group)
        leader = leader_of(found)
        config: Mapping[str, str] | None = None
        problems: list[TroubleView] = []
        address = None if leader is None else leader.remoting_address
        if address is not None:
            try:
                config = (await self.configs.read(address)).values
            except AskError as error:
                problems.append(TroubleView(address=error.address, problem=str(error)))
        else:
            problems.append(TroubleView(address=group, problem="the group has no leader now"))
        return ReplicationView(
            group=found,
            preferred_leader_id=(config or {}).get("preferredLeaderId") or None,
            in_sync=found.in_sync,
            settings=None if config is None else _settings(config),
            is_partial=bool(problems),
            problems=problems,
        )

    def transfer(self, group: str, node_id: str | None) -> "TransferLeader":
        """The change that makes `node_id` the leader, or the member nearest to it."""
        return TransferLeader(self, group, node_id)

    def prefer(self, group: str, node_id: str | None) -> "PreferLeader":
        """The change that makes `node_id` the one that leads whenever it can; None: no preference."""
        return PreferLeader(self, group, node_id)

    async def find(self, group: str) -> GroupView:
        """Raises: NotFoundError, UnavailableError."""
        view = await self._reader.read()
        found = next((each for each in view.groups if each.group == group), None)
        if found is not None and is_stock(found):
            raise NotFoundError(
                f"The broker {group} is RocketMQ's own and has no DLedger group view: it does not report "
                "replication, and its leadership cannot be moved from here."
            )
        if found is not None:
            return found
        silent = _silent(view)
        if silent is not None:
            raise UnavailableError(f"No broker that answers knows the group {group}, and {silent}.")
        raise NotFoundError(f"There is no replication group {group}.")

    async def groups(self) -> list[GroupView]:
        """All that are known, those of stock brokers too."""
        return (await self._reader.read()).groups

    async def wait_for_leader(self, address: str) -> str | None:
        """Polls until the node at `address` leads and takes writes. None: it does; else why not."""
        problem = "it did not answer"
        for _ in range(int(TRANSFER_LIMIT_S / POLL_INTERVAL_S)):
            try:
                status = await read_node_status(self.gateway, address)
            except AskError as error:
                problem = str(error)
            else:
                if leads(status):
                    self._directory.invalidate()
                    return None
                problem = f"it is {status.role}, and {status.leader_id or 'no node'} leads"
            await asyncio.sleep(POLL_INTERVAL_S)
        return f"after {TRANSFER_LIMIT_S:g} s it does not lead: {problem}"


@dataclass(frozen=True, slots=True)
class _LeaderChange:
    """What a change of a group's leader is about; `node_id` None: any, or none is preferred."""

    replication: Replication
    group: str
    node_id: str | None

    @property
    def target(self) -> str:
        return f"replication group {self.group}"


class TransferLeader(_LeaderChange):
    """Hands leadership over; sends wait meanwhile, for some tens of milliseconds as a rule."""

    @property
    def action(self) -> Action:
        return Action.LEADER_TRANSFER

    async def preview(self) -> Preview:
        view = await self.replication.view(self.group)
        leader = require_leader(view.group)
        wanted = _candidate(view.group, leader, self.node_id)
        warnings = ["Sends wait until the new leader takes them, some tens of milliseconds as a rule."]
        preferred = view.preferred_leader_id
        if preferred not in (None, wanted.id):
            warnings.append(f"{preferred} is the preferred leader and takes it back when it can.")
        return Preview(
            self.action,
            self.target,
            (Effect("leader", leader.id, wanted.id),),
            tuple(warnings),
            is_destructive=True,
            basis=f"{leader.id} leads in term {leader.term}, {wanted.id} is to",
        )

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        found = await self.replication.find(self.group)
        leader = require_leader(found)
        (effect,) = preview.effects
        if leader.id != effect.before:
            raise ChangeRefusedError(f"{leader.id} leads {self.group} now, no more {effect.before}.")
        wanted_id = effect.after
        wanted = next((node for node in found.nodes if node.id == wanted_id), None)
        if wanted is None or wanted.remoting_address is None or leader.remoting_address is None:
            raise ChangeRefusedError(f"The address of {wanted_id} is not known.")
        await begin_transfer(self.replication.gateway, leader.remoting_address, str(wanted_id))
        problem = await self.replication.wait_for_leader(wanted.remoting_address)
        return (Outcome(f"{self.group} led by {wanted_id}", problem is None, problem),)


class PreferLeader(_LeaderChange):
    """Sets `preferredLeaderId` while the group runs: every node has it, also after a restart."""

    @property
    def action(self) -> Action:
        return Action.LEADER_PREFERRED

    async def preview(self) -> Preview:
        view = await self.replication.view(self.group)
        leader = require_leader(view.group)
        if view.settings is None:
            raise UnavailableError(f"The leader {leader.id} does not report its configuration.")
        if self.node_id is not None and self.node_id not in [node.id for node in view.group.nodes]:
            raise ChangeRefusedError(f"{self.node_id} is no member of {self.group}.")
        moves = self.node_id not in (None, leader.id)
        warning = f"Leadership moves from {leader.id} to {self.node_id} as soon as that one is near enough."
        effect = Effect("preferredLeaderId", view.preferred_leader_id or "none", self.node_id or "none")
        return Preview(self.action, self.target, (effect,), (warning,) if moves else (), is_destructive=moves)

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        leader = require_leader(await self.replication.find(self.group))
        assert leader.remoting_address is not None
        values = {"preferredLeaderId": self.node_id or ""}
        await self.replication.configs.change(leader.remoting_address, values)
        return (Outcome(f"preferredLeaderId of {self.group}", ok=True),)


def leader_of(group: GroupView) -> NodeView | None:
    """The leader, if it is up. (A stock broker has no id.)"""
    if group.leader_id is None:
        return None
    return next(
        (node for node in group.nodes if node.id == group.leader_id and node.state is NodeState.UP), None
    )


def is_stock(group: GroupView) -> bool:
    """Whether its brokers are RocketMQ's own."""
    return all(node.is_ledgermq is False for node in group.nodes)


def present_leader(group: GroupView) -> NodeView:
    """With its address. Raises: UnavailableError."""
    leader = leader_of(group)
    if leader is None or leader.remoting_address is None:
        raise UnavailableError(f"{group.group} has no leader now: it is {group.state}.")
    return leader


def require_leader(group: GroupView) -> NodeView:
    """Raises: UnavailableError, ChangeRefusedError."""
    leader = present_leader(group)
    if len(group.nodes) < 2:
        raise ChangeRefusedError(f"{group.group} has one member only.")
    return leader


def _candidate(group: GroupView, leader: NodeView, node_id: str | None) -> NodeView:
    """Raises: ChangeRefusedError with the obstacle."""
    if node_id is None:
        able = [node for node in group.nodes if _obstacle(node, leader) is None]
        if not able:
            raise ChangeRefusedError(f"No other member of {group.group} can lead now.")
        return min(able, key=lambda node: (node.lag_entries or 0, node.id or ""))
    wanted = next((node for node in group.nodes if node.id == node_id), None)
    if wanted is None:
        raise ChangeRefusedError(f"{node_id} is no member of {group.group}.")
    obstacle = _obstacle(wanted, leader)
    if obstacle is not None:
        raise ChangeRefusedError(f"{node_id} {obstacle}.")
    return wanted


def _obstacle(node: NodeView, leader: NodeView) -> str | None:
    """Why the node cannot take over, as words that follow its name."""
    if node.id == leader.id:
        return "leads already"
    if node.state is not NodeState.UP:
        return f"is {node.state}: {node.problem or 'it does not answer'}"
    if node.impairment is not None:
        return f"is not to lead: {node.impairment}"
    if node.lag_entries is None:
        return "is not known well enough by its leader yet"
    if node.lag_entries > TRANSFER_LAG_MAX:
        return f"is {node.lag_entries} entries behind, {TRANSFER_LAG_MAX} at most are allowed"
    return None


def _silent(view: ClusterView) -> str | None:
    """Which silent brokers may know of a group that no other knows; words that follow `and`."""
    if view.namesrv.state is not NodeState.UP:
        return f"the name server does not answer: {view.namesrv.problem}"
    nodes = (node for group in view.groups for node in group.nodes if node.state is not NodeState.UP)
    silent = next((node for node in nodes if node.last_known is None), None)
    return None if silent is None else f"{silent.remoting_address or silent.id} does not answer"


def _settings(config: Mapping[str, str]) -> ReplicationSettings:
    def number(key: str) -> int | None:
        text = config.get(key, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None

    return ReplicationSettings(
        heartbeat_interval_ms=number("heartbeatIntervalMs"),
        election_timeout_min_ms=number("electionTimeoutMinMs"),
        election_timeout_max_ms=number("electionTimeoutMaxMs"),
        wait_ack_timeout_ms=number("maxWaitAckTimeMs"),
        pending_appends_max=number("maxPendingRequestsNum"),
        throttle_bytes_per_s=number("peerPushQuota"),
        throttle_lag_bytes=number("peerPushThrottlePoint"),
    )
