"""The name server's own state, and cleaning up by hand."""

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path
from fastapi.responses import Response

from admin_api.routes.changes import MakeDep, changing
from admin_api.routes.parts import ServicesDep, problems, shown
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

maintenance_router = APIRouter(prefix="/api/v1", tags=["name server and cleaning"])

_ITEMS_EXAMPLE: Final = shown(ItemsView(namespace="ORDER_TOPIC_CONFIG", items={"orders": "broker-a:4;broker-b:4"}))
_NAME_SERVER: Final = shown(
    NameServerView(address="127.0.0.1:9876", config={"listenPort": "9876", "orderMessageEnable": "false"})
)

_READ = [Depends(require(Role.READ))]
_SERVER = {**problems(e503="The name server gives no answer."), **_NAME_SERVER}
_ITEMS = problems(e404="It has no such namespace.", e503="The name server gives no answer.")
_NAME = r"^[^\x00-\x1f/]+$"
Namespace = Annotated[
    str,
    Path(min_length=1, max_length=255, pattern=_NAME, description="such as `ORDER_TOPIC_CONFIG`"),
]
Key = Annotated[
    str, Path(min_length=1, max_length=255, pattern=_NAME, description="of an item, such as a topic's name")
]
BrokerName = Annotated[
    str,
    Path(
        alias="brokerName",
        min_length=1,
        max_length=255,
        pattern=_NAME,
        description="as the name server lists it, such as `broker-a`",
    ),
]


@maintenance_router.get("/name-server", summary="Its configuration", dependencies=_READ, responses=_SERVER)
async def get_name_server(services: ServicesDep) -> NameServerView:
    """The name server that this service asks."""
    return await services.name_server.view()


@maintenance_router.patch("/name-server", summary="Change its configuration", **changing(Role.ADMIN))
async def patch_name_server(services: ServicesDep, make: MakeDep, change: NameServerChange) -> Response:
    """Until it starts again; which keys can change it knows itself."""
    return await make(services.name_server.configure(change.values))


@maintenance_router.get(
    "/name-server/items/{namespace}",
    summary="Key-value items",
    dependencies=_READ,
    responses={**_ITEMS, **_ITEMS_EXAMPLE},
)
async def get_items(services: ServicesDep, namespace: Namespace) -> ItemsView:
    """The items of one namespace, such as `ORDER_TOPIC_CONFIG`."""
    return await services.name_server.items(namespace)


@maintenance_router.put("/name-server/items/{namespace}/{key}", summary="Set an item", **changing(Role.ADMIN))
async def put_item(
    services: ServicesDep,
    make: MakeDep,
    namespace: Namespace,
    key: Key,
    item: ItemValue,
) -> Response:
    """The order of a topic is one: its name in `ORDER_TOPIC_CONFIG`, `broker-a:4;broker-b:4`."""
    return await make(services.name_server.put_item(namespace, key, item.value))


@maintenance_router.delete(
    "/name-server/items/{namespace}/{key}", summary="Delete an item", **changing(Role.ADMIN)
)
async def delete_item(services: ServicesDep, make: MakeDep, namespace: Namespace, key: Key) -> Response:
    """It is gone for all that ask this name server."""
    return await make(services.name_server.put_item(namespace, key, None))


@maintenance_router.put(
    "/name-server/brokers/{brokerName}/write-permission",
    summary="Let producers leave a broker, or come back",
    **changing(Role.ADMIN),
)
async def put_write_permission(
    services: ServicesDep,
    make: MakeDep,
    broker_name: BrokerName,
    permission: WritePermission,
) -> Response:
    """In the routes this name server gives; consumers read on. For maintenance of stock brokers above all."""
    return await make(services.name_server.allow_writes(broker_name, allow=permission.is_writable))


@maintenance_router.post("/brokers/clean", summary="Clean up by hand", **changing(Role.ADMIN))
async def clean_brokers(services: ServicesDep, make: MakeDep, cleaning: Cleaning) -> Response:
    """What retention would delete in its time, at once."""
    return await make(services.cleaning.clean(cleaning.garbage, cleaning.addresses))
