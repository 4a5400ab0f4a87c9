"""Requests to name servers: the brokers that they list, routes, configuration, key-value table, write
permissions.

Each name server has tables of its own: brokers register with all of them, and what is changed is changed at
all of them. Reading goes on while one of them answers, and what several answer is merged.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, TypeVar

from admin_api.gateway import AskError, Gateway, Gathered
from admin_api.settings import Settings
from admin_api.sources.bodies import Body, check, read_json
from remoting.client.routes import merged_routes
from remoting.codes import RequestCode, ResponseCode
from remoting.fastjson import FastjsonError, loads
from remoting.headers.namesrv import (
    BrokerNameRequestHeader,
    KvItemRequestHeader,
    KvKeyRequestHeader,
    KvNamespaceRequestHeader,
)
from remoting.properties_text import PropertiesTextError, format_properties_text, parse_properties_text
from remoting.route import ClusterInfo, RouteError, TopicRoute, parse_cluster_info, parse_topic_route

_ITEMS_MAX: Final = 10_000
TOPICS_MAX: Final = 200_000
CHANGE_TIMEOUT_MS: Final = 5_000
T = TypeVar("T")


class _Names(Body):
    topic_list: tuple[str, ...]


class NameServerSource:
    """Asks one name server. Everything raises AskError."""

    def __init__(self, gateway: Gateway, address: str) -> None:
        self._gateway = gateway
        self.address = address

    async def brokers(self) -> ClusterInfo:
        """106"""
        answer = await self._gateway.ask(self.address, RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            return parse_cluster_info(answer.body)
        except RouteError as error:
            raise AskError(self.address, f"its list of brokers cannot be read: {error}") from error

    async def route(self, topic: str) -> TopicRoute | None:
        """105: where it sends clients; None when it knows no such topic."""
        accept = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        answer = await self._gateway.ask(self.address, code, ext, accept=accept)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        try:
            return parse_topic_route(answer.body)
        except RouteError as error:
            problem = f"{self.address}: its route of {topic} cannot be read: {error}"
            raise AskError(self.address, problem) from error

    async def topics(self) -> tuple[str, ...]:
        """206: every topic's name."""
        answer = await self._gateway.ask(self.address, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        what = "list of topics"
        return check(self.address, read_json(self.address, answer.body, what), _Names, what).topic_list

    async def delete_route(self, topic: str) -> None:
        """216: it drops the route, so that clients find no broker for the topic."""
        code = RequestCode.DELETE_TOPIC_IN_NAMESRV
        await self._gateway.ask(self.address, code, {"topic": topic}, timeout_ms=CHANGE_TIMEOUT_MS)

    async def config(self) -> dict[str, str]:
        """319"""
        answer = await self._gateway.ask(self.address, RequestCode.GET_NAMESRV_CONFIG)
        try:
            return parse_properties_text(answer.body)
        except PropertiesTextError as error:
            raise AskError(self.address, f"its configuration cannot be read: {error}") from error

    async def configure(self, values: Mapping[str, str]) -> None:
        """318: all of these or none."""
        body = format_properties_text(values)
        await self._gateway.ask(self.address, RequestCode.UPDATE_NAMESRV_CONFIG, body=body)

    async def items(self, namespace: str) -> dict[str, str] | None:
        """219; None: there never was one."""
        code = RequestCode.GET_KVLIST_BY_NAMESPACE
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        ext = KvNamespaceRequestHeader(namespace).ext_fields()
        answer = await self._gateway.ask(self.address, code, ext, accept=accept)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        try:
            table = loads(answer.body)["table"]
        except (FastjsonError, KeyError, TypeError) as error:
            raise AskError(self.address, f"its items of {namespace} cannot be read: {error!r}") from error
        if not isinstance(table, dict) or len(table) > _ITEMS_MAX:
            raise AskError(self.address, f"its items of {namespace} are no table of at most {_ITEMS_MAX}")
        return {str(key): str(value) for key, value in table.items()}

    async def put(self, namespace: str, key: str, value: str) -> None:
        """100"""
        item = KvItemRequestHeader(namespace, key, value).ext_fields()
        await self._gateway.ask(self.address, RequestCode.PUT_KV_CONFIG, item)

    async def delete(self, namespace: str, key: str) -> None:
        """102"""
        item = KvKeyRequestHeader(namespace, key).ext_fields()
        await self._gateway.ask(self.address, RequestCode.DELETE_KV_CONFIG, item)

    async def allow_writes(self, broker_name: str, *, allow: bool) -> int:
        """205, 327: the number of topics whose permission changed."""
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER if allow else RequestCode.WIPE_WRITE_PERM_OF_BROKER
        ext = BrokerNameRequestHeader(broker_name).ext_fields()
        answer = await self._gateway.ask(self.address, code, ext)
        count = answer.ext_fields.get("addTopicCount" if allow else "wipeTopicCount", "")
        return int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0


class NameServersSource:
    """Asks all name servers at once. One that hangs costs the first ask its time-out, and later ones nothing:
    the gateway asks no silent address.
    """

    def __init__(self, gateway: Gateway, settings: Settings) -> None:
        self._gateway = gateway
        self._sources = {address: NameServerSource(gateway, address) for address in settings.name_servers}

    @property
    def addresses(self) -> tuple[str, ...]:
        """In the order of the settings."""
        return tuple(self._sources)

    async def ask_each(
        self, ask: Callable[[NameServerSource], Awaitable[T]], without: Collection[str] = ()
    ) -> Gathered[str, T]:
        """The answers by address, and who gave none. The addresses in `without` are not asked."""
        addresses = [address for address in self._sources if address not in without]
        return await self._gateway.ask_each(addresses, lambda address: ask(self._sources[address]))

    async def ask(self, ask: Callable[[NameServerSource], Awaitable[T]]) -> Gathered[str, T]:
        """At least one answer. Raises: AskError."""
        gathered = await self.ask_each(ask)
        if not gathered.answers:
            first, *others = gathered.troubles
            problem = "; ".join(trouble.problem for trouble in gathered.troubles)
            raise AskError(first.address, problem, None if others else first.code)
        return gathered

    async def brokers(self) -> list[ClusterInfo]:
        """The lists of those that answer. Raises: AskError."""
        return list((await self.ask(lambda server: server.brokers())).answers.values())

    async def route(self, topic: str) -> TopicRoute | None:
        """None when no one that answers knows the topic. Raises: AskError."""
        found = (await self.ask(lambda server: server.route(topic))).answers.values()
        routes = [route for route in found if route is not None]
        return merged_routes(routes) if routes else None

    async def topics(self) -> list[str]:
        """The names of all topics. Raises: AskError."""
        found = (await self.ask(lambda server: server.topics())).answers.values()
        return sorted({name for names in found for name in names})[:TOPICS_MAX]
