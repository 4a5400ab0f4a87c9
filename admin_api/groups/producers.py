"""Producer groups: which clients are connected and may send."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import Field

from admin_api.errors import PageWanted, missing, partial_fields
from admin_api.gateway import AskError, Gateway
from admin_api.schema import Page, Schema
from admin_api.sources.brokers import BrokerDirectory
from admin_api.sources.groups import ProducerRow, ProducerSource, version_name
from admin_api.topics.service import TopicTables
from remoting.codes import ResponseCode


class ProducerView(Schema):
    """One client that may send."""

    client_id: str
    address: str | None
    language: str | None
    version: str | None = Field(description="of its RocketMQ library; null when it is none we know")
    last_heartbeat_at_ms: int | None = Field(description="Unix time in ms, of the latest broker")
    brokers: list[str] = Field(description="names of the brokers it is connected to")


class ProducerGroupView(Schema):
    """One producer group and its connected clients."""

    group: str
    clients: list[ProducerView]


class ProducerGroups(Page[ProducerGroupView]):
    """Groups by name."""


_Groups = Mapping[str, tuple[ProducerRow, ...]]


@dataclass(frozen=True, slots=True)
class ProducerQuery:
    """`group`: a part of the name, case aside. `topic`: only who is connected to a broker that has it."""

    group: str = ""
    topic: str | None = None


@dataclass(slots=True)
class _Client:
    """One client as all brokers know it."""

    newest: ProducerRow
    brokers: list[str] = field(default_factory=list)


class Producers:
    """Brokers know which groups are connected to them, not what topics they send to."""

    def __init__(self, gateway: Gateway, directory: BrokerDirectory, tables: TopicTables) -> None:
        self._gateway = gateway
        self._directory = directory
        self._tables = tables
        self._source = ProducerSource(gateway)

    async def find(self, query: ProducerQuery, page: PageWanted) -> ProducerGroups:
        """Groups by name. Raises: NotFoundError, UnavailableError for the topic, AskError."""
        if query.topic is None:
            found = await self._directory.current()
            masters, troubles = found.masters, found.troubles
        else:
            tables = await self._tables.get()
            masters, troubles = tables.addresses_of(query.topic), tables.troubles
            if not masters:
                raise missing(f"The topic {query.topic}", troubles)
        asked = await self._gateway.ask_each(masters, lambda b: self._ask(masters[b], query.group))
        part = query.group.casefold()
        groups = {name: rows for name, rows in _joined(asked.answers).items() if part in name.casefold()}
        names = sorted(groups)
        return ProducerGroups(
            items=[_group_view(name, groups[name]) for name in page.of(names)],
            page=page.number,
            page_size=page.size,
            total=len(names),
            **partial_fields(troubles, asked.troubles),
        )

    async def _ask(self, address: str, group: str) -> _Groups:
        """Brokers before 4.9.4 list no producers, but answer for one group by its whole name."""
        try:
            return await self._source.all(address)
        except AskError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            if not group:
                sentence = f"{address} cannot list its producers; give a group's whole name"
                raise AskError(address, sentence, error.code) from error
        rows = await self._source.of_group(address, group)
        return {group: rows} if rows else {}


def _joined(answers: Mapping[str, _Groups]) -> dict[str, dict[str, _Client]]:
    """Group -> client id -> the client."""
    joined: dict[str, dict[str, _Client]] = {}
    for broker, groups in sorted(answers.items()):
        for group, rows in groups.items():
            clients = joined.setdefault(group, {})
            for row in rows:
                client = clients.setdefault(row.client_id, _Client(row))
                client.brokers.append(broker)
                if (row.last_update_timestamp or 0) > (client.newest.last_update_timestamp or 0):
                    client.newest = row
    return joined


def _group_view(group: str, clients: Mapping[str, _Client]) -> ProducerGroupView:
    return ProducerGroupView(
        group=group,
        clients=[
            ProducerView(
                client_id=client_id,
                address=clients[client_id].newest.address,
                language=clients[client_id].newest.language,
                version=version_name(clients[client_id].newest.version),
                last_heartbeat_at_ms=clients[client_id].newest.last_update_timestamp,
                brokers=clients[client_id].brokers,
            )
            for client_id in sorted(clients)
        ],
    )
