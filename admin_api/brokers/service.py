"""Reads brokers: figures, configuration, storage."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from admin_api.cached import Cached
from admin_api.cluster.schemas import NodeState
from admin_api.errors import PageWanted, UnavailableError, missing, partial_fields
from admin_api.gateway import AskError, Gateway
from admin_api.schema import Page, RequestSchema, Schema, TroubleView
from admin_api.security.masking import masked
from admin_api.settings import Settings
from admin_api.sources.broker_admin import ConfigSource, Runtime, RuntimeSource
from admin_api.sources.brokers import BrokerDirectory, BrokerSet, peer_addresses
from broker.admin.types import NodeStatusMessage
from remoting.route import MASTER_ID

CHANGES_MAX = 64

SettingKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$", max_length=128)]
SettingValue = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]*$", max_length=4096)]


class Product(StrEnum):
    """What kind of broker it is: ours knows of replication and more."""

    LEDGERMQ = "ledgermq"
    ROCKETMQ = "rocketmq"


class BrokerRow(Schema):
    """One broker process. Where it did not answer, only its place in the name server is known."""

    address: str
    broker_name: str
    cluster: str | None
    broker_id: int | None = Field(description="its id in the name server; 0 takes the writes")
    state: NodeState
    problem: str | None = Field(description="why it did not answer")
    product: Product | None
    node_id: str | None = Field(description="its id in its replication group; null for RocketMQ's own")
    role: str | None = Field(
        description="LEADER, FOLLOWER or CANDIDATE; MASTER or SLAVE for RocketMQ's own, by its broker id"
    )
    is_writable: bool | None
    version: str | None
    started_at_ms: int | None
    put_per_second: float | None = Field(description="messages taken, over the last 10 s")
    get_per_second: float | None = Field(description="messages given out, over the last 10 s")
    put_today: int | None = Field(description="messages taken since midnight")
    get_today: int | None = Field(description="messages given out since midnight")
    disk_used_ratio: float | None = Field(description="of the disk its log is on, 0 to 1")


class Brokers(Page[BrokerRow]):
    """By broker name, then broker id."""


class BrokerRuntime(Schema):
    """Everything a broker says of itself in figures, in its own words."""

    address: str
    broker: BrokerRow
    figures: dict[str, str]


class SettingView(Schema):
    """One key. `canChange` is null where the broker does not say."""

    key: str
    value: str = Field(description="secrets are masked")
    can_change: bool | None = Field(description="while it runs; false: set it in its file and restart it")


class BrokerConfig(Schema):
    """Every key with the value in force."""

    address: str
    settings: list[SettingView]


class ConfigPatch(RequestSchema):
    """The keys to change."""

    settings: dict[SettingKey, SettingValue] = Field(min_length=1, max_length=CHANGES_MAX)


class DiskView(Schema):
    """The disk the log is on."""

    total_bytes: int | None
    free_bytes: int | None
    used_ratio: float | None
    clean_above_ratio: float | None = Field(description="old files are deleted early above it")
    full_above_ratio: float | None = Field(description="no message is taken above it")


class LogStorage(Schema):
    """The message log's files. Positions are bytes of the log."""

    begin_position: int | None
    end_position: int | None
    dispatched_position: int | None = Field(description="up to here the queues show it")
    size_bytes: int | None
    file_bytes: int | None = Field(description="size of one file")
    file_count: int | None
    earliest_message_at_ms: int | None = Field(description="Unix time in ms")


class RetentionView(Schema):
    """How long messages stay."""

    keep_hours: int | None
    delete_hours: str | None = Field(description="hours of the day at which old files are deleted")


class BrokerStorage(Schema):
    """What a broker has on its disk. null: it does not say."""

    address: str
    directory: str | None
    log: LogStorage
    disk: DiskView
    retention: RetentionView


_NO_FIGURES = Runtime({})


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one address answered; nothing where `problem` has the reason."""

    status: NodeStatusMessage | None = None
    runtime: Runtime = _NO_FIGURES
    problem: str | None = None


_NOT_YET = _Answer(problem="it has not answered yet")


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """One read of all brokers."""

    found: BrokerSet
    rows: dict[str, BrokerRow]
    answers: dict[str, _Answer]


class BrokerService:
    """Reads; what changes a configuration is in `admin_api.brokers.changes`."""

    def __init__(self, gateway: Gateway, directory: BrokerDirectory, settings: Settings) -> None:
        self._gateway = gateway
        self._directory = directory
        self._runtime = RuntimeSource(gateway)
        self._config = ConfigSource(gateway)
        self._snapshot = Cached(self._read_all, settings.brokers_cache_ms / 1000)

    async def find(self, page: PageWanted) -> Brokers:
        """Every broker that is listed, or that one names as its peer.

        Raises: AskError as `BrokerDirectory.current`.
        """
        seen = await self._snapshot.get()
        rows = list(seen.rows.values())
        silent = [TroubleView(address=r.address, problem=r.problem) for r in rows if r.problem is not None]
        # That a broker accepts no writes leaves nothing out of a list of brokers.
        namesrv = [t for t in seen.found.troubles if t.address not in seen.rows]
        problems = partial_fields(namesrv)["problems"] + silent
        return Brokers(
            items=list(page.of(rows)),
            page=page.number,
            page_size=page.size,
            total=len(rows),
            is_partial=bool(problems),
            problems=problems,
        )

    async def one(self, address: str) -> BrokerRow:
        """Also for a broker that does not answer. Raises: NotFoundError, UnavailableError, AskError."""
        return (await self._known(address)).rows[address]

    async def runtime(self, address: str) -> BrokerRuntime:
        """Raises: NotFoundError, UnavailableError, AskError."""
        seen = await self._known(address)
        answer = _answered(seen, address)
        return BrokerRuntime(
            address=address, broker=seen.rows[address], figures=dict(sorted(answer.runtime.table.items()))
        )

    async def config(self, address: str) -> BrokerConfig:
        """Raises: NotFoundError, UnavailableError, AskError."""
        await self._known(address)
        current = await self._config.read(address)
        settings = [
            SettingView(
                key=key,
                value=masked(key, value) or "",
                can_change=None if current.runtime_keys is None else key in current.runtime_keys,
            )
            for key, value in sorted(current.values.items())
        ]
        return BrokerConfig(address=address, settings=settings)

    async def storage(self, address: str) -> BrokerStorage:
        """Raises: NotFoundError, UnavailableError, AskError."""
        seen = await self._known(address)
        answer = _answered(seen, address)
        current = await self._config.read(address)
        return _storage_view(address, answer, _Config(current.values))

    def invalidate(self) -> None:
        """The next caller reads again."""
        self._snapshot.invalidate()

    async def _known(self, address: str) -> _Snapshot:
        """Only addresses that the cluster names are asked: a caller cannot send this process to any other."""
        seen = await self._snapshot.get()
        if address not in seen.rows:
            raise missing(f"A broker at {address}", seen.found.troubles)
        return seen

    async def _read_all(self) -> _Snapshot:
        answers: dict[str, _Answer] = {}
        found, _ = await asyncio.gather(self._directory.current(), self._ask_listed(answers))
        await self._ask_all(found.addresses, answers)
        answers = {address: answers[address] for address in found.addresses}
        rows = sorted((_row(address, answers[address], found) for address in answers), key=_order)
        return _Snapshot(found, {row.address: row for row in rows}, answers)

    async def _ask_listed(self, answers: dict[str, _Answer]) -> None:
        """Those who are known before it is known who of them leads."""
        try:
            listed = await self._directory.listed()
        except AskError:
            return  # `current` reports it, or uses the previous list
        await self._ask_all([entry.address for entry in listed], answers)

    async def _ask_all(self, addresses: Iterable[str], answers: dict[str, _Answer]) -> None:
        """Those that were not asked yet, and whom they name for their peers as soon as they do."""
        new = [address for address in addresses if address not in answers]
        answers |= dict.fromkeys(new, _NOT_YET)

        async def ask(address: str) -> None:
            answers[address] = answer = await self._ask(address)
            if answer.status is not None:
                await self._ask_all(peer_addresses([answer.status]), answers)

        await asyncio.gather(*map(ask, new))

    async def _ask(self, address: str) -> _Answer:
        try:
            asked = self._directory.status_of(address), self._runtime.read(address)
            return _Answer(*await asyncio.gather(*asked))
        except AskError as error:
            return _Answer(problem=str(error))


def _order(row: BrokerRow) -> tuple[str, bool, int, str]:
    return row.broker_name, row.broker_id is None, row.broker_id or 0, row.address


def _answered(seen: _Snapshot, address: str) -> _Answer:
    """Raises: UnavailableError."""
    answer = seen.answers[address]
    if answer.problem is not None:
        raise UnavailableError(f"The broker does not answer: {answer.problem}.")
    return answer


def _row(address: str, answer: _Answer, found: BrokerSet) -> BrokerRow:
    listed = next((entry for entry in found.listed if entry.address == address), None)
    status, runtime = answer.status, answer.runtime
    named = status or _status_that_names(address, found)
    broker_name = listed.broker_name if listed else (named.broker_name if named else "")
    is_up = answer.problem is None
    return BrokerRow(
        address=address,
        broker_name=broker_name,
        cluster=listed.cluster if listed else (named.cluster if named else None),
        broker_id=listed.broker_id if listed else None,
        state=NodeState.UP if is_up else NodeState.DOWN,
        problem=answer.problem,
        product=None if not is_up else Product.ROCKETMQ if status is None else Product.LEDGERMQ,
        node_id=status.node_id if status else None,
        role=_role(answer, listed.broker_id if listed else None),
        is_writable=_is_writable(answer),
        version=runtime.text("brokerVersionDesc"),
        started_at_ms=runtime.integer("bootTimestamp"),
        put_per_second=runtime.rate("putTps"),
        get_per_second=runtime.rate("getTransferredTps", "getTransferedTps"),
        put_today=runtime.since("msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        get_today=runtime.since("msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        disk_used_ratio=runtime.ratio("commitLogDiskRatio"),
    )


def _status_that_names(address: str, found: BrokerSet) -> NodeStatusMessage | None:
    """A silent node that the name server has dropped is known from its peers."""
    statuses = found.statuses.values()
    return next((s for s in statuses if any(p.remoting_address == address for p in s.peers)), None)


def _role(answer: _Answer, broker_id: int | None) -> str | None:
    if answer.problem is not None:
        return None
    if answer.status is not None:
        return answer.status.role
    return None if broker_id is None else "MASTER" if broker_id == MASTER_ID else "SLAVE"


def _is_writable(answer: _Answer) -> bool | None:
    if answer.status is not None:
        return answer.status.is_writable
    active = answer.runtime.text("brokerActive")
    return None if active is None else active == "true"


@dataclass(frozen=True, slots=True)
class _Config:
    """A broker's settings as numbers; None where one is missing or is no number."""

    values: Mapping[str, str]

    def text(self, key: str) -> str | None:
        return self.values.get(key) or None

    def integer(self, key: str) -> int | None:
        text = self.text(key) or ""
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else None

    def percent(self, key: str) -> float | None:
        """As a ratio; RocketMQ gives whole percents."""
        number = self.integer(key)
        return None if number is None or number > 100 else number / 100


def _storage_view(address: str, answer: _Answer, config: _Config) -> BrokerStorage:
    runtime, status = answer.runtime, answer.status
    total, free = runtime.capacity()
    return BrokerStorage(
        address=address,
        directory=config.text("storePathRootDir"),
        log=_log_storage(runtime, status, config),
        disk=DiskView(
            total_bytes=total,
            free_bytes=free,
            used_ratio=runtime.ratio("commitLogDiskRatio"),
            clean_above_ratio=config.percent("diskMaxUsedSpaceRatio"),
            full_above_ratio=config.percent("diskSpaceWarningLevelRatio"),
        ),
        retention=RetentionView(
            keep_hours=config.integer("fileReservedTime"), delete_hours=config.text("deleteWhen")
        ),
    )


def _log_storage(runtime: Runtime, status: NodeStatusMessage | None, config: _Config) -> LogStorage:
    begin = runtime.integer("commitLogMinOffset")
    shown = runtime.integer("commitLogMaxOffset")
    end = shown if status is None else status.end_position
    file_bytes = config.integer("mappedFileSizeCommitLog")
    size = None if begin is None or end is None or end < begin else end - begin
    return LogStorage(
        begin_position=begin,
        end_position=end,
        dispatched_position=shown if status is not None else _dispatched(runtime, shown),
        size_bytes=size,
        file_bytes=file_bytes,
        file_count=_file_count(begin, end, file_bytes) if size is not None else None,
        earliest_message_at_ms=runtime.integer("earliestMessageTimeStamp"),
    )


def _dispatched(runtime: Runtime, end: int | None) -> int | None:
    """RocketMQ reports the log's end, and how far its queues are behind."""
    behind = runtime.integer("dispatchBehindBytes")
    return None if end is None or behind is None else end - behind


def _file_count(begin: int | None, end: int | None, file_bytes: int | None) -> int | None:
    """Files are as long as `file_bytes` and begin at its multiples."""
    if begin is None or end is None or not file_bytes:
        return None
    return 0 if end == begin else (end - 1) // file_bytes - begin // file_bytes + 1
