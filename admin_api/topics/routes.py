"""`/api/v1/topics`."""

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path, Query
from fastapi.responses import Response

from admin_api.routing import MakeDep, PageDep, ServicesDep, changing, problems
from admin_api.security.access import costly, require
from admin_api.security.actor import Role
from admin_api.topics import examples
from admin_api.topics.changes import NewTopic, TopicSpec
from admin_api.topics.schemas import TopicKind, TopicPage, TopicQueues, TopicRouteView, TopicSort, TopicView
from admin_api.topics.service import TopicQuery
from admin_api.topics.traffic import TopicStats

router = APIRouter(prefix="/api/v1/topics", tags=["topics"])

Topic = Annotated[str, Path(min_length=1, max_length=255, description="its whole name")]
_READ = [Depends(require(Role.READ))]
_COSTLY = [Depends(require(Role.READ)), Depends(costly)]
_NO_TOPIC = problems(e404="No broker has this topic.")


@router.get(
    "",
    summary="Topics of all brokers",
    dependencies=_READ,
    responses={**problems(), **examples.PAGE},
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


@router.post("", summary="Make a topic", **changing(Role.ADMIN, examples.CREATED))
async def create_topic(
    services: ServicesDep,
    make: MakeDep,
    topic: Annotated[NewTopic, Body(openapi_examples=examples.NEW_TOPICS)],
) -> Response:
    """On the brokers named, or on all. Refused with 409 if any broker has it: then edit it."""
    return await make(services.topic_changes.create(topic.name, topic))


@router.get("/{topic}", summary="One topic", dependencies=_READ, responses={**_NO_TOPIC, **examples.TOPIC})
async def get_topic(services: ServicesDep, topic: Topic) -> TopicView:
    """How each broker that has it keeps it, and which groups consume it."""
    return await services.topics.one(topic)


@router.patch("/{topic}", summary="Edit a topic", **changing(Role.ADMIN, examples.EDITED))
async def edit_topic(
    services: ServicesDep,
    make: MakeDep,
    topic: Topic,
    spec: Annotated[TopicSpec, Body(openapi_examples=examples.EDITS)],
) -> Response:
    """Queues, permissions, attributes; a broker named that lacks the topic gets it. What takes something
    from producers or consumers needs a confirmation."""
    return await make(services.topic_changes.edit(topic, spec))


@router.delete("/{topic}", summary="Delete a topic", **changing(Role.ADMIN, examples.DELETED))
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
    responses={**problems(e404="The name server has no route for it."), **examples.ROUTE},
)
async def get_route(services: ServicesDep, topic: Topic) -> TopicRouteView:
    """What the name server answers to clients that ask for the topic."""
    return await services.topics.route(topic)


@router.get(
    "/{topic}/queues", summary="Its queues", dependencies=_COSTLY, responses={**_NO_TOPIC, **examples.QUEUES}
)
async def get_queues(services: ServicesDep, topic: Topic) -> TopicQueues:
    """First and next offset of every queue, and when its newest message was stored."""
    return await services.topics.queues(topic)


@router.get(
    "/{topic}/stats", summary="Its traffic", dependencies=_COSTLY, responses={**_NO_TOPIC, **examples.STATS}
)
async def get_stats(services: ServicesDep, topic: Topic) -> TopicStats:
    """Messages and bytes put, by broker, and got, by group, over the last minute, hour and day."""
    return await services.topics.stats(topic)
