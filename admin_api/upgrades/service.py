"""Reads what an upgrade depends on, and makes its last step: the group's format level is raised."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from admin_api.changes import Action, ChangeRefusedError, Effect, Outcome, Preview
from admin_api.cluster.reader import ClusterReader
from admin_api.cluster.schemas import GroupView, NodeState
from admin_api.errors import NotFoundError, UnavailableError, partial_fields
from admin_api.gateway import Gateway
from admin_api.health_checks.facts import VitalsSource
from admin_api.upgrades.report import (
    Target,
    UpgradeReport,
    format_level_of,
    leader_of,
    level_to_finish,
    make_report,
    release_of,
)
from broker.admin.types import FORMAT_LEVEL
from remoting.codes import RequestCode
from telemetry.release import own_release

WAIT_LIMIT_S: Final = 5.0
POLL_INTERVAL_S: Final = 0.1
CHANGE_TIMEOUT_MS: Final = 5_000


class Upgrades:
    """Looks at the groups, and raises their format level."""

    def __init__(self, gateway: Gateway, reader: ClusterReader, vitals: VitalsSource) -> None:
        self.gateway = gateway
        self._reader = reader
        self._vitals = vitals

    async def check(self) -> UpgradeReport:
        """Never raises for what a broker does or fails to do."""
        view = await self._reader.read()
        nodes = [node for group in view.groups for node in group.nodes]
        up = {node.remoting_address for node in nodes if node.remoting_address and node.state is NodeState.UP}
        found = await self.gateway.ask_each(sorted(up), self._vitals.read)
        report = make_report(view, found.answers, Target(own_release(), FORMAT_LEVEL))
        return report.model_copy(update=partial_fields(found.troubles))

    def finish(self, group: str) -> "FinishUpgrade":
        """The change that raises the format level to the newest that all members read."""
        return FinishUpgrade(self, group)

    async def find(self, name: str) -> GroupView:
        """Raises: NotFoundError."""
        view = await self._reader.read()
        found = next((group for group in view.groups if group.group == name), None)
        if found is None or not any(node.is_ledgermq for node in found.nodes):
            raise NotFoundError(f"There is no replication group {name}.")
        return found

    async def wait_for_level(self, group: str, level: int) -> str | None:
        """Polls until each member's log has the level. None: it does; else which lack it."""
        for _ in range(int(WAIT_LIMIT_S / POLL_INTERVAL_S)):
            nodes = (await self.find(group)).nodes
            behind = [str(node.id) for node in nodes if (node.format_level or 0) < level]
            if not behind:
                return None
            await asyncio.sleep(POLL_INTERVAL_S)
        return f"after {WAIT_LIMIT_S:g} s it is not in the log of {', '.join(behind)}"


@dataclass(frozen=True, slots=True)
class FinishUpgrade:
    """Raises the format level of a group. Releases that do not know the level cannot be used from then on."""

    upgrades: Upgrades
    group: str

    @property
    def action(self) -> Action:
        return Action.UPGRADE_FINISH

    @property
    def target(self) -> str:
        return f"replication group {self.group}"

    async def preview(self) -> Preview:
        """Raises: NotFoundError, UnavailableError, ChangeRefusedError."""
        found = await self.upgrades.find(self.group)
        level = format_level_of(found)
        if level is None:
            raise UnavailableError(f"{found.group} has no leader now: it is {found.state}.")
        _require_all(found)
        wanted = level_to_finish(found)
        if wanted is None:
            raise ChangeRefusedError(
                f"{found.group} is at format level {level}, and not every member runs a release that knows a "
                f"newer one: {_releases(found)}."
                if level < FORMAT_LEVEL
                else f"{found.group} is at format level {level} already, the newest of this release."
            )
        warning = (
            f"There is no way back: a release that does not know format level {wanted} cannot run a node of "
            f"this group afterwards. The members run {_releases(found)}."
        )
        effect = Effect("format level", str(level), str(wanted))
        return Preview(self.action, self.target, (effect,), (warning,), is_destructive=True)

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        found = await self.upgrades.find(self.group)
        leader = leader_of(found)
        if leader is None or leader.remoting_address is None:
            raise UnavailableError(f"{found.group} has no leader now: it is {found.state}.")
        (effect,) = preview.effects
        level = int(str(effect.after))
        body = orjson.dumps({"change": "format_level", "level": level})
        code = RequestCode.LEDGERMQ_CHANGE_MEMBERS
        await self.upgrades.gateway.ask(
            leader.remoting_address, code, body=body, timeout_ms=CHANGE_TIMEOUT_MS
        )
        problem = await self.upgrades.wait_for_level(self.group, level)
        return (Outcome(f"{self.group} at format level {level}", problem is None, problem),)


def _require_all(group: GroupView) -> None:
    """A member that is away may be of a release that does not know the level. Raises: ChangeRefusedError."""
    away = [str(n.id or n.remoting_address) for n in group.nodes if n.state is not NodeState.UP]
    if away:
        raise ChangeRefusedError(
            f"{', '.join(away)} does not answer: all members must run the new release and be connected."
        )
    apart = [str(node.id) for node in group.nodes if not node.is_in_sync]
    if apart:
        raise ChangeRefusedError(f"{', '.join(apart)} is not in sync: wait until all members are.")


def _releases(group: GroupView) -> str:
    return ", ".join(f"{node.id}: {release_of(node) or 'unknown'}" for node in group.nodes)
