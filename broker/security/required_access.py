"""Which access each request needs, as RocketMQ's `DefaultAuthorizationContextBuilder` and the annotations of
its header classes say it. Pure.

RocketMQ lets every user send the requests that it has no rule for, broker settings among them, and believes
the names in a request where others count. Here such a request needs the right to the cluster, and the names
are those that the handler will use.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from broker.security.decisions import Access
from broker.state.access import Action, ResourceType
from remoting.codes import RequestCode as Code
from remoting.command import RemotingCommand
from remoting.errors import HeaderError
from remoting.fastjson import FastjsonError, loads_request
from remoting.headers.send import SendRequest
from remoting.topic_names import DLQ_PREFIX, RETRY_PREFIX

_PUB, _SUB = (Action.PUB,), (Action.SUB,)
_GET, _UPDATE = (Action.GET,), (Action.UPDATE,)
_SUB_OR_GET = (Action.SUB, Action.GET)
_SUB_OR_UPDATE = (Action.SUB, Action.UPDATE)

_Fields = tuple[str, ...]
_NAMED: Final[Mapping[int, tuple[tuple[Action, ...], _Fields, _Fields]]] = {
    Code.PULL_MESSAGE: (_SUB, ("topic",), ("consumerGroup",)),
    Code.LITE_PULL_MESSAGE: (_SUB, ("topic",), ("consumerGroup",)),
    Code.QUERY_MESSAGE: (_SUB_OR_GET, ("topic",), ()),
    Code.QUERY_CONSUMER_OFFSET: (_SUB_OR_GET, ("topic",), ("consumerGroup",)),
    Code.UPDATE_CONSUMER_OFFSET: (_SUB_OR_UPDATE, ("topic",), ("consumerGroup",)),
    Code.UPDATE_AND_CREATE_TOPIC: ((Action.CREATE,), ("topic",), ()),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: (_GET, ("topic",), ()),
    Code.GET_MAX_OFFSET: (_GET, ("topic",), ()),
    Code.GET_MIN_OFFSET: (_GET, ("topic",), ()),
    Code.GET_EARLIEST_MSG_STORETIME: (_GET, ("topic",), ()),
    Code.VIEW_MESSAGE_BY_ID: (_GET, ("topic",), ()),
    Code.UNREGISTER_CLIENT: (_SUB, (), ("consumerGroup",)),
    Code.CONSUMER_SEND_MSG_BACK: (_SUB, (), ("group",)),
    Code.END_TRANSACTION: (_PUB, ("topic",), ()),
    Code.GET_CONSUMER_LIST_BY_GROUP: (_SUB_OR_GET, (), ("consumerGroup",)),
    Code.GET_TOPIC_STATS_INFO: (_GET, ("topic",), ()),
    Code.GET_CONSUMER_CONNECTION_LIST: (_GET, (), ("consumerGroup",)),
    Code.DELETE_SUBSCRIPTIONGROUP: ((Action.DELETE,), (), ("groupName",)),
    Code.GET_CONSUME_STATS: (_GET, ("topic", "topicList"), ("consumerGroup",)),
    Code.DELETE_TOPIC_IN_BROKER: ((Action.DELETE,), ("topic",), ()),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: (_UPDATE, ("topic",), ("group",)),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (_GET, ("topic",), ("group",)),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: (_GET, ("topic",), ()),
    Code.QUERY_CONSUME_TIME_SPAN: (_GET, ("topic",), ("group",)),
    Code.GET_CONSUMER_RUNNING_INFO: (_GET, (), ("consumerGroup",)),
    Code.QUERY_CORRECTION_OFFSET: (_GET, ("topic",), ("compareGroup", "filterGroups")),
    Code.CONSUME_MESSAGE_DIRECTLY: (_SUB, ("topic",), ("consumerGroup",)),
    Code.CLONE_GROUP_OFFSET: (_UPDATE, ("topic",), ("srcGroup", "destGroup")),
    Code.QUERY_CONSUME_QUEUE: (_GET, ("topic",), ("consumerGroup",)),
    Code.RESUME_CHECK_HALF_MESSAGE: (_UPDATE, ("topic",), ()),
    Code.QUERY_TOPICS_BY_CONSUMER: (_GET, (), ("group",)),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: (_GET, ("topic",), ("group",)),
    Code.GET_TOPIC_CONFIG: (_GET, ("topic",), ()),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: (_GET, (), ("group",)),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: (_UPDATE, ("topic",), ("group",)),
    Code.RECALL_MESSAGE: (_PUB, ("topic",), ()),
    Code.LEDGERMQ_SEND_SEQUENCED: (_PUB, ("topic",), ()),
    Code.POP_MESSAGE: (_SUB, ("topic",), ("consumerGroup",)),
    Code.ACK_MESSAGE: (_SUB, ("topic",), ("consumerGroup",)),
    Code.PEEK_MESSAGE: (_SUB, ("topic",), ("consumerGroup",)),
    Code.CHANGE_MESSAGE_INVISIBLETIME: (_SUB, ("topic",), ("consumerGroup",)),
    Code.NOTIFICATION: (_SUB, ("topic",), ("consumerGroup",)),
    Code.POLLING_INFO: (_GET, ("topic",), ("consumerGroup",)),
}
"""The actions, and the fields with names of topics and groups; a field that is not there counts for none."""
_SEPARATORS: Final = {"topicList": ";", "filterGroups": ","}
_MAY_NAME_NOTHING: Final = frozenset({Code.UNREGISTER_CLIENT, Code.END_TRANSACTION})
"""A producer's clients name no group, those of version 4 no topic. Any other of _NAMED that names nothing
needs the right to the cluster: VIEW_MESSAGE_BY_ID reads a message of whatever topic then.
"""
_RETRIES_BY_GROUP: Final = frozenset({Code.ACK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME})
"""Where a message was delivered again they name the retry topic of group and topic: the group's does."""
_OF_EVERY_USER: Final = frozenset(
    {
        Code.CHECK_CLIENT_CONFIG,
        Code.SEND_REPLY_MESSAGE,
        Code.SEND_REPLY_MESSAGE_V2,
        Code.LEDGERMQ_END_BATCH,
    }
)
"""What clients send in their course, and nothing can be read or changed by that belongs to another."""
_CLUSTER_READS: Final = frozenset(
    {
        Code.GET_ALL_TOPIC_CONFIG,
        Code.GET_BROKER_CONFIG,
        Code.GET_BROKER_RUNTIME_INFO,
        Code.GET_ALL_CONSUMER_OFFSET,
        Code.GET_ALL_DELAY_OFFSET,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Code.GET_PRODUCER_CONNECTION_LIST,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        Code.VIEW_BROKER_STATS_DATA,
        Code.GET_BROKER_CONSUME_STATS,
        Code.GET_ALL_PRODUCER_INFO,
        Code.GET_ALL_MESSAGE_REQUEST_MODE,
        Code.GET_BROKER_MEMBER_GROUP,
        Code.GET_BROKER_HA_STATUS,
        Code.CONTROLLER_GET_METADATA_INFO,
        Code.CONTROLLER_GET_SYNC_STATE_DATA,
        Code.GET_BROKER_EPOCH_CACHE,
        Code.GET_CONTROLLER_CONFIG,
        Code.GET_COLD_DATA_FLOW_CTR_INFO,
        Code.GET_TIMER_CHECK_POINT,
        Code.GET_TIMER_METRICS,
        Code.GET_TOPICS_BY_CLUSTER,
        Code.VIEW_MESSAGE_BY_ID,
        Code.AUTH_GET_USER,
        Code.AUTH_LIST_USER,
        Code.AUTH_GET_ACL,
        Code.AUTH_LIST_ACL,
        Code.GET_BROKER_CLUSTER_ACL_INFO,
        Code.LEDGERMQ_NODE_STATUS,
        Code.LEDGERMQ_GROUP_PROGRESS,
        Code.LEDGERMQ_GRPC_CLIENTS,
    }
)
"""Every other code without a rule of its own needs Update."""


BY_POSITION: Final[Mapping[int, tuple[str, tuple[Action, ...]]]] = {
    Code.VIEW_MESSAGE_BY_ID: ("offset", _GET),
    Code.CONSUMER_SEND_MSG_BACK: ("offset", _SUB),
    Code.END_TRANSACTION: ("commitLogOffset", _PUB),
}
"""Requests about a message that they name by its position: the field, and what they do to its topic. RocketMQ
asks for the topic or group that the request names besides, whatever message is there.
"""


class UnreadableRequestError(ValueError):
    """What the request is about cannot be read."""


def required_access(request: RemotingCommand, cluster: str) -> Iterable[Access]:
    """All of these accesses are needed. Raises UnreadableRequestError."""
    try:
        rule = _RULES.get(request.code)
        if rule is not None:
            return dict.fromkeys(rule(request))
        if request.code in _OF_EVERY_USER:
            return ()
        named = list(_named(request))
    except (HeaderError, FastjsonError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableRequestError(str(error)) from error
    if named or request.code in _MAY_NAME_NOTHING:
        return named
    return (_cluster(request.code, cluster),)


def access_to_message(code: int, topic: str) -> Access:
    """What a request of BY_POSITION needs, given the topic of the message."""
    return _topic(topic, BY_POSITION[code][1])


def _cluster(code: int, cluster: str) -> Access:
    return Access(ResourceType.CLUSTER, cluster, _GET if code in _CLUSTER_READS else _UPDATE)


def _topic(name: str, actions: tuple[Action, ...]) -> Access:
    """A retry topic is its group's."""
    if name.startswith(RETRY_PREFIX):
        return _group(name, actions)
    return Access(ResourceType.TOPIC, name, actions)


def _group(name: str, actions: tuple[Action, ...]) -> Access:
    return Access(ResourceType.GROUP, name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX), actions)


def _named(request: RemotingCommand) -> Iterator[Access]:
    actions, topics, groups = _NAMED.get(request.code, ((), (), ()))
    for fields, access in ((topics, _topic), (groups, _group)):
        for field in fields:
            text = request.ext_fields.get(field, "")
            separator = _SEPARATORS.get(field)
            for name in text.split(separator) if separator else (text,):
                is_retry = request.code in _RETRIES_BY_GROUP and name.startswith(RETRY_PREFIX)
                if name.strip() and not is_retry:
                    yield access(name, actions)


def _sent(request: RemotingCommand) -> Iterator[Access]:
    """10, 310, 320: by the topic that the handler will write to, whichever form the header has. A message to
    a retry topic comes from a consumer that could not send it back otherwise.
    """
    fields = request.ext_fields
    if isinstance(request, SendRequest):
        name = request.header.topic
    else:
        name = fields["b"] if "b" in fields else fields["topic"]
    yield _topic(name, _SUB if name.startswith(RETRY_PREFIX) else _PUB)


def _heartbeat(request: RemotingCommand) -> Iterator[Access]:
    """34: its consumers' groups, and the topics that they subscribe to."""
    for consumer in _body(request).get("consumerDataSet") or ():
        yield _group(_text(consumer["groupName"]), _SUB)
        for subscription in consumer.get("subscriptionDataSet") or ():
            topic = _text(subscription["topic"])
            if not topic.startswith(RETRY_PREFIX):
                yield _topic(topic, _SUB)


def _locks(request: RemotingCommand) -> Iterator[Access]:
    """41 and 42."""
    body = _body(request)
    yield _group(_text(body["consumerGroup"]), _SUB)
    for topic in dict.fromkeys(_text(queue["topic"]) for queue in body.get("mqSet") or ()):
        yield _topic(topic, _SUB)


def _assignment(request: RemotingCommand) -> Iterator[Access]:
    """400."""
    body = _body(request)
    yield _group(_text(body["consumerGroup"]), _SUB)
    yield _topic(_text(body["topic"]), _SUB)


def _acknowledged(request: RemotingCommand) -> Iterator[Access]:
    """200151: each acknowledgement names its own topic and group."""
    for ack in _body(request)["acks"]:
        yield _group(_text(ack["c"] if "c" in ack else ack["consumerGroup"]), _SUB)
        yield _topic(_text(ack["t"] if "t" in ack else ack["topic"]), _SUB)


def _created_group(request: RemotingCommand) -> Iterator[Access]:
    """200."""
    yield _group(_text(_body(request)["groupName"]), (Action.CREATE,))


def _body(request: RemotingCommand) -> Any:
    return loads_request(request.body)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is not a text")
    return value


_RULES: Final[Mapping[int, Callable[[RemotingCommand], Iterator[Access]]]] = {
    Code.SEND_MESSAGE: _sent,
    Code.SEND_MESSAGE_V2: _sent,
    Code.SEND_BATCH_MESSAGE: _sent,
    Code.HEART_BEAT: _heartbeat,
    Code.LOCK_BATCH_MQ: _locks,
    Code.UNLOCK_BATCH_MQ: _locks,
    Code.QUERY_ASSIGNMENT: _assignment,
    Code.BATCH_ACK_MESSAGE: _acknowledged,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _created_group,
}
