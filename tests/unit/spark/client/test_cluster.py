"""Name servers and leaders, over real sockets: whoever is away, somebody else is asked."""

from __future__ import annotations

import socket
from collections.abc import Callable

import orjson
import pytest

from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
    format_cluster_info,
    format_topic_route,
)
from rocketmq_spark.client.cluster import Cluster, QueueBounds
from rocketmq_spark.client.queue_offsets import (
    bounds,
    commit_consumer_offsets,
    consumer_offset,
    max_offset,
    search_offset,
)
from rocketmq_spark.errors import (
    ClusterUnavailableError,
    OptionError,
    RequestRefusedError,
    TopicNotFoundError,
)
from tests.unit.spark.client.conftest import Clock
from tests.unit.spark.client.server import Answer, Server, reply

Serve = Callable[[Answer], Server]
Answers = list[RemotingCommand | bytes | None]
QUEUE = MessageQueue("T", "broker-a", 0)


class NameServer:
    """Answers with what the test puts here."""

    def __init__(self) -> None:
        self.leader: str | None = None
        self.topics = ["T"]
        self.queue_datas: tuple[QueueData, ...] = (
            QueueData("broker-a", 3, 2, 6),
            QueueData("broker-b", 1, 1, 2),
        )

    def answer(self, request: RemotingCommand) -> Answers:
        addresses = {} if self.leader is None else {0: self.leader}
        brokers = (BrokerData("C", "broker-a", {**addresses, 1: "127.0.0.1:1"}),)
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            info = ClusterInfo({"broker-a": brokers[0]}, {"C": ("broker-a",)})
            return [reply(request, body=format_cluster_info(info))]
        if request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return [reply(request, body=orjson.dumps({"topicList": self.topics}))]
        if request.ext_fields["topic"] not in self.topics:
            return [reply(request, ResponseCode.TOPIC_NOT_EXIST)]
        return [reply(request, body=format_topic_route(TopicRoute(self.queue_datas, brokers)))]


def gone() -> str:
    """An address where nobody listens any more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def offset_7(request: RemotingCommand) -> Answers:
    return [reply(request, offset="7")]


def test_names_need_a_name_server() -> None:
    with pytest.raises(OptionError, match="namesrv"):
        Cluster(" ; ")


def test_readable_and_writable_queues(serve: Serve) -> None:
    names = NameServer()
    with Cluster(serve(names.answer).address) as cluster:
        assert cluster.queues("T") == [MessageQueue("T", "broker-a", number) for number in range(3)]
        assert cluster.write_queues("T") == [
            MessageQueue("T", "broker-a", 0),
            MessageQueue("T", "broker-a", 1),
            MessageQueue("T", "broker-b", 0),
        ]
        with pytest.raises(TopicNotFoundError, match="no topic Other"):
            cluster.queues("Other")
        names.queue_datas = ()
        assert len(cluster.queues("T")) == 3
        cluster.refresh()
        assert cluster.queues("T") == []


def test_only_users_topics_are_listed(serve: Serve) -> None:
    names = NameServer()
    own = ["TBW102", "%RETRY%g", "%DLQ%g", "rmq_sys_x", "C", "C_REPLY_TOPIC", "broker-a"]
    names.topics = ["Users", *own, "Another", "X_REPLY_TOPIC"]
    with Cluster(serve(names.answer).address) as cluster:
        assert cluster.topics() == ["Another", "Users", "X_REPLY_TOPIC"]
        assert cluster.topics(include_system=True) == sorted(names.topics)


def test_the_next_name_server_is_asked(serve: Serve, clock: Clock) -> None:
    with Cluster(f"{gone()};{serve(NameServer().answer).address}") as cluster:
        assert len(cluster.queues("T")) == 3
    assert clock.now_s == 0


def test_a_name_server_that_knows_less_is_not_believed(serve: Serve) -> None:
    empty = NameServer()
    empty.topics = []
    with Cluster(f"{serve(empty.answer).address};{serve(NameServer().answer).address}") as cluster:
        assert len(cluster.queues("T")) == 3
        with pytest.raises(TopicNotFoundError):
            cluster.queues("Other")


def test_what_any_name_server_knows_is_there(serve: Serve) -> None:
    """One that has just started knows one broker; the other, which lags, no leader of it."""
    started, lagging = NameServer(), NameServer()
    started.topics, lagging.topics = ["T", "New"], ["T", "Old"]
    started.leader = "127.0.0.1:9"
    started.queue_datas = (QueueData("broker-a", 2, 2, 6),)
    lagging.queue_datas = (QueueData("broker-a", 3, 3, 6), QueueData("broker-b", 1, 1, 6))
    with Cluster(f"{serve(started.answer).address};{serve(lagging.answer).address}") as cluster:
        assert [str(queue) for queue in cluster.queues("T")] == [
            *(f"T/broker-a:{number}" for number in range(3)),
            "T/broker-b:0",
        ]
        assert cluster.topics() == ["New", "Old", "T"]
        assert cluster.leader("broker-a") == "127.0.0.1:9"
        assert cluster.cluster_info().brokers["broker-a"].master_addr == "127.0.0.1:9"


def test_leaders_are_known_while_no_name_server_answers(serve: Serve, clock: Clock) -> None:
    """Also one whose connection breaks meanwhile."""
    names = NameServer()
    leader = serve(lambda request: [None] if len(leader.requests) == 2 else [reply(request, offset="7")])
    names.leader = leader.address
    name_server = serve(names.answer)
    with Cluster(name_server.address) as cluster:
        assert len(cluster.queues("T")) == 3
        assert max_offset(cluster, QUEUE) == 7
        name_server.close()
        cluster.refresh()
        assert max_offset(cluster, QUEUE) == 7
        assert len(leader.requests) == 3
        waited_s = clock.now_s
        cluster.namesrv_deadline_s = 0.0
        with pytest.raises(ClusterUnavailableError):
            cluster.queues("T")
        assert clock.now_s == waited_s


def test_a_supposed_leader_needs_no_name_server(serve: Serve) -> None:
    with Cluster(gone()) as cluster:
        cluster.suppose_leader("broker-a", serve(offset_7).address)
        assert max_offset(cluster, QUEUE) == 7


def test_no_name_server_is_told_with_what_was_tried(clock: Clock) -> None:
    address = gone()
    with Cluster(address) as cluster, pytest.raises(ClusterUnavailableError) as caught:
        cluster.queues("T")
    assert "name server request GET_ROUTEINFO_BY_TOPIC" in str(caught.value)
    assert address in str(caught.value)
    assert clock.now_s <= 10.0


def test_a_new_leader_is_found(serve: Serve, clock: Clock) -> None:
    """The old one is gone; the name server names it still, then nobody, then a follower, then the new."""
    names = NameServer()
    follower = serve(lambda request: [reply(request, ResponseCode.SERVICE_NOT_AVAILABLE)])
    closing = serve(lambda request: [None])
    new = serve(offset_7)
    steps = iter([gone(), gone(), None, follower.address, closing.address, new.address])

    def answer(request: RemotingCommand) -> Answers:
        names.leader = next(steps, new.address)
        return names.answer(request)

    with Cluster(serve(answer).address) as cluster:
        assert max_offset(cluster, QUEUE) == 7
        assert (len(follower.requests), len(closing.requests), len(new.requests)) == (1, 1, 1)
        assert 0 < clock.now_s < 5
        waited_s = clock.now_s
        assert max_offset(cluster, QUEUE) == 7
        assert clock.now_s == waited_s


def test_a_busy_leader_is_asked_again_on_the_same_connection(serve: Serve, clock: Clock) -> None:
    codes = [ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL, ResponseCode.SUCCESS]
    leader = serve(lambda request: [reply(request, codes[len(leader.requests) - 1], offset="3")])
    names = NameServer()
    names.leader = leader.address
    with Cluster(serve(names.answer).address) as cluster:
        connection = cluster.leader_connection("broker-a")
        assert max_offset(cluster, QUEUE) == 3
        assert cluster.leader_connection("broker-a") is connection


def test_many_questions_are_answered_in_order_across_a_failure(serve: Serve, clock: Clock) -> None:
    names = NameServer()
    leader = serve(lambda request: answer(request))
    names.leader = leader.address

    def answer(request: RemotingCommand) -> Answers:
        if len(leader.requests) == 100:
            return [None]
        number = request.ext_fields["queueId"]
        is_max = request.code == RequestCode.GET_MAX_OFFSET
        return [reply(request, offset=f"{number}00" if is_max else number)]

    queues = [MessageQueue("T", "broker-a", number) for number in range(150)]
    with Cluster(serve(names.answer).address) as cluster:
        found = bounds(cluster, queues)
    assert found == {queue: QueueBounds(queue.queue_id, queue.queue_id * 100) for queue in queues}


def test_consumer_offsets(serve: Serve) -> None:
    stored: dict[str, str] = {}

    def answer(request: RemotingCommand) -> Answers:
        ext = request.ext_fields
        key = f"{ext['consumerGroup']}@{ext['topic']}@{ext['queueId']}"
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            stored[key] = ext["commitOffset"]
            return [reply(request)]
        known = stored.get(key)
        if known is None:
            return [reply(request, ResponseCode.QUERY_NOT_FOUND)]
        return [reply(request, offset=known)]

    names = NameServer()
    names.leader = serve(answer).address
    with Cluster(serve(names.answer).address) as cluster:
        assert consumer_offset(cluster, "g", QUEUE) is None
        commit_consumer_offsets(cluster, "g", {QUEUE: 12, MessageQueue("T", "broker-a", 1): 4})
        assert consumer_offset(cluster, "g", QUEUE) == 12
    assert stored == {"g@T@0": "12", "g@T@1": "4"}


@pytest.mark.parametrize("may_be_made", [True, False])
def test_a_group_that_is_not_there_is_made_by_a_pull(serve: Serve, may_be_made: bool) -> None:
    """Brokers refuse the offsets of a group they do not know."""
    groups: set[str] = set()
    stored: dict[str, str] = {}

    def answer(request: RemotingCommand) -> Answers:
        ext = request.ext_fields
        if request.code == RequestCode.PULL_MESSAGE:
            groups.update({ext["consumerGroup"]} if may_be_made else ())
            return [reply(request, ResponseCode.PULL_NOT_FOUND)]
        if ext["consumerGroup"] not in groups:
            return [reply(request, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)]
        stored[ext["queueId"]] = ext["commitOffset"]
        return [reply(request)]

    names = NameServer()
    names.leader = serve(answer).address
    offsets = {QUEUE: 12, MessageQueue("T", "broker-a", 1): 4}
    with Cluster(serve(names.answer).address) as cluster:
        if may_be_made:
            commit_consumer_offsets(cluster, "g", offsets)
            assert stored == {"0": "12", "1": "4"}
        else:
            with pytest.raises(RequestRefusedError, match="with code 26"):
                commit_consumer_offsets(cluster, "g", offsets)


def test_refusals_and_unreadable_answers_are_told(serve: Serve) -> None:
    codes = [ResponseCode.NO_PERMISSION, ResponseCode.SUCCESS]
    leader = serve(lambda request: [reply(request, codes.pop(0))])
    names = NameServer()
    names.leader = leader.address
    with Cluster(serve(names.answer).address) as cluster:
        with pytest.raises(RequestRefusedError, match=r"GET_MAX_OFFSET of T/broker-a:0 .* with code 16"):
            max_offset(cluster, QUEUE)
        with pytest.raises(RequestRefusedError, match="offset is unreadable"):
            search_offset(cluster, QUEUE, 5)
