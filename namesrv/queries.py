"""Requests of clients and administrators for routes, clusters and topics, and administrators' changes of
topics.
"""

from typing import Final

import orjson

from namesrv.config import ORDER_TOPIC_NAMESPACE, KvConfig, NameServerSwitches
from namesrv.route_info import UNIT_FLAG, UNIT_SUB_FLAG, RouteInfoManager, TablesFullError
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, error_response, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.headers.namesrv import (
    BrokerNameRequestHeader,
    ClusterRequestHeader,
    DeleteTopicRequestHeader,
)
from remoting.headers.topics import TopicRequestHeader
from remoting.route import RouteError, TopicRoute, format_cluster_info, format_topic_route, parse_topic_route
from remoting.router import Router
from remoting.slices import Steps

ROUTE_BYTES_MAX: Final = 128 * 1024
"""Of a route that an administrator or a broker adds."""


class QueryProcessor:
    """Answers 105, 106, 205, 206, 216, 217, 224, 304, 311, 312, 313 and 327."""

    def __init__(self, tables: RouteInfoManager, kv_config: KvConfig, switches: NameServerSwitches) -> None:
        self._tables = tables
        self._kv_config = kv_config
        self._switches = switches

    def register(self, router: Router) -> None:
        """Enter the handlers."""
        router.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self.route)
        router.register(RequestCode.GET_BROKER_CLUSTER_INFO, self.cluster_info)
        router.register(RequestCode.WIPE_WRITE_PERM_OF_BROKER, self.wipe_write_perm)
        router.register(RequestCode.ADD_WRITE_PERM_OF_BROKER, self.add_write_perm)
        router.register(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, self.all_topics)
        router.register(RequestCode.DELETE_TOPIC_IN_NAMESRV, self.delete_topic)
        router.register(RequestCode.REGISTER_TOPIC_IN_NAMESRV, self.register_topic)
        router.register(RequestCode.GET_TOPICS_BY_CLUSTER, self.topics_of_cluster)
        router.register(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, self.system_topics)
        router.register(RequestCode.GET_UNIT_TOPIC_LIST, self.unit_topics)
        router.register(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, self.unit_sub_topics)
        router.register(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, self.unit_sub_not_unit_topics)

    def route(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """105 GET_ROUTEINFO_BY_TOPIC."""
        topic = TopicRequestHeader.parse(request.ext_fields).topic
        route = self._tables.route(topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {topic}"
            return error_response(request, ResponseCode.TOPIC_NOT_EXIST, remark)
        if self._switches.order_message_enable:
            order = self._kv_config.get(ORDER_TOPIC_NAMESPACE, topic)
            route = TopicRoute(route.queue_datas, route.broker_datas, order)
        return success_response(request, body=format_topic_route(route))

    def cluster_info(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """106 GET_BROKER_CLUSTER_INFO."""
        return success_response(request, body=format_cluster_info(self._tables.cluster_info()))

    def wipe_write_perm(self, request: RemotingCommand, _: Connection) -> Steps[RemotingCommand]:
        """205 WIPE_WRITE_PERM_OF_BROKER."""
        header = BrokerNameRequestHeader.parse(request.ext_fields)
        count = yield from self._tables.set_writable(header.broker_name, is_writable=False)
        return success_response(request, {"wipeTopicCount": str(count)})

    def add_write_perm(self, request: RemotingCommand, _: Connection) -> Steps[RemotingCommand]:
        """327 ADD_WRITE_PERM_OF_BROKER."""
        header = BrokerNameRequestHeader.parse(request.ext_fields)
        count = yield from self._tables.set_writable(header.broker_name, is_writable=True)
        return success_response(request, {"addTopicCount": str(count)})

    def all_topics(self, request: RemotingCommand, _: Connection) -> Steps[RemotingCommand]:
        """206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
        return _topic_list(request, (yield from self._tables.topics()))

    def delete_topic(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """216 DELETE_TOPIC_IN_NAMESRV."""
        header = DeleteTopicRequestHeader.parse(request.ext_fields)
        self._tables.delete_topic(header.topic, header.cluster_name or None)
        return success_response(request)

    def register_topic(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """217 REGISTER_TOPIC_IN_NAMESRV: the body is a route."""
        topic = TopicRequestHeader.parse(request.ext_fields).topic
        try:
            if len(request.body) > ROUTE_BYTES_MAX:
                raise RouteError(f"a route of {len(request.body)} bytes; {ROUTE_BYTES_MAX} are possible")
            route = parse_topic_route(request.body)
            self._tables.add_topic(topic, route.queue_datas)
        except (RouteError, TablesFullError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return success_response(request)

    def topics_of_cluster(self, request: RemotingCommand, _: Connection) -> Steps[RemotingCommand]:
        """224 GET_TOPICS_BY_CLUSTER."""
        cluster = ClusterRequestHeader.parse(request.ext_fields).cluster
        return _topic_list(request, (yield from self._tables.topics_of_cluster(cluster)))

    def system_topics(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """304 GET_SYSTEM_TOPIC_LIST_FROM_NS: cluster and broker names, which are topics too, and a broker
        with the other ones.
        """
        info = self._tables.cluster_info()
        addrs = [addr for broker in info.brokers.values() for addr in broker.broker_addrs.values()]
        return _topic_list(request, [*info.clusters, *info.brokers], addrs[0] if addrs else None)

    def unit_topics(self, request: RemotingCommand, _: Connection) -> Steps[RemotingCommand]:
        """311 GET_UNIT_TOPIC_LIST."""
        return _topic_list(request, (yield from self._tables.topics_with_flags(UNIT_FLAG)))

    def unit_sub_topics(self, request: RemotingCommand, _: Connection) -> Steps[RemotingCommand]:
        """312 GET_HAS_UNIT_SUB_TOPIC_LIST."""
        return _topic_list(request, (yield from self._tables.topics_with_flags(UNIT_SUB_FLAG)))

    def unit_sub_not_unit_topics(self, request: RemotingCommand, _: Connection) -> Steps[RemotingCommand]:
        """313 GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST."""
        return _topic_list(request, (yield from self._tables.topics_with_flags(UNIT_SUB_FLAG, UNIT_FLAG)))


def _topic_list(
    request: RemotingCommand, topics: list[str], broker_addr: str | None = None
) -> RemotingCommand:
    body: dict[str, object] = {"topicList": topics}
    if broker_addr is not None:
        body["brokerAddr"] = broker_addr
    return success_response(request, body=orjson.dumps(body))
