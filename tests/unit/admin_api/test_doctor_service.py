"""The doctor over fake brokers: who is asked, and what becomes of their answers."""

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import Iterator, Mapping

import orjson

from admin_api.cluster.grpc_clients import SHOWN_MAX, GrpcClients
from admin_api.cluster.reader import ClusterReader
from admin_api.dead_letters.queues import DlqView
from admin_api.errors import PageWanted
from admin_api.gateway import AskError, Gateway
from admin_api.groups.overview import ConsumerGroupItem, GroupSort
from admin_api.groups.service import GroupQuery
from admin_api.health_checks.facts import Listener
from admin_api.health_checks.service import HealthChecks
from admin_api.schema import Page, TroubleView
from admin_api.settings import Settings
from admin_api.sources.brokers import BrokerDirectory
from broker.admin.types import NodeStatusMessage
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS, FakeCluster
from tests.unit.admin_api.test_doctor import NOW_MS, consumer_group, statuses
from tests.unit.admin_api.test_grpc_clients import CLIENTS


class FakeMachines(FakeCluster):
    """Brokers that tell their figures, too."""

    def __init__(self, up: dict[str, NodeStatusMessage], table: dict[str, str]) -> None:
        super().__init__(up.values())
        self.list_all("n0")
        self.table = table

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO and address in self.statuses:
            return RemotingCommand(code=0, body=orjson.dumps({"table": self.table}))
        return await super().invoke(address, command, timeout_s)


@dataclasses.dataclass
class FakeGroups:
    """A list for each look; none left: nobody can say."""

    looks: Iterator[list[ConsumerGroupItem]]
    forgotten: int = 0

    def invalidate(self) -> None:
        self.forgotten += 1

    async def find(self, query: GroupQuery, page: PageWanted) -> Page[ConsumerGroupItem]:
        found = next(self.looks, None)
        if found is None:
            raise AskError("127.0.0.1:1", "nobody is there")
        assert (query.sort, query.is_descending) == (GroupSort.LAG, True)
        return Page[ConsumerGroupItem](items=found, page=1, page_size=page.size, total=len(found))


class FakeDlqs:
    async def groups(self, wanted: PageWanted) -> Page[DlqView]:
        trouble = TroubleView(address="127.0.0.1:2", problem="silent, too")
        return Page[DlqView](
            items=[], page=1, page_size=wanted.size, total=0, is_partial=True, problems=[trouble]
        )


def doctor_of(
    cluster: FakeCluster,
    groups: list[list[ConsumerGroupItem]] | None = None,
    listeners: Mapping[str, Listener] | None = None,
) -> HealthChecks:
    settings = Settings(namesrv=NAMESRV_ADDRESS)
    gateway = Gateway(cluster, settings)
    looks = iter(groups or [])

    reader = ClusterReader(gateway, settings, lambda: NOW_MS)
    directory = BrokerDirectory(gateway, settings)

    async def listener_at(address: str, limit_s: float) -> Listener | None:
        return (listeners or {})[address]

    listed = FakeGroups(looks)
    return HealthChecks(
        gateway,
        directory,
        reader,
        listed.find,
        listed.invalidate,
        FakeDlqs().groups,
        GrpcClients(gateway, directory),
        lambda: NOW_MS,
        listener_at,
    )


async def test_only_what_is_silent_is_connected_to() -> None:
    """What refuses the connection is down, and holds no port."""
    cluster = FakeMachines(statuses(), {})
    silent, down = (cluster.listed[broker_id] for broker_id in ("1", "2"))
    cluster.hanging.add(silent)
    del cluster.statuses[down]
    report = await doctor_of(cluster, listeners={silent: Listener(4711)}).examine()
    hangs, unreachable = report.findings
    assert (hangs.code, unreachable.code) == ("node-hangs", "address-unreachable")
    assert silent in hangs.sentence
    assert "pid 4711" in hangs.remedy


async def test_the_worst_comes_first_and_what_nobody_said_is_a_problem() -> None:
    up = {n: s.model_copy(update={"durability": "replicated"}) for n, s in statuses().items()}
    report = await doctor_of(FakeMachines(up, {"commitLogDiskRatio": "0.99"})).examine()
    assert [finding.code for finding in report.findings] == ["disk-near-full"] * 3 + ["durability-replicated"]
    assert not report.is_well
    assert report.is_partial
    assert [problem.problem for problem in report.problems] == ["nobody is there", "silent, too"]
    assert report.looked_at == {"groups": 1, "nodes": 3, "consumerGroups": None, "deadLetterQueues": 0}


async def test_the_clients_of_each_endpoint_that_is_up_are_named() -> None:
    cluster = FakeMachines(statuses(), {})
    with contextlib.ExitStack() as opened:
        one, silent = (
            f"127.0.0.1:{opened.enter_context(socket.create_server(('127.0.0.1', 0))).getsockname()[1]}"
            for _ in range(2)
        )
        cluster.endpoints = {each: str(NOW_MS) for each in (one, silent, "nowhere")}
        cluster.grpc_clients[one] = CLIENTS
        report = await doctor_of(cluster).examine()
    found = {each.address: each for each in report.grpc_endpoints}
    assert found.keys() == {one, silent}, "what is down has a finding"
    assert (found[one].total, len(found[one].clients)) == (len(CLIENTS), SHOWN_MAX)
    assert found[one].clients[0].client_id == "client-0"
    assert (found[silent].total, found[silent].clients) == (None, [])
    assert f"{silent} is not connected" in str(report.problems)


class MeetingMachines(FakeMachines):
    """Says who is there once the groups and dead letter queues are being asked for, too."""

    def __init__(self) -> None:
        super().__init__(statuses(), {})
        self.meeting = asyncio.Barrier(3)
        self.has_met = False

    async def meet(self) -> None:
        async with asyncio.timeout(10):
            await self.meeting.wait()

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        if address == NAMESRV_ADDRESS and not self.has_met:
            self.has_met = True
            await self.meet()
        return await super().invoke(address, command, timeout_s)


class MeetingGroups(FakeGroups):
    def __init__(self, cluster: MeetingMachines) -> None:
        super().__init__(iter([[]]))
        self.cluster = cluster

    async def find(self, query: GroupQuery, page: PageWanted) -> Page[ConsumerGroupItem]:
        await self.cluster.meet()
        return await super().find(query, page)


class MeetingDlqs(FakeDlqs):
    def __init__(self, cluster: MeetingMachines) -> None:
        self.cluster = cluster

    async def groups(self, wanted: PageWanted) -> Page[DlqView]:
        await self.cluster.meet()
        return await super().groups(wanted)


async def test_everyone_is_asked_at_the_same_time() -> None:
    cluster = MeetingMachines()
    settings = Settings(namesrv=NAMESRV_ADDRESS)
    gateway = Gateway(cluster, settings)
    reader = ClusterReader(gateway, settings, lambda: NOW_MS)
    groups, dlqs = MeetingGroups(cluster), MeetingDlqs(cluster)
    directory = BrokerDirectory(gateway, settings)
    doctor = HealthChecks(
        gateway,
        directory,
        reader,
        groups.find,
        groups.invalidate,
        dlqs.groups,
        GrpcClients(gateway, directory),
        lambda: NOW_MS,
    )
    report = await doctor.examine()
    assert report.looked_at == {"groups": 1, "nodes": 3, "consumerGroups": 0, "deadLetterQueues": 0}


async def test_two_looks_tell_a_lag_that_grows() -> None:
    looks = [[consumer_group(lag=10)], [consumer_group(lag=60)]]
    report = await doctor_of(FakeMachines(statuses(), {}), looks).examine(sample_ms=1)
    assert [finding.code for finding in report.findings] == ["lag-growing"]
    assert report.is_well


async def test_nobody_there_is_one_finding() -> None:
    cluster = FakeCluster()
    cluster.namesrv_is_up = False
    report = await doctor_of(cluster, [[]]).examine()
    assert [finding.code for finding in report.findings] == ["namesrv-silent"]


class FakeDumbMachines(FakeMachines):
    """Brokers that tell who they are, and refuse to tell their figures."""

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO and address in self.statuses:
            return RemotingCommand(code=1, remark="busy")
        return await super().invoke(address, command, timeout_s)


async def test_machines_that_could_not_be_looked_at_are_problems() -> None:
    cluster = FakeDumbMachines(statuses(), {})
    report = await doctor_of(cluster, [[]]).examine()
    assert report.is_partial
    assert {problem.address for problem in report.problems} == {*cluster.statuses, "127.0.0.1:2"}


async def test_an_open_name_server_is_found_by_its_configuration() -> None:
    cluster = FakeMachines(statuses(), {})
    cluster.namesrv_config |= {"bindAddress": "0.0.0.0", "tlsMode": "permissive", "tlsClientAuth": "none"}
    report = await doctor_of(cluster, [[]]).examine()
    assert [(found.code, found.subject) for found in report.findings] == [("namesrv-open", NAMESRV_ADDRESS)]
