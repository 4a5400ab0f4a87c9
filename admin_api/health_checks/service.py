"""Collects facts about the whole cluster and runs the health checks: findings with a remedy each."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from admin_api.cluster.grpc_clients import GrpcClients
from admin_api.cluster.reader import ClusterReader
from admin_api.cluster.schemas import ClusterView, NodeState
from admin_api.dead_letters.queues import DlqView
from admin_api.errors import PageWanted, ServiceError, partial_fields
from admin_api.gateway import AskError, Gateway, Gathered, Trouble
from admin_api.groups.overview import ConsumerGroupItem, GroupSort
from admin_api.groups.service import GroupQuery
from admin_api.health_checks import checks, membership
from admin_api.health_checks.facts import (
    DoctorReport,
    Facts,
    Finding,
    Listener,
    Severity,
    Vitals,
    VitalsSource,
    listener_at,
    unix_ms,
)
from admin_api.schema import PAGE_SIZE_MAX, Page
from admin_api.sources.broker_admin import RuntimeSource
from admin_api.sources.brokers import BrokerDirectory, Listed
from broker.admin.types import NodeStatusMessage

T = TypeVar("T")
DLQS_MAX: Final = 200
"""Dead letter queues that are checked; each costs a few requests."""
LISTENER_LIMIT_S: Final = 1.0
"""How long a connection to a silent one may take."""
Check = Callable[[Facts], Iterator[Finding]]
CHECKS: Final[tuple[Check, ...]] = (
    checks.check_name_servers,
    checks.check_grpc_endpoints,
    checks.check_writable,
    checks.check_members,
    membership.check_membership,
    checks.check_setup,
    checks.check_elections,
    checks.check_addresses,
    checks.check_unclaimed,
    checks.check_disks,
    checks.check_clocks,
    checks.check_versions,
    checks.check_limits,
    checks.check_dispatch,
    checks.check_quotas,
    checks.check_ports,
    checks.check_certificates,
    checks.check_files,
    checks.check_consumers,
    checks.check_dead_letters,
)
_ORDER: Final = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


class HealthChecks:
    """Asks every node once; the lists of consumer groups and dead-letter queues come from their services."""

    def __init__(
        self,
        gateway: Gateway,
        directory: BrokerDirectory,
        reader: ClusterReader,
        find_groups: Callable[[GroupQuery, PageWanted], Awaitable[Page[ConsumerGroupItem]]],
        invalidate_groups: Callable[[], None],
        list_dead_letters: Callable[[PageWanted], Awaitable[Page[DlqView]]],
        grpc_clients: GrpcClients,
        now_ms: Callable[[], int] = unix_ms,
        listener_at: Callable[[str, float], Awaitable[Listener | None]] = listener_at,
    ) -> None:
        self._gateway = gateway
        self._directory = directory
        self._reader = reader
        self._vitals = VitalsSource(RuntimeSource(gateway), now_ms)
        self._find_groups = find_groups
        self._invalidate_groups = invalidate_groups
        self._list_dead_letters = list_dead_letters
        self._grpc_clients = grpc_clients
        self._listener_at = listener_at

    async def examine(self, sample_ms: int = 0) -> DoctorReport:
        """What is wrong now. With `sample_ms` the groups are read twice, that long apart: only so a growing
        lag is found. Never raises for what a broker does or fails to do.
        """
        troubles: list[Trouble] = []
        before = await self._sample(sample_ms, troubles) if sample_ms else ()
        (view, vitals), (listed, statuses), configs, groups, dlqs = await asyncio.gather(
            self._read_nodes(),
            self._read_listed(),
            self._directory.name_servers.ask_each(lambda server: server.config()),
            self._optional(self._read_groups, troubles),
            self._optional(self._read_dlqs, troubles),
        )
        hanging, (endpoints, of_endpoints) = await asyncio.gather(
            self._find_hanging(view), self._grpc_clients.of_each(view.grpc_endpoints)
        )
        if view.namesrv.state is NodeState.DOWN and not view.groups:
            return _report(Facts(view, hanging=hanging), ())
        facts = Facts(
            view=view,
            listed=listed,
            statuses=statuses,
            name_servers=configs.answers,
            vitals=vitals.answers,
            groups=None if groups is None else groups.items,
            lag_before={group.group: group.lag for group in before if group.lag is not None},
            sample_ms=sample_ms,
            dlqs=None if dlqs is None else dlqs.items,
            hanging=hanging,
        )
        silent = _silent_namesrvs(view)  # `check_name_servers` reports them
        troubles += [trouble for trouble in configs.troubles if trouble.address not in silent]
        report = _report(facts, (*troubles, *vitals.troubles, *of_endpoints.troubles))
        return report.model_copy(update={"grpc_endpoints": endpoints})

    async def _sample(self, sample_ms: int, troubles: list[Trouble]) -> Sequence[ConsumerGroupItem]:
        """The groups `sample_ms` before they are read again; empty, and at once, where they are unknown."""
        before = await self._optional(self._read_groups, troubles)
        if before is None:
            return ()
        await asyncio.sleep(sample_ms / 1000)
        self._invalidate_groups()
        return before.items

    async def _read_nodes(self) -> tuple[ClusterView, Gathered[str, Vitals]]:
        view = await self._reader.read()
        nodes = [node for group in view.groups for node in group.nodes]
        up = {node.remoting_address for node in nodes if node.remoting_address and node.state is NodeState.UP}
        return view, await self._gateway.ask_each(sorted(up), self._vitals.read)

    async def _find_hanging(self, view: ClusterView) -> dict[str, Listener]:
        """Silent addresses that accept connections."""
        nodes = [node for group in view.groups for node in group.nodes if node.state is not NodeState.UP]
        down = _silent_namesrvs(view)
        down += [node.remoting_address for node in nodes if node.remoting_address is not None]
        silent = [address for address in dict.fromkeys(down) if self._gateway.is_silent(address)]
        found = await asyncio.gather(*(self._listener_at(address, LISTENER_LIMIT_S) for address in silent))
        return {at: listener for at, listener in zip(silent, found, strict=True) if listener is not None}

    async def _read_listed(self) -> tuple[Sequence[Listed], Mapping[str, NodeStatusMessage | None]]:
        """What the name servers list, and by address the status of the node there."""
        found = await self._optional(self._directory.current, [])
        listed = () if found is None else found.listed
        asked = await self._gateway.ask_each([entry.address for entry in listed], self._directory.status_of)
        return listed, asked.answers

    async def _read_groups(self) -> Page[ConsumerGroupItem]:
        """Those with the most lag: about others there is nothing to report."""
        query = GroupQuery(sort=GroupSort.LAG, is_descending=True)
        return await self._find_groups(query, PageWanted(size=PAGE_SIZE_MAX))

    async def _read_dlqs(self) -> Page[DlqView]:
        return await self._list_dead_letters(PageWanted(size=DLQS_MAX))

    async def _optional(self, read: Callable[[], Awaitable[T]], troubles: list[Trouble]) -> T | None:
        try:
            found = await read()
            if isinstance(found, Page):
                troubles += [Trouble(each.address, each.problem) for each in found.problems]
            return found
        except AskError as error:
            troubles.append(Trouble(error.address, str(error)))
        except ServiceError as error:
            troubles.append(Trouble("consumers", str(error)))
        return None


def _silent_namesrvs(view: ClusterView) -> list[str]:
    return [each.address for each in view.namesrvs if each.state is not NodeState.UP]


def _report(facts: Facts, troubles: Sequence[Trouble]) -> DoctorReport:
    findings = sorted(examine(facts), key=lambda finding: _ORDER[finding.severity])
    nodes = [node for group in facts.view.groups for node in group.nodes]
    return DoctorReport(
        as_of_ms=facts.now_ms,
        is_well=not any(finding.severity is Severity.ERROR for finding in findings),
        findings=findings,
        looked_at={
            "groups": len(facts.view.groups),
            "nodes": len(nodes),
            "consumerGroups": None if facts.groups is None else len(facts.groups),
            "deadLetterQueues": None if facts.dlqs is None else len(facts.dlqs),
        },
        **partial_fields(troubles),
    )


def examine(facts: Facts) -> list[Finding]:
    """What all checks find, in their order."""
    return [finding for check in CHECKS for finding in check(facts)]
