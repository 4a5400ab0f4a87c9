"""What several route modules use: the services of this process, pages, and how problems are described."""

from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import Response

from admin_api.schemas.base import PAGE_MAX, PAGE_SIZE_MAX, Problem, Schema
from admin_api.services.context import Services
from admin_api.services.partial import PageWanted


def services_of(request: Request) -> Services:
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


def page_wanted(
    page: Annotated[int, Query(ge=1, le=PAGE_MAX, description="counted from 1")] = 1,
    page_size: Annotated[
        int, Query(alias="pageSize", ge=1, le=PAGE_SIZE_MAX, description="items of one page")
    ] = 100,
) -> PageWanted:
    return PageWanted(page, page_size)


ServicesDep = Annotated[Services, Depends(services_of)]
PageDep = Annotated[PageWanted, Depends(page_wanted)]


def answer(view: Schema) -> Response:
    """As it is, without a second look at what was just made: a page may have a thousand groups."""
    return Response(
        view.model_dump_json(by_alias=True),
        media_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def problems(**said: str) -> dict[int | str, dict[str, Any]]:
    """`problems(e404="No such topic.")` for a route's `responses=`; 503 is in all of them."""
    told = {"e503": "The name server or the brokers that would know give no answer.", **said}
    return {int(key[1:]): {"model": Problem, "description": text} for key, text in told.items()}


def shown(example: Schema) -> dict[int | str, dict[str, Any]]:
    """An answer for a route's `responses=`, as it goes over the wire."""
    value = example.model_dump(mode="json", by_alias=True)
    return {200: {"content": {"application/json": {"example": value}}}}
