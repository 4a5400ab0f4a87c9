"""Producers."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from admin_api.routes import topic_examples as examples
from admin_api.routes.parts import PageDep, ServicesDep, problems
from admin_api.schemas.producers import ProducerGroups
from admin_api.security.access import costly, require
from admin_api.security.actor import Role
from admin_api.services.producers import ProducerQuery

producers_router = APIRouter(prefix="/api/v1/producer-groups", tags=["producers"])


@producers_router.get(
    "",
    summary="Producer groups and their clients",
    dependencies=[Depends(require(Role.READ)), Depends(costly)],
    responses={**problems(e404="No broker has the topic."), **examples.PRODUCERS},
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
    not tell what a producer sends to. RocketMQ before 4.9.4 cannot list producers: give a whole name."""
    return await services.producers.find(ProducerQuery(group, topic), page)
