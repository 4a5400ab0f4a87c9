"""The facts that the health checks judge, and the findings they return; among the facts whether a process
listens at an address that does not answer, and on this machine (Linux) which one.
"""

import asyncio
import ipaddress
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pydantic import Field

from admin_api.cluster.grpc_clients import GrpcEndpointClients
from admin_api.cluster.schemas import ClusterView, GroupView, NodeView
from admin_api.dead_letters.queues import DlqView
from admin_api.groups.overview import ConsumerGroupItem
from admin_api.schema import Partial, Schema
from admin_api.sources.broker_admin import Runtime, RuntimeSource
from admin_api.sources.brokers import Listed
from broker.admin.types import NodeStatusMessage
from sockets.dialled import is_usable_transport
from sockets.holders import Ip, entries_of, pid_with


@dataclass(frozen=True, slots=True)
class Listener:
    """The process that accepts connections at an address. `pid`: None if it runs elsewhere or is another
    user's.
    """

    pid: int | None = None
    is_stopped: bool = False


async def listener_at(address: str, limit_s: float) -> Listener | None:
    """Connects: a process that hangs keeps its ports, and the system accepts connections for it. None: no
    connection within the limit.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        async with asyncio.timeout(limit_s):
            _, writer = await asyncio.open_connection(host, int(port))
    except (OSError, OverflowError, ValueError, TimeoutError):
        return None
    if not is_usable_transport(writer.transport):
        return None
    remote: Ip = ipaddress.ip_address(writer.get_extra_info("peername")[0])
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return await asyncio.to_thread(_listener, remote, int(port))


def _listener(ip: Ip, port: int) -> Listener:
    if not _is_of_this_machine(ip):
        return Listener()
    pid = pid_with({entry.inode for entry in entries_of(str(ip), port) if entry.is_listening})
    return Listener(pid, pid is not None and _is_stopped(pid))


def _is_of_this_machine(ip: Ip) -> bool:
    """Whether a socket can have the address."""
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    with socket.socket(family) as probe:
        try:
            probe.bind((str(ip), 0))
        except OSError:
            return False
    return True


def _is_stopped(pid: int) -> bool:
    """By a SIGSTOP or a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")


SAMPLE_MS_MAX = 10_000


class Severity(StrEnum):
    """ERROR: something does not work, or the next failure stops it. WARNING: it will, if nothing is done.
    INFO: worth knowing.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Finding(Schema):
    """One thing that is wrong, in words."""

    severity: Severity
    code: str = Field(description="which check found it, such as `node-down`; the same for ever")
    subject: str = Field(description="what it is about: a group, node, address, consumer group")
    sentence: str = Field(description="what is wrong")
    remedy: str = Field(description="what to do about it")


class DoctorReport(Partial):
    """Everything found, the worst first. `isPartial`: something could not be checked."""

    as_of_ms: int = Field(description="Unix time in ms")
    is_well: bool = Field(description="no finding is an error")
    findings: list[Finding]
    looked_at: dict[str, int | None] = Field(
        description="how many nodes, groups and so on there were to check; null: unknown"
    )
    grpc_endpoints: list[GrpcEndpointClients] = Field(
        default=[], description="those that take connections, each with its first 20 clients"
    )


@dataclass(frozen=True, slots=True)
class Vitals:
    """A broker's figures, and when by our clock (Unix ms) they were asked for and came."""

    runtime: Runtime
    asked_at_ms: int
    answered_at_ms: int

    @property
    def clock_ahead_ms(self) -> int | None:
        """How far its clock is ahead of ours, to half the time the answer took; None of stock brokers."""
        clock_ms = self.runtime.integer("clockMs")
        return None if clock_ms is None else clock_ms - (self.asked_at_ms + self.answered_at_ms) // 2

    @property
    def doubt_ms(self) -> int:
        return (self.answered_at_ms - self.asked_at_ms) // 2 + 1


def unix_ms() -> int:
    """Our clock."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class VitalsSource:
    """Asks one broker. `now_ms`: Unix time."""

    runtime: RuntimeSource
    now_ms: Callable[[], int] = unix_ms

    async def read(self, address: str) -> Vitals:
        """Raises: AskError."""
        asked_at_ms = self.now_ms()
        runtime = await self.runtime.read(address)
        return Vitals(runtime, asked_at_ms, self.now_ms())


@dataclass(frozen=True, slots=True)
class Facts:
    """`statuses`: by the address that was asked; None is a stock broker's, a silent one has none. `groups`
    and `dlqs` are None where it could not be learned. `lag_before`: of the groups some time before.
    """

    view: ClusterView
    listed: Sequence[Listed] = ()
    name_servers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By address their configuration, of those that tell it."""
    statuses: Mapping[str, NodeStatusMessage | None] = field(default_factory=dict)
    vitals: Mapping[str, Vitals] = field(default_factory=dict)
    groups: Sequence[ConsumerGroupItem] | None = None
    lag_before: Mapping[str, int] = field(default_factory=dict)
    sample_ms: int = 0
    dlqs: Sequence[DlqView] | None = None
    hanging: Mapping[str, Listener] = field(default_factory=dict)
    """By address: the process that accepts connections there and does not answer."""

    @property
    def now_ms(self) -> int:
        return self.view.as_of_ms

    def replicated(self) -> list[GroupView]:
        """The groups that keep a replicated log, as far as that is known: RocketMQ's own brokers do not."""
        return [group for group in self.view.groups if all(n.is_ledgermq is not False for n in group.nodes)]

    def clock_ahead_ms(self) -> dict[str, tuple[int, int]]:
        """Address -> how far its clock is from the middle one, and how unsure that is."""
        clocks = {at: (v.clock_ahead_ms, v.doubt_ms) for at, v in self.vitals.items()}
        known = {at: (ahead, doubt) for at, (ahead, doubt) in clocks.items() if ahead is not None}
        if not known:
            return {}
        middle = round(statistics.median(ahead for ahead, _ in known.values()))
        return {at: (ahead - middle, doubt) for at, (ahead, doubt) in known.items()}


def error(code: str, subject: str, sentence: str, remedy: str) -> Finding:
    return Finding(severity=Severity.ERROR, code=code, subject=subject, sentence=sentence, remedy=remedy)


def warning(code: str, subject: str, sentence: str, remedy: str) -> Finding:
    return Finding(severity=Severity.WARNING, code=code, subject=subject, sentence=sentence, remedy=remedy)


def info(code: str, subject: str, sentence: str, remedy: str) -> Finding:
    return Finding(severity=Severity.INFO, code=code, subject=subject, sentence=sentence, remedy=remedy)


def end_it(address: str, listener: Listener) -> str:
    """What is to be done with a process that hangs, before it is started again: its ports are taken."""
    if listener.pid is None:
        port = address.rpartition(":")[2]
        return (
            f"Its process still holds its ports. Find it on its own machine (`ss -ltnp 'sport = :{port}'`), "
            "check its log and its disk, and end it (kill -KILL) if it stays so."
        )
    pid = listener.pid
    if listener.is_stopped:
        return (
            f"Its process on this machine, pid {pid}, is stopped and still holds its ports. Resume it "
            f"(kill -CONT {pid}), or end it (kill -KILL {pid})."
        )
    return (
        f"Its process on this machine, pid {pid}, still holds its ports. Check its log and its disk, "
        f"and end it (kill -KILL {pid}) if it stays so."
    )


def voters(group: GroupView) -> list[NodeView]:
    """Who counts for majorities. Where the members are not known, each named node; an address that no node
    claims is no member.
    """
    if group.membership is not None:
        return [node for node in group.nodes if node.member is not None and node.member.role == "voter"]
    return [node for node in group.nodes if node.id is not None] or list(group.nodes)


def name_of(group: GroupView, node: NodeView) -> str:
    """`n1 of broker-a`, or its address."""
    return f"{node.id} of {group.group}" if node.id else f"{node.remoting_address} of {group.broker_name}"


def words_of_ms(ms: float) -> str:
    """`850 ms`, `12 s`, `3 min`, `5 h`, `2 days`."""
    for unit, unit_ms in (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= 2 * unit_ms or (unit == "s" and ms >= unit_ms):
            return f"{ms / unit_ms:.0f} {unit}"
    return f"{ms:.0f} ms"
