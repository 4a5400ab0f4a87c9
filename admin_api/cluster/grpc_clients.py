"""The clients of a gRPC endpoint, and their settings: asked of the endpoint through a broker, which knows who
may ask, and by which connection it can be reached.
"""

from collections.abc import Iterable
from typing import Final

from pydantic import Field

from admin_api.cluster.schemas import GrpcEndpointView, NodeState
from admin_api.errors import NotFoundError, PageWanted, UnavailableError
from admin_api.gateway import AskError, Gateway, Gathered
from admin_api.schema import Page, Schema
from admin_api.sources.bodies import Body, check, read_json
from admin_api.sources.brokers import BrokerDirectory
from remoting.codes import RequestCode, ResponseCode

TIMEOUT_MS: Final = 3_000
"""The broker waits 2 s for the endpoint."""
ASKED_MAX: Final = 100
"""Clients of one answer of an endpoint."""
BROKERS_MAX: Final = 4
"""Nodes asked one after the other: an endpoint is connected to every node that it reaches."""
SHOWN_MAX: Final = 20
"""Clients of each endpoint in a report."""
_WHAT: Final = "list of gRPC clients"


class GrpcClientView(Schema):
    """One client as its settings and its last heartbeat show it."""

    client_id: str
    language: str
    version: str = Field(description="of its library, as it says; empty: it says none")
    client_type: str = Field(description="such as `PRODUCER` or `PUSH_CONSUMER`")
    address: str = Field(description="where it is, as the endpoint sees it")
    namespace: str = Field(description="of its resources; empty: none")
    groups: list[str] = Field(description="consumer groups, the first 20")
    topics: list[str] = Field(description="that it sends to or subscribes to, the first 20")
    topic_count: int
    request_timeout_ms: int = Field(description="0: the client names none")
    settings_at_ms: int = Field(description="Unix time in ms at which its settings came")
    is_connected: bool = Field(description="false: its stream of commands has ended, and it may come back")


class GrpcEndpointClients(Schema):
    """An endpoint, and the first of its clients."""

    address: str
    total: int | None = Field(description="null: it is unknown, `problems` says why")
    clients: list[GrpcClientView]


class _Answer(Body):
    total: int = Field(ge=0)
    clients: tuple[GrpcClientView, ...] = Field(max_length=ASKED_MAX)


class GrpcClients:
    """Asks endpoints by the address that they have in the cluster view."""

    def __init__(self, gateway: Gateway, directory: BrokerDirectory) -> None:
        self._gateway = gateway
        self._directory = directory

    async def page(self, address: str, wanted: PageWanted) -> Page[GrpcClientView]:
        """In the order in which they came. Raises: NotFoundError, UnavailableError."""
        items: list[GrpcClientView] = []
        before = (wanted.number - 1) * wanted.size
        try:
            while True:
                room = min(ASKED_MAX, wanted.size - len(items))
                found = await self._ask(address, before + len(items), room)
                items += found.clients
                if len(items) >= wanted.size or len(found.clients) < room:
                    break
        except AskError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                raise NotFoundError(f"No gRPC endpoint {address} is connected to the brokers.") from error
            raise UnavailableError(
                f"The clients of the gRPC endpoint {address} are unknown: {error}."
            ) from error
        return Page(items=items, page=wanted.number, page_size=wanted.size, total=found.total)

    async def of_each(
        self, endpoints: Iterable[GrpcEndpointView]
    ) -> tuple[list[GrpcEndpointClients], Gathered[str, _Answer]]:
        """The first clients of every endpoint that is up, and which of these gave no answer."""
        up = [each.address for each in endpoints if each.state is NodeState.UP]
        asked = await self._gateway.ask_each(up, lambda address: self._ask(address, 0, SHOWN_MAX))
        views = []
        for address in up:
            found = asked.answers.get(address)
            views.append(
                GrpcEndpointClients(
                    address=address,
                    total=None if found is None else found.total,
                    clients=[] if found is None else list(found.clients),
                )
            )
        return views, asked

    async def _ask(self, address: str, skipped: int, count: int) -> _Answer:
        """What the first node that reaches the endpoint says; those that take writes are asked first: a node
        that started a moment ago may not have the endpoint's connection yet. Raises: AskError.
        """
        error = AskError(address, f"no broker is there that could ask the gRPC endpoint {address}")
        ext = {"address": address, "skipped": str(skipped), "count": str(count)}
        brokers = await self._directory.current()
        for broker in list(dict.fromkeys([*brokers.masters.values(), *brokers.addresses]))[:BROKERS_MAX]:
            try:
                answer = await self._gateway.ask(
                    broker, RequestCode.LEDGERMQ_GRPC_CLIENTS, ext, timeout_ms=TIMEOUT_MS
                )
                return check(broker, read_json(broker, answer.body, _WHAT), _Answer, _WHAT)
            except AskError as failed:
                error = failed
                if failed.code == ResponseCode.NO_PERMISSION:
                    break
        raise error
