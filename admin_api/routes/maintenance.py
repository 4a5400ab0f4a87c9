"""The name server's own state, and cleaning up by hand."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response

from admin_api.routes.changes import CHANGE_RESPONSES, Confirmation, DryRun, run_change
from admin_api.schemas.base import Problem
from admin_api.schemas.changes import ChangeResult
from admin_api.schemas.maintenance import (
    Cleaning,
    ItemsView,
    ItemValue,
    NameServerChange,
    NameServerView,
    WritePermission,
)
from admin_api.security.access import require
from admin_api.security.actor import Role
from admin_api.services.cleaning import CleaningService
from admin_api.services.context import Services
from admin_api.services.name_server import NameServer

router = APIRouter(prefix="/api/v1", tags=["name server and cleaning"])

_READ = [Depends(require(Role.READ))]
_ADMIN = [Depends(require(Role.ADMIN))]
_SILENT: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "It does not exist."},
    503: {"model": Problem, "description": "The name server gives no answer."},
}
_NAME = r"^[^\x00-\x1f/]+$"
Namespace = Annotated[str, Path(min_length=1, max_length=255, pattern=_NAME)]
Key = Annotated[str, Path(min_length=1, max_length=255, pattern=_NAME)]
BrokerName = Annotated[str, Path(alias="brokerName", min_length=1, max_length=255, pattern=_NAME)]


def _services(request: Request) -> Services:
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


def _name_server(request: Request) -> NameServer:
    return _services(request).name_server


def _cleaning(request: Request) -> CleaningService:
    return _services(request).cleaning


@router.get("/name-server", summary="Its configuration", dependencies=_READ, responses=_SILENT)
async def get_name_server(request: Request) -> NameServerView:
    """The name server that this service asks."""
    return await _name_server(request).view()


@router.patch(
    "/name-server",
    summary="Change its configuration",
    dependencies=_ADMIN,
    response_model=ChangeResult,
    responses=CHANGE_RESPONSES,
)
async def patch_name_server(
    request: Request, change: NameServerChange, dry_run: DryRun = None, confirmation: Confirmation = None
) -> Response:
    """Until it starts again; which keys can change it knows itself."""
    deed = _name_server(request).configure(change.values)
    return await run_change(request, deed, dry_run, confirmation)


@router.get(
    "/name-server/items/{namespace}", summary="Key-value items", dependencies=_READ, responses=_SILENT
)
async def get_items(request: Request, namespace: Namespace) -> ItemsView:
    """The items of one namespace, such as `ORDER_TOPIC_CONFIG`."""
    return await _name_server(request).items(namespace)


@router.put(
    "/name-server/items/{namespace}/{key}",
    summary="Set an item",
    dependencies=_ADMIN,
    response_model=ChangeResult,
    responses=CHANGE_RESPONSES,
)
async def put_item(
    request: Request,
    namespace: Namespace,
    key: Key,
    item: ItemValue,
    dry_run: DryRun = None,
    confirmation: Confirmation = None,
) -> Response:
    """The order of a topic is one: its name in `ORDER_TOPIC_CONFIG`, `broker-a:4;broker-b:4`."""
    deed = _name_server(request).put_item(namespace, key, item.value)
    return await run_change(request, deed, dry_run, confirmation)


@router.delete(
    "/name-server/items/{namespace}/{key}",
    summary="Delete an item",
    dependencies=_ADMIN,
    response_model=ChangeResult,
    responses=CHANGE_RESPONSES,
)
async def delete_item(
    request: Request,
    namespace: Namespace,
    key: Key,
    dry_run: DryRun = None,
    confirmation: Confirmation = None,
) -> Response:
    """It is gone for all that ask this name server."""
    deed = _name_server(request).put_item(namespace, key, None)
    return await run_change(request, deed, dry_run, confirmation)


@router.put(
    "/name-server/brokers/{brokerName}/write-permission",
    summary="Let producers leave a broker, or come back",
    dependencies=_ADMIN,
    response_model=ChangeResult,
    responses=CHANGE_RESPONSES,
)
async def put_write_permission(
    request: Request,
    broker_name: BrokerName,
    permission: WritePermission,
    dry_run: DryRun = None,
    confirmation: Confirmation = None,
) -> Response:
    """In the routes this name server gives; consumers read on. For maintenance of stock brokers above all."""
    deed = _name_server(request).allow_writes(broker_name, allow=permission.is_writable)
    return await run_change(request, deed, dry_run, confirmation)


@router.post(
    "/brokers/clean",
    summary="Clean up by hand",
    dependencies=_ADMIN,
    response_model=ChangeResult,
    responses=CHANGE_RESPONSES,
)
async def clean_brokers(
    request: Request, cleaning: Cleaning, dry_run: DryRun = None, confirmation: Confirmation = None
) -> Response:
    """What retention would delete in its time, at once."""
    deed = _cleaning(request).clean(cleaning.garbage, cleaning.addresses)
    return await run_change(request, deed, dry_run, confirmation)
