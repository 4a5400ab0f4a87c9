"""`/api/v1/topics`."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, Path, Query
from fastapi.responses import Response

from admin_api.changes import Action
from admin_api.routing import (
    MakeDep,
    PageDep,
    ServicesDep,
    changing,
    costly,
    problems,
    require,
    shown,
    shown_preview,
)
from admin_api.schema import EffectView
from admin_api.security.policy import Role
from admin_api.topics.changes import NewTopic, TopicSpec
from admin_api.topics.service import (
    QueueView,
    RouteBroker,
    TopicConfigView,
    TopicKind,
    TopicPage,
    TopicQuery,
    TopicQueues,
    TopicRouteView,
    TopicRow,
    TopicSort,
    TopicView,
)
from admin_api.topics.traffic import BrokerTopicStats, Counts, GroupTopicStats, TopicStats

_NOW_MS: Final = 1_767_225_600_000
_COUNTS: Final = Counts(last_minute=7_110, last_hour=420_300, last_day=9_876_000, per_second=118.5)
_BYTES: Final = Counts(
    last_minute=1_820_160, last_hour=107_596_800, last_day=2_528_256_000, per_second=30_336.0
)

_PAGE_EXAMPLE: Final = shown(
    TopicPage(
        items=[
            TopicRow(
                name="orders",
                kind=TopicKind.NORMAL,
                brokers=["broker-a", "broker-b"],
                read_queues=16,
                write_queues=16,
                can_read=True,
                can_write=True,
                is_ordered=False,
            )
        ],
        page=1,
        page_size=100,
        total=1,
    )
)
_TOPIC_EXAMPLE: Final = shown(
    TopicView(
        name="orders",
        kind=TopicKind.NORMAL,
        configs=[
            TopicConfigView(
                broker_name="broker-a",
                read_queues=8,
                write_queues=8,
                can_read=True,
                can_write=True,
                is_inherited=False,
                is_ordered=False,
                filter_type="SINGLE_TAG",
                attributes={"message.type": "NORMAL"},
                message_type="NORMAL",
                retention_ms=None,
            )
        ],
        consumer_groups=["billing"],
    )
)
_ROUTE_EXAMPLE: Final = shown(
    TopicRouteView(
        topic="orders",
        namesrv="127.0.0.1:9876",
        order_conf=None,
        brokers=[
            RouteBroker(
                broker_name="broker-a",
                cluster="DefaultCluster",
                read_queues=8,
                write_queues=8,
                can_read=True,
                can_write=True,
                addresses={"0": "127.0.0.1:10911", "2": "127.0.0.1:10921"},
            )
        ],
    )
)
_QUEUES_EXAMPLE: Final = shown(
    TopicQueues(
        topic="orders",
        message_count=63,
        queues=[
            QueueView(
                broker_name="broker-a",
                queue_id=0,
                min_offset=57,
                max_offset=120,
                message_count=63,
                last_message_at_ms=_NOW_MS,
            )
        ],
    )
)
_STATS_EXAMPLE: Final = shown(
    TopicStats(
        topic="orders",
        put_messages=_COUNTS,
        put_bytes=_BYTES,
        brokers=[BrokerTopicStats(broker_name="broker-a", put_messages=_COUNTS, put_bytes=_BYTES)],
        groups=[GroupTopicStats(group="billing", got_messages=_COUNTS, got_bytes=None)],
        groups_left_out=0,
    )
)
_CREATED_EXAMPLE: Final = shown_preview(
    Action.TOPIC_CREATE,
    "orders",
    EffectView(subject="broker-a: readQueues", before=None, after="8"),
    confirmation=None,
)
_EDITED_EXAMPLE: Final = shown_preview(
    Action.TOPIC_UPDATE,
    "orders",
    EffectView(subject="broker-a: readQueues", before="8", after="4"),
    warning="broker-a: consumers no longer get what is in the queues 4 to 7.",
)
_DELETED_EXAMPLE: Final = shown_preview(
    Action.TOPIC_DELETE,
    "orders",
    EffectView(subject="broker-a", before="8 queues, 63 messages", after=None),
    EffectView(subject="name server 127.0.0.1:9876", before="a route", after=None),
    warning="These groups lose their offsets in the topic: billing.",
)
_NEW_TOPIC_EXAMPLES: Final[dict[str, Any]] = {
    "plain": {"value": {"name": "orders"}},
    "on one broker, kept for an hour": {
        "value": {"name": "ticks", "brokers": ["broker-a"], "attributes": {"retention.ms": "3600000"}}
    },
}
_EDIT_EXAMPLES: Final[dict[str, Any]] = {
    "more queues": {"value": {"readQueues": 16, "writeQueues": 16}},
    "no more sends": {"value": {"canWrite": False}},
}


router = APIRouter(prefix="/api/v1/topics", tags=["topics"])

Topic = Annotated[str, Path(min_length=1, max_length=255, description="its whole name")]
_READ = [Depends(require(Role.READ))]
_COSTLY = [Depends(require(Role.READ)), Depends(costly)]
_NO_TOPIC = problems(e404="No broker has this topic.")


@router.get(
    "",
    summary="Topics of all brokers",
    dependencies=_READ,
    responses={**problems(), **_PAGE_EXAMPLE},
    response_model=TopicPage,
)
async def get_topics(
    services: ServicesDep,
    page: PageDep,
    name: Annotated[str, Query(max_length=255, description="a part of the name, case aside")] = "",
    kind: Annotated[list[TopicKind] | None, Query(description="may be given several times")] = None,
    sort: Annotated[TopicSort, Query(description="those that are the same go by name")] = TopicSort.NAME,
    descending: Annotated[bool, Query(description="the last first")] = False,
) -> Response:
    """Filtered, sorted and in pages; topics of the brokers' own and those for retries and dead letters are
    marked by their `kind`. At most a second old."""
    query = TopicQuery(name, frozenset(kind or ()), sort, descending)
    found = await services.topics.find(query, page)
    return Response(found.model_dump_json(by_alias=True), media_type="application/json")


@router.post("", summary="Make a topic", **changing(Role.ADMIN, _CREATED_EXAMPLE))
async def create_topic(
    services: ServicesDep,
    make: MakeDep,
    topic: Annotated[NewTopic, Body(openapi_examples=_NEW_TOPIC_EXAMPLES)],
) -> Response:
    """On the brokers named, or on all. Refused with 409 if any broker has it: then edit it."""
    return await make(services.topic_changes.create(topic.name, topic))


@router.get("/{topic}", summary="One topic", dependencies=_READ, responses={**_NO_TOPIC, **_TOPIC_EXAMPLE})
async def get_topic(services: ServicesDep, topic: Topic) -> TopicView:
    """How each broker that has it keeps it, and which groups consume it."""
    return await services.topics.one(topic)


@router.patch("/{topic}", summary="Edit a topic", **changing(Role.ADMIN, _EDITED_EXAMPLE))
async def edit_topic(
    services: ServicesDep,
    make: MakeDep,
    topic: Topic,
    spec: Annotated[TopicSpec, Body(openapi_examples=_EDIT_EXAMPLES)],
) -> Response:
    """Queues, permissions, attributes; a broker named that lacks the topic gets it. What takes something
    from producers or consumers needs a confirmation."""
    return await make(services.topic_changes.edit(topic, spec))


@router.delete("/{topic}", summary="Delete a topic", **changing(Role.ADMIN, _DELETED_EXAMPLE))
async def delete_topic(
    services: ServicesDep,
    make: MakeDep,
    topic: Topic,
    broker: Annotated[
        list[str] | None, Query(max_length=256, description="names; left out: all that have it")
    ] = None,
) -> Response:
    """Brokers delete it with every group's offsets in it; the name server deletes its route once no broker
    has it. Its messages are deleted with the log's files."""
    return await make(services.topic_changes.delete(topic, broker))


@router.get(
    "/{topic}/route",
    summary="Where clients are sent",
    dependencies=_READ,
    responses={**problems(e404="The name server has no route for it."), **_ROUTE_EXAMPLE},
)
async def get_route(services: ServicesDep, topic: Topic) -> TopicRouteView:
    """What the name server answers to clients that ask for the topic."""
    return await services.topics.route(topic)


@router.get(
    "/{topic}/queues", summary="Its queues", dependencies=_COSTLY, responses={**_NO_TOPIC, **_QUEUES_EXAMPLE}
)
async def get_queues(services: ServicesDep, topic: Topic) -> TopicQueues:
    """First and next offset of every queue, and when its newest message was stored."""
    return await services.topics.queues(topic)


@router.get(
    "/{topic}/stats", summary="Its traffic", dependencies=_COSTLY, responses={**_NO_TOPIC, **_STATS_EXAMPLE}
)
async def get_stats(services: ServicesDep, topic: Topic) -> TopicStats:
    """Messages and bytes put, by broker, and got, by group, over the last minute, hour and day."""
    return await services.topics.stats(topic)
