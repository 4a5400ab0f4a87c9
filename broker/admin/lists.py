"""Many at once: 18 UPDATE_AND_CREATE_TOPIC_LIST, 225 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, and the names
that are the broker's own: 305 GET_SYSTEM_TOPIC_LIST_FROM_BROKER.

All of a list is checked before any of it is made; it is made in records of a bounded size.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.admin.attributes import TOPIC_ATTRIBUTES, altered
from broker.admin.groups import with_attributes
from broker.admin.topics import system_topic_error
from broker.leadership import OnLeader
from broker.responses import invalid, json_answer, put_error
from broker.state.changes import Change, PutGroup, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.state import ReplicatedState
from broker.state.topics import SYSTEM_TOPICS, ConfigFormatError, TopicConfig, asked_queues_error
from commitlog.log import PutStatus
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.fastjson import FastjsonError, loads_request
from remoting.router import Handlers
from remoting.topic_names import topic_name_error

LIST_MAX: Final = 800
"""Topics or groups in one request: they are checked and proposed in one piece."""
CHANGES_PER_PROPOSAL: Final = 50
"""What is proposed together must fit into one record of 1 MiB; proposals of one turn share records."""


class ListAdmin:
    """Creates or updates many at once."""

    def __init__(self, state: ReplicatedState, on_leader: OnLeader) -> None:
        self._on_leader = on_leader
        self._state = state

    def handlers(self) -> Handlers:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self._on_leader(self.put_topics),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self._on_leader(self.put_groups),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
        }

    async def put_topics(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """18"""
        configs = [self._topic(row) for row in _rows(request.body, "topicConfigList")]
        changes = [
            PutTopic(each)
            for each in configs
            if each != self._state.topics.get(each.name) or self._state.is_changing(each.name)
        ]
        return await self._commit(request, changes)

    def _topic(self, row: Mapping[str, Any]) -> TopicConfig:
        """A topic as the list has it; its attributes are changes of those there are."""
        try:
            config = TopicConfig.from_json({**row, "attributes": None})
        except ConfigFormatError as error:
            raise invalid(str(error)) from error
        error_text = (
            topic_name_error(config.name)
            or system_topic_error(config.name, self._state.static_topics)
            or asked_queues_error(config.read_queue_nums, config.write_queue_nums)
        )
        if error_text is not None:
            raise invalid(error_text)
        wanted = row.get("attributes") or {}
        if not isinstance(wanted, dict):
            raise invalid("attributes is not a table of texts")
        known = self._state.topics.get(config.name)
        changes = {str(key): str(value) for key, value in wanted.items()}
        attributes = altered(TOPIC_ATTRIBUTES, known.attributes if known else None, changes)
        return TopicConfig.from_json({**config.to_json(), "attributes": attributes})

    async def put_groups(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """225"""
        try:
            rows = _rows(request.body, "groupConfigList")
            configs = [self._group(SubscriptionGroupConfig.from_json(row)) for row in rows]
        except ConfigFormatError as error:
            raise invalid(str(error)) from error
        changes = [PutGroup(each) for each in configs if each != self._state.groups.get(each.name)]
        return await self._commit(request, changes)

    def _group(self, wanted: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        return with_attributes(wanted, self._state.groups.get(wanted.name))

    async def _commit(self, request: RemotingCommand, changes: Sequence[Change]) -> RemotingCommand:
        starts = range(0, len(changes), CHANGES_PER_PROPOSAL)
        proposed = [self._state.propose(*changes[start : start + CHANGES_PER_PROPOSAL]) for start in starts]
        for status in await asyncio.gather(*proposed):
            if status is not PutStatus.PUT_OK:
                raise RequestError(*put_error(status))
        return success_response(request)

    def system_topics(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """305"""
        own = {*SYSTEM_TOPICS, *self._state.static_topics}
        return json_answer(request, {"topicList": sorted(own)})


def _rows(body: bytes, key: str) -> list[Mapping[str, Any]]:
    try:
        data = loads_request(body)
    except FastjsonError as error:
        raise invalid(f"the body is not JSON: {error}") from error
    rows = data.get(key) if isinstance(data, dict) else None
    if not isinstance(rows, list) or len(rows) > LIST_MAX or not all(isinstance(row, dict) for row in rows):
        raise invalid(f"the body has no {key} of at most {LIST_MAX}")
    return rows
