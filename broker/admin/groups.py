"""Groups and clients for operators: 200 create or update a group, 207 delete, 201 and 352 show, 203 and 204
connected clients, 208 how far a group has consumed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from broker.admin.attributes import GROUP_ATTRIBUTES, altered
from broker.config import BrokerConfig
from broker.consume.clients import ClientRegistry, Member
from broker.consume.offset_commits import OffsetCommits
from broker.leadership import OnLeader
from broker.monitoring.statistics import GROUP_GET, BrokerStatistics
from broker.responses import committed_answer, invalid, json_answer, message_queue, progress
from broker.state.changes import DeleteGroup, PutGroup
from broker.state.groups import SubscriptionGroupConfig
from broker.state.state import ReplicatedState
from broker.state.topics import ConfigFormatError, asked_queues_error
from commitlog.log import MessageLog
from dledger.server import DLedgerServer
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.fastjson import (
    FastjsonError,
    list_in_steps,
    loads_request,
    object_in_steps,
    object_key_map_in_steps,
)
from remoting.headers.admin import (
    ConsumeStatsRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GroupRequestHeader,
)
from remoting.headers.consume import ConsumerGroupRequestHeader, ProducerGroupRequestHeader
from remoting.router import HandlerResult, Handlers
from remoting.slices import Steps

ROWS_MAX: Final = 50_000
"""Queues in one answer: about 10 MB, and a frame holds 16."""
TOPICS_ASKED_MAX: Final = 10_000


def with_attributes(
    wanted: SubscriptionGroupConfig, known: SubscriptionGroupConfig | None
) -> SubscriptionGroupConfig:
    """The requested configuration; its attributes are read as changes of the existing ones. Raises
    RequestError.
    """
    if (queues_error := asked_queues_error(wanted.retry_queue_nums)) is not None:
        raise invalid(queues_error)
    made = altered(GROUP_ATTRIBUTES, known.attributes if known else None, wanted.attributes)
    return replace(wanted, attributes=made)


class GroupAdmin:
    """Answers operators' questions about groups and their clients."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        engine: DLedgerServer | None,
        state: ReplicatedState,
        clients: ClientRegistry,
        statistics: BrokerStatistics,
        commits: OffsetCommits,
        on_leader: OnLeader,
    ) -> None:
        self._on_leader = on_leader
        self._config = config
        self._log = log
        self._engine = engine
        self._statistics = statistics
        self._state = state
        self._clients = clients
        self._commits = commits

    def handlers(self) -> Handlers:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._on_leader(self.put_group),
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._on_leader(self.delete_group),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.one_group,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
        }

    def put_group(self, request: RemotingCommand, connection: Connection) -> HandlerResult:
        """200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP"""
        try:
            data = loads_request(request.body)
            if not isinstance(data, dict):
                raise invalid("the body is no subscription group")
            config = SubscriptionGroupConfig.from_json(data)
        except (FastjsonError, ConfigFormatError) as error:
            raise invalid(str(error)) from error
        config = with_attributes(config, self._state.groups.get(config.name))
        return committed_answer(request, self._state.propose(PutGroup(config)))

    def delete_group(self, request: RemotingCommand, connection: Connection) -> HandlerResult:
        """207 DELETE_SUBSCRIPTIONGROUP"""
        header = DeleteSubscriptionGroupRequestHeader.parse(request.ext_fields)
        change = DeleteGroup(header.group_name, header.clean_offset)
        return committed_answer(request, self._state.propose(change))

    def all_groups(self, request: RemotingCommand, connection: Connection) -> Steps[RemotingCommand]:
        """201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG"""
        version, term = self._state.groups_version, 0 if self._engine is None else self._engine.term
        groups = list(self._state.groups.items())
        table = yield from object_in_steps((name, each.to_json()) for name, each in groups)
        return json_answer(
            request,
            {
                "dataVersion": version.to_json(term),
                "forbiddenTable": {},
                "subscriptionGroupTable": table,
            },
        )

    def one_group(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """352 GET_SUBSCRIPTIONGROUP_CONFIG"""
        name = GroupRequestHeader.parse(request.ext_fields).group
        config = self._state.groups.get(name)
        if config is None:
            remark = f"subscription group [{name[:255]}] does not exist"
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return json_answer(request, config.to_json())

    def consumers(self, request: RemotingCommand, connection: Connection) -> Steps[RemotingCommand]:
        """203 GET_CONSUMER_CONNECTION_LIST"""
        name = ConsumerGroupRequestHeader.parse(request.ext_fields).consumer_group
        group = self._clients.consumer_groups.get(name)
        if group is None:
            remark = f"the consumer group[{name[:255]}] not online"
            raise RequestError(ResponseCode.CONSUMER_NOT_ONLINE, remark)
        members = yield from list_in_steps(map(_connection, list(group.members.values())))
        subscriptions = list(group.subscriptions.items())
        table = yield from object_in_steps((topic, each.to_json()) for topic, each in subscriptions)
        return json_answer(
            request,
            {
                "connectionSet": members,
                "consumeFromWhere": group.consume_from_where.name,
                "consumeType": group.consume_type.name,
                "messageModel": group.message_model.name,
                "subscriptionTable": table,
            },
        )

    def producers(self, request: RemotingCommand, connection: Connection) -> Steps[RemotingCommand]:
        """204 GET_PRODUCER_CONNECTION_LIST"""
        name = ProducerGroupRequestHeader.parse(request.ext_fields).producer_group
        members = self._clients.producer_groups.get(name)
        if not members:
            remark = f"the producer group[{name[:255]}] not exist"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        rows = yield from list_in_steps(map(_connection, list(members.values())))
        return json_answer(request, {"connectionSet": rows})

    def consume_stats(self, request: RemotingCommand, connection: Connection) -> Steps[RemotingCommand]:
        """208 GET_CONSUME_STATS"""
        header = ConsumeStatsRequestHeader.parse(request.ext_fields)
        group = header.consumer_group
        if header.topic_list.count(";") > TOPICS_ASKED_MAX:
            raise invalid(f"topicList names more than {TOPICS_ASKED_MAX} topics")
        topics = dict.fromkeys(header.topic_list.split(";") if header.topic_list else [header.topic])
        if list(topics) == [""]:
            topics = dict.fromkeys((yield from self._consumed_topics(group)))
        table = yield from object_key_map_in_steps(self._all_progress(group, topics))
        tps = 0.0
        for topic in topics:
            tps += self._statistics.tps(GROUP_GET, f"{topic}@{group}")
            yield
        return json_answer(request, {"consumeTps": tps, "offsetTable": table})

    def _consumed_topics(self, group_name: str) -> Steps[list[str]]:
        group = self._clients.consumer_groups.get(group_name)
        subscribed: Iterable[str] = () if group is None else group.subscriptions
        consumed = yield from self._state.offsets.topics_of(group_name)
        return sorted({*consumed, *subscribed})

    def _all_progress(
        self, group: str, topics: Iterable[str]
    ) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Raises RequestError when it does not fit into an answer."""
        rows = (row for topic in topics for row in self._progress(group, topic))
        for number, row in enumerate(rows):
            if number >= ROWS_MAX:
                remark = f"more than {ROWS_MAX} queues are consumed: ask for one topic at a time"
                raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
            yield row

    def _progress(self, group: str, topic: str) -> Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        config = self._state.topics.get(topic)
        log, broker_name = self._log, self._config.broker_name
        for queue_id in range(0 if config is None else config.read_queue_nums):
            offset = self._commits.current(group, topic, queue_id)
            yield message_queue(topic, broker_name, queue_id), progress(log, topic, queue_id, offset)


def _connection(member: Member) -> dict[str, Any]:
    client = member.client
    return {
        "clientAddr": f"{client.connection.remote_host}:{client.connection.remote_port}",
        "clientId": client.client_id,
        "language": client.language,
        "version": client.version,
    }
