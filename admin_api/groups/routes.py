"""`/api/v1/consumer-groups` and `/api/v1/producer-groups`."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, Path, Query
from fastapi.responses import Response

from admin_api.groups.changes import ConsumeModeChange, GroupSettingsChange
from admin_api.groups.details import ConsumerGroupView, MemberRunningView, MembersView
from admin_api.groups.offset_changes import OffsetClone, OffsetReset, OffsetSkip
from admin_api.groups.overview import ConsumerGroupItem, GroupSort
from admin_api.groups.producers import ProducerGroups, ProducerQuery
from admin_api.groups.progress import ProgressView
from admin_api.groups.service import GroupQuery
from admin_api.routing import MakeDep, PageDep, ServicesDep, answer, changing, costly, problems, require
from admin_api.schema import Page
from admin_api.security.policy import Role

_MEMBER: Final[dict[str, Any]] = {
    "clientId": "127.0.0.1@4711",
    "address": "127.0.0.1:50412",
    "language": "JAVA",
    "version": "4.9.8",
    "brokers": ["broker-a"],
}
_SUBSCRIPTION: Final[dict[str, Any]] = {
    "topic": "orders",
    "expression": "paid || sent",
    "expressionType": "TAG",
}
_ONLINE: Final[dict[str, Any]] = {
    "group": "billing",
    "presence": "online",
    "messageModel": "CLUSTERING",
    "consumeType": "CONSUME_PASSIVELY",
}
_WHOLE: Final[dict[str, Any]] = {"isPartial": False, "problems": []}

PAGE_EXAMPLE: Final[dict[str, Any]] = {
    "items": [
        {
            **_ONLINE,
            "brokers": ["broker-a"],
            "isSystem": False,
            "members": 1,
            "consumeEnabled": True,
            "lag": 63,
            "isLagPartial": False,
            "unknownQueues": 0,
            "lagByTopic": {"orders": 63},
            "consumeTps": 118.5,
            "popInFlight": 0,
        }
    ],
    "page": 1,
    "pageSize": 50,
    "total": 1,
    **_WHOLE,
}
GROUP_EXAMPLE: Final[dict[str, Any]] = {
    **_ONLINE,
    "isSystem": False,
    "isBroadcast": False,
    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
    "memberCount": 1,
    "lag": 63,
    "unknownQueues": 0,
    "consumeTps": 118.5,
    "popInFlight": 0,
    "hasSameSettings": True,
    "brokers": [
        {
            "brokerName": "broker-a",
            "settings": {
                "consumeEnabled": True,
                "consumeFromMinEnabled": True,
                "consumeBroadcastEnabled": True,
                "isOrderly": False,
                "retryQueues": 1,
                "retryMaxTimes": 16,
                "notifyConsumerIdsChanged": True,
                "consumeTimeoutMinutes": 15,
            },
        }
    ],
    "consumeModes": [{"topic": "orders", "brokerName": "broker-a", "mode": "POP", "popShareQueues": 0}],
    "members": [_MEMBER],
    "subscriptions": [_SUBSCRIPTION],
    **_WHOLE,
}
MEMBERS_EXAMPLE: Final[dict[str, Any]] = {
    **_ONLINE,
    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
    "members": [_MEMBER],
    "subscriptions": [_SUBSCRIPTION],
    **_WHOLE,
}
PROGRESS_EXAMPLE: Final[dict[str, Any]] = {
    "group": "billing",
    "presence": "online",
    "isBroadcast": False,
    "asOfMs": 1767225600000,
    "lag": 63,
    "consumeTps": 118.5,
    "topics": [
        {
            "topic": "orders",
            "isRetry": False,
            "lag": 63,
            "unknownQueues": 0,
            "queues": [
                {
                    "brokerName": "broker-a",
                    "queueId": 3,
                    "minOffset": 0,
                    "maxOffset": 120,
                    "offset": 57,
                    "lag": 63,
                    "inFlight": None,
                    "lastConsumedAtMs": 1767225598000,
                    "delayMs": 1900,
                    "clientId": "127.0.0.1@4711",
                }
            ],
        }
    ],
    **_WHOLE,
}
RUNNING_EXAMPLE: Final[dict[str, Any]] = {
    "group": "billing",
    "clientId": "127.0.0.1@4711",
    "brokerName": "broker-a",
    "properties": {"PROP_CONSUMEORDERLY": "false", "PROP_THREADPOOL_CORE_SIZE": "20"},
    "subscriptions": [_SUBSCRIPTION],
    "queues": [
        {
            "topic": "orders",
            "brokerName": "broker-a",
            "queueId": 3,
            "isPop": False,
            "commitOffset": 57,
            "cachedMessages": 63,
            "cachedMib": 0,
            "cachedMinOffset": 57,
            "cachedMaxOffset": 119,
            "unacknowledged": None,
            "isLocked": False,
            "isDropped": False,
            "lastPullAtMs": 1767225599000,
            "lastConsumeAtMs": 1767225599500,
        }
    ],
    "rates": [
        {
            "topic": "orders",
            "pullMs": 3.0,
            "pullTps": 4.5,
            "consumeMs": 1.2,
            "consumeOkTps": 118.5,
            "consumeFailedTps": 0.0,
            "consumeFailedMessages": 0,
        }
    ],
    "stack": None,
}
RESET_EXAMPLES: Final[dict[str, Any]] = {
    "time": {"value": {"topic": "orders", "to": "time", "time": "2026-01-01T00:00:00Z"}},
    "earliest": {"value": {"topic": "orders", "to": "earliest"}},
    "one queue": {
        "value": {
            "topic": "orders",
            "to": "offset",
            "queues": [{"brokerName": "broker-a", "queueId": 3, "offset": 57}],
        }
    },
}
RESET_RESULT_EXAMPLE: Final[dict[str, Any]] = {
    "action": "offset.reset",
    "target": "billing",
    "isDryRun": True,
    "isDestructive": True,
    "effects": [{"subject": "broker-a/3", "before": "120", "after": "57, 63 messages again"}],
    "warnings": ["its consumers run: they are sent to the new offsets while they work"],
    "confirmation": "1767225900.5d41402abc4b2a76.9f86d081884c7d659a2feaa0c55ad015",
    "outcomes": [],
    "isPartial": False,
}
PRODUCERS_EXAMPLE: Final[dict[str, Any]] = {
    "items": [
        {
            "group": "shop",
            "clients": [
                {
                    "clientId": "127.0.0.1@4711",
                    "address": "127.0.0.1:50412",
                    "language": "JAVA",
                    "version": "4.9.8",
                    "lastHeartbeatAtMs": 1_767_225_600_000,
                    "brokers": ["broker-a"],
                }
            ],
        }
    ],
    "page": 1,
    "pageSize": 100,
    "total": 1,
    **_WHOLE,
}


def _shown(example: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """For `responses=` of a route."""
    return {200: {"content": {"application/json": {"example": example}}}}


router = APIRouter(prefix="/api/v1/consumer-groups", tags=["consumer groups"])

Group = Annotated[
    str, Path(min_length=1, max_length=255, pattern=r"^[%|a-zA-Z0-9_-]+$", description="its whole name")
]
_READ = [Depends(require(Role.READ))]
_COSTLY = [Depends(require(Role.READ)), Depends(costly)]
_NO_GROUP = problems(e404="No broker has this group.")
_RESET = _shown(RESET_RESULT_EXAMPLE)


@router.get(
    "",
    summary="Consumer groups of all brokers",
    dependencies=_COSTLY,
    response_model=Page[ConsumerGroupItem],
    responses={**problems(), **_shown(PAGE_EXAMPLE)},
)
async def get_groups(
    services: ServicesDep,
    page: PageDep,
    name: Annotated[str, Query(max_length=255, description="a part of the name, case aside")] = "",
    sort: Annotated[GroupSort, Query(description="what is unknown comes last")] = GroupSort.NAME,
    descending: Annotated[bool, Query(description="the last first")] = False,
    system: Annotated[bool, Query(description="RocketMQ's own groups too")] = False,
    lag: Annotated[bool, Query(description="false spares stock brokers the question for all lag")] = True,
) -> Response:
    """Filtered, sorted and in pages; at most 10 s old, 15 s on stock RocketMQ. What is unknown comes last.

    A group without connected clients is `offline`; if a broker did not answer, it may be `unknown`. On stock
    RocketMQ, pages of more than 100 groups do not show connected clients.
    """
    query = GroupQuery(name, sort, descending, system, lag)
    return answer(await services.consumer_groups.find(query, page))


@router.get(
    "/{group}",
    summary="One consumer group",
    dependencies=_COSTLY,
    response_model=ConsumerGroupView,
    responses={**_NO_GROUP, **_shown(GROUP_EXAMPLE)},
)
async def get_group(services: ServicesDep, group: Group) -> Response:
    """Its settings broker by broker, who is connected, and how far it is."""
    return answer(await services.consumer_groups.view(group))


@router.put("/{group}", summary="Make or edit a consumer group", **changing(Role.ADMIN))
async def put_group(
    services: ServicesDep,
    make: MakeDep,
    group: Group,
    settings: Annotated[
        GroupSettingsChange, Body(openapi_examples={"tries": {"value": {"retryMaxTimes": 5}}})
    ],
) -> Response:
    """Of all brokers, or those named. What is left out stays as it is. Forbidding it to consume needs
    confirmation."""
    return await make(services.consumer_groups.put(group, settings))


@router.delete("/{group}", summary="Delete a consumer group", **changing(Role.ADMIN))
async def delete_group(
    services: ServicesDep,
    make: MakeDep,
    group: Group,
    with_offsets: Annotated[
        bool, Query(alias="withOffsets", description="false: made again, it goes on where it was")
    ] = True,
) -> Response:
    """On every broker. Its retry and dead-letter topics stay, and are deleted like other topics."""
    return await make(services.consumer_groups.delete(group, with_offsets=with_offsets))


@router.put("/{group}/consume-mode", summary="Have a group pull or pop a topic", **changing(Role.ADMIN))
async def put_consume_mode(
    services: ServicesDep,
    make: MakeDep,
    group: Group,
    wanted: Annotated[
        ConsumeModeChange, Body(openapi_examples={"pop": {"value": {"topic": "orders", "mode": "POP"}}})
    ],
) -> Response:
    """For RocketMQ 5 consumers that have the broker share the queues out; they take it over within seconds.
    Brokers of RocketMQ 4 know no modes."""
    return await make(services.consumer_groups.set_mode(group, wanted))


@router.get(
    "/{group}/progress",
    summary="How far a group is, queue by queue",
    dependencies=_COSTLY,
    response_model=ProgressView,
    responses={**_NO_GROUP, **_shown(PROGRESS_EXAMPLE)},
)
async def get_progress(
    services: ServicesDep,
    group: Group,
    topic: Annotated[str | None, Query(min_length=1, max_length=255, description="only this one")] = None,
    clients: Annotated[bool, Query(description="ask the consumers which queues they have")] = True,
) -> Response:
    """Offsets, lag, delay, and the consumer of each queue. Read now. A queue the group has no offset for has
    neither offset nor lag, unless it is empty."""
    return answer(await services.consumer_groups.progress(group, topic, with_clients=clients))


@router.get(
    "/{group}/members",
    summary="Who of a group is connected",
    dependencies=_READ,
    response_model=MembersView,
    responses={**_NO_GROUP, **_shown(MEMBERS_EXAMPLE)},
)
async def get_members(services: ServicesDep, group: Group) -> Response:
    """Their libraries' language and version, and what they are subscribed to."""
    return answer(await services.consumer_groups.members(group))


@router.get(
    "/{group}/members/{client_id:path}/running",
    summary="What one consumer says of itself",
    dependencies=_COSTLY,
    response_model=MemberRunningView,
    responses={
        **problems(
            e404="No such consumer is connected.",
            e503="It does not answer, or no broker that would know does.",
        ),
        **_shown(RUNNING_EXAMPLE),
    },
)
async def get_running(
    services: ServicesDep,
    group: Group,
    client_id: Annotated[str, Path(min_length=1, max_length=512, description="as among its members")],
    stack: Annotated[bool, Query(description="what its threads do; only Java clients can say it")] = False,
) -> Response:
    """Its queues, what it has got and not consumed, its rates and properties; asked through a broker."""
    return answer(await services.consumer_groups.running(group, client_id, with_stack=stack))


@router.post(
    "/{group}/offsets/reset",
    summary="Move a group in a topic",
    **changing(Role.OPERATE, _RESET, is_costly=True),
)
async def reset_offsets(
    services: ServicesDep,
    make: MakeDep,
    group: Group,
    wanted: Annotated[OffsetReset, Body(openapi_examples=RESET_EXAMPLES)],
) -> Response:
    """To the first message, behind the last, to a time, or to exact offsets; of all queues or some. The dry
    run says for each queue how many messages are consumed again or skipped, as of now. Consumers that run are
    sent there; the outcomes are read back from the broker."""
    return await make(services.offsets.reset(group, wanted))


@router.post(
    "/{group}/offsets/skip",
    summary="Skip what has accumulated",
    **changing(Role.OPERATE, is_costly=True),
)
async def skip_accumulated(
    services: ServicesDep,
    make: MakeDep,
    group: Group,
    wanted: Annotated[OffsetSkip, Body(openapi_examples={"all topics": {"value": {}}})],
) -> Response:
    """A reset behind the last message, of one topic or of all that the group consumes. Messages that wait to
    be tried again stay."""
    return await make(services.offsets.skip(group, wanted))


@router.post(
    "/{group}/offsets/clone",
    summary="Have another group go on where this one is",
    **changing(Role.OPERATE, is_costly=True),
)
async def clone_offsets(
    services: ServicesDep,
    make: MakeDep,
    group: Group,
    wanted: Annotated[
        OffsetClone, Body(openapi_examples={"all topics": {"value": {"targetGroup": "billing-2"}}})
    ],
) -> Response:
    """Refused with 409 while consumers of the target run. It needs confirmation where the target has offsets
    already."""
    return await make(services.offsets.clone(group, wanted))


producers_router = APIRouter(prefix="/api/v1/producer-groups", tags=["producers"])


@producers_router.get(
    "",
    summary="Producer groups and their clients",
    dependencies=[Depends(require(Role.READ)), Depends(costly)],
    responses={**problems(e404="No broker has the topic."), **_shown(PRODUCERS_EXAMPLE)},
)
async def get_producer_groups(
    services: ServicesDep,
    page: PageDep,
    group: Annotated[str, Query(max_length=255, description="a part of the name, case aside")] = "",
    topic: Annotated[
        str | None,
        Query(min_length=1, max_length=255, description="only who is connected to a broker that has it"),
    ] = None,
) -> ProducerGroups:
    """Who is connected now and may send. With `topic`: who is connected to a broker that has it; brokers do
    not know what a producer sends to. RocketMQ before 4.9.4 cannot list producers: give a whole name."""
    return await services.producers.find(ProducerQuery(group, topic), page)
