"""Topics for operators: 17 create or update, 215 delete, 21 and 351 show, 202 the bounds of a topic's queues.

A deleted topic loses its configuration, its messages, and the offsets that groups have in it. The log holds
the messages until their files are deleted, but a topic created again with the same name is empty and begins
at offset 0.
"""

from collections.abc import Container
from typing import Any, Final

import orjson

from broker.admin.attributes import TOPIC_ATTRIBUTES, altered, parse_changes
from broker.config import BrokerConfig
from broker.leadership import OnLeader
from broker.monitoring.statistics import TOPIC_PUT, BrokerStatistics
from broker.responses import committed_answer, invalid, json_answer, message_queue, store_timestamp_ms
from broker.state.changes import DeleteTopic, PutTopic
from broker.state.state import ReplicatedState
from broker.state.topics import (
    QUEUE_NUMS_ASKED_MAX,
    ConfigFormatError,
    DataVersion,
    EncodedTopics,
    TopicConfig,
    asked_queues_error,
    check_topic_config,
    is_system_topic,
)
from commitlog.log import MessageLog
from dledger.server import DLedgerServer
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.fastjson import object_key_map_in_steps
from remoting.headers.admin import CreateTopicRequestHeader
from remoting.headers.topics import TopicRequestHeader
from remoting.router import HandlerResult, Handlers
from remoting.slices import Steps
from remoting.topic_names import topic_name_error

TOPICS_AT_ONCE_MAX: Final = 500


class TopicAdmin:
    """Answers operators' questions about topics."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        engine: DLedgerServer | None,
        state: ReplicatedState,
        statistics: BrokerStatistics,
        on_leader: OnLeader,
    ) -> None:
        self._on_leader = on_leader
        self._config = config
        self._log = log
        self._engine = engine
        self._statistics = statistics
        self._state = state
        self._encoded = EncodedTopics()
        self._all_topics: tuple[DataVersion, int, bytes] | None = None

    def handlers(self) -> Handlers:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._on_leader(self.put_topic),
            RequestCode.DELETE_TOPIC_IN_BROKER: self._on_leader(self.delete_topic),
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_TOPIC_CONFIG: self.one_topic,
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
        }

    def put_topic(self, request: RemotingCommand, connection: Connection) -> HandlerResult:
        """17 UPDATE_AND_CREATE_TOPIC"""
        header = CreateTopicRequestHeader.parse(request.ext_fields)
        self._check_name(header.topic)
        known = self._state.topics.get(header.topic)
        attributes = {} if known is None else known.attributes
        if header.attributes:
            changes = parse_changes(header.attributes)
            attributes = altered(TOPIC_ATTRIBUTES, None if known is None else attributes, changes)
        config = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag,
            header.order,
            attributes,
        )
        try:
            check_topic_config(config)
        except ConfigFormatError as error:
            raise invalid(str(error)) from error
        if max(config.read_queue_nums, config.write_queue_nums) > QUEUE_NUMS_ASKED_MAX:
            raise invalid(str(asked_queues_error(config.read_queue_nums, config.write_queue_nums)))
        if config == known and not self._state.is_changing(config.name):
            return success_response(request)
        return committed_answer(request, self._state.propose(PutTopic(config)))

    def delete_topic(self, request: RemotingCommand, connection: Connection) -> HandlerResult:
        """215 DELETE_TOPIC_IN_BROKER"""
        topic = TopicRequestHeader.parse(request.ext_fields).topic
        self._check_name(topic)
        return committed_answer(request, self._state.propose(DeleteTopic(topic)))

    def _check_name(self, topic: str) -> None:
        error = topic_name_error(topic)
        if error is not None:
            raise invalid(error)
        error = system_topic_error(topic, self._state.static_topics)
        if error is not None:
            raise invalid(error)

    def all_topics(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand | Steps[RemotingCommand]:
        """21 GET_ALL_TOPIC_CONFIG: the encoded body is kept until the table changes: encoding thousands of
        topics blocks the event loop, and dashboards ask every few seconds.
        """
        if len(self._state.topics) > TOPICS_AT_ONCE_MAX:
            return self._all_topics_in_steps(request)
        return self._show_all_topics(request)

    def _all_topics_in_steps(self, request: RemotingCommand) -> Steps[RemotingCommand]:
        yield from self._encoded.prepare(self._state.topics)
        return self._show_all_topics(request)

    def _show_all_topics(self, request: RemotingCommand) -> RemotingCommand:
        version, term = self._state.data_version, self._term()
        if self._all_topics is None or self._all_topics[:2] != (version, term):
            table = self._encoded.table(self._state.topics)
            body = b'{"dataVersion":%s,"topicConfigTable":%s}' % (orjson.dumps(version.to_json(term)), table)
            self._all_topics = version, term, body
        return success_response(request, body=self._all_topics[2])

    def one_topic(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """351 GET_TOPIC_CONFIG"""
        return json_answer(request, self._known(request).to_json())

    def topic_stats(self, request: RemotingCommand, connection: Connection) -> Steps[RemotingCommand]:
        """202 GET_TOPIC_STATS_INFO"""
        topic, broker_name = self._known(request), self._config.broker_name
        rows = (
            (message_queue(topic.name, broker_name, queue_id), self._bounds(topic, queue_id))
            for queue_id in range(topic.queue_nums)
        )
        table = yield from object_key_map_in_steps(rows)
        tps = self._statistics.tps(TOPIC_PUT, topic.name)
        return json_answer(request, {"offsetTable": table, "topicPutTps": tps})

    def _bounds(self, topic: TopicConfig, queue_id: int) -> dict[str, Any]:
        log = self._log
        queue = log.queues.get(topic.name, queue_id)
        if queue is None:
            return {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}
        last_ms = store_timestamp_ms(log, topic.name, queue_id, queue.max_offset - 1)
        return {"lastUpdateTimestamp": last_ms, "maxOffset": queue.max_offset, "minOffset": queue.min_offset}

    def _known(self, request: RemotingCommand) -> TopicConfig:
        name = TopicRequestHeader.parse(request.ext_fields).topic
        topic = self._state.topics.get(name)
        if topic is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:127]}] not exist")
        return topic

    def _term(self) -> int:
        return 0 if self._engine is None else self._engine.term


def system_topic_error(topic: str, static_topics: Container[str]) -> str | None:
    """Why operators may not change or delete the topic, if it is one of the broker's own."""
    if is_system_topic(topic) or topic in static_topics:
        return f"The topic[{topic}] is conflict with system topic."
    return None
