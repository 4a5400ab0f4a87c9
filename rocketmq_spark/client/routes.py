"""What several name servers say, read and put together. Pure."""

from collections.abc import Sequence

from remoting.command import RemotingCommand
from remoting.fastjson import FastjsonError, loads
from remoting.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    RouteError,
    TopicRoute,
    parse_cluster_info,
    parse_topic_route,
)
from rocketmq_spark.errors import RequestRefusedError


def merged_routes(routes: Sequence[TopicRoute]) -> TopicRoute:
    """Everything that one of the name servers knows. Of a broker that several know, the first with a leader
    counts, and the most queues.
    """
    queues: dict[str, QueueData] = {}
    for data in (data for route in routes for data in route.queue_datas):
        known = queues.get(data.broker_name)
        if known is None or data.read_queue_nums > known.read_queue_nums:
            queues[data.broker_name] = data
    brokers = _merged_brokers([broker for route in routes for broker in route.broker_datas])
    return TopicRoute(tuple(queues.values()), tuple(brokers.values()), routes[0].order_topic_conf)


def merged_cluster_infos(infos: Sequence[ClusterInfo]) -> ClusterInfo:
    """Everything that one of the name servers knows, as `merged_routes`."""
    clusters: dict[str, dict[str, None]] = {}
    for info in infos:
        for cluster, names in info.clusters.items():
            clusters.setdefault(cluster, {}).update(dict.fromkeys(names))
    brokers = _merged_brokers([broker for info in infos for broker in info.brokers.values()])
    return ClusterInfo(brokers, {cluster: tuple(names) for cluster, names in clusters.items()})


def _merged_brokers(brokers: Sequence[BrokerData]) -> dict[str, BrokerData]:
    found: dict[str, BrokerData] = {}
    for broker in brokers:
        known = found.get(broker.broker_name)
        if known is None or (known.master_addr is None and broker.master_addr is not None):
            found[broker.broker_name] = broker
    return found


def topic_names(answer: RemotingCommand) -> list[str]:
    """The topics of an answer to 206. Raises RequestRefusedError."""
    try:
        return [str(name) for name in loads(answer.body).get("topicList") or ()]
    except (FastjsonError, AttributeError, TypeError) as error:
        raise RequestRefusedError("the list of topics", answer.code, f"unreadable: {error!r}") from None


def cluster_info_of(answer: RemotingCommand) -> ClusterInfo:
    """What an answer to 106 describes. Raises RequestRefusedError."""
    try:
        return parse_cluster_info(answer.body)
    except RouteError as error:
        raise RequestRefusedError("the cluster's description", answer.code, str(error)) from None


def route_of(answer: RemotingCommand, topic: str) -> TopicRoute:
    """What an answer to 105 describes. Raises RequestRefusedError."""
    try:
        return parse_topic_route(answer.body)
    except RouteError as error:
        raise RequestRefusedError(f"the route of {topic}", answer.code, str(error)) from None
