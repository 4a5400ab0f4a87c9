"""Brokers: figures, configuration, storage."""

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path
from fastapi.responses import Response

from admin_api.routes import broker_examples as examples
from admin_api.routes.changes import MakeDep, changing
from admin_api.routes.parts import PageDep, ServicesDep, problems
from admin_api.schemas.brokers import (
    BrokerConfig,
    BrokerRow,
    BrokerRuntime,
    Brokers,
    BrokerStorage,
    ConfigPatch,
)
from admin_api.security.access import require
from admin_api.security.actor import Role

router = APIRouter(prefix="/api/v1/brokers", tags=["brokers"])

Address = Annotated[
    str, Path(min_length=1, max_length=255, description="as listed, such as `127.0.0.1:10911`")
]
_READ = [Depends(require(Role.READ))]
_NO_BROKER = problems(e404="The cluster names no broker at this address.")


@router.get("", summary="Every broker", dependencies=_READ, responses={**problems(), **examples.PAGE})
async def get_brokers(services: ServicesDep, page: PageDep) -> Brokers:
    """Role, version, traffic and disk of each. One that gives no answer is listed as down; what only
    LedgerMQ tells is null for RocketMQ's own brokers."""
    return await services.brokers.find(page)


@router.get(
    "/{address}", summary="One broker", dependencies=_READ, responses={**_NO_BROKER, **examples.BROKER}
)
async def get_broker(services: ServicesDep, address: Address) -> BrokerRow:
    """As in the list."""
    return await services.brokers.one(address)


@router.get(
    "/{address}/runtime",
    summary="All its figures",
    dependencies=_READ,
    responses={**_NO_BROKER, **examples.RUNTIME},
)
async def get_runtime(services: ServicesDep, address: Address) -> BrokerRuntime:
    """What the broker says of itself, in RocketMQ's names."""
    return await services.brokers.runtime(address)


@router.get(
    "/{address}/config",
    summary="Its configuration",
    dependencies=_READ,
    responses={**_NO_BROKER, **examples.CONFIG},
)
async def get_config(services: ServicesDep, address: Address) -> BrokerConfig:
    """Every key with the value in force. Secrets are masked."""
    return await services.brokers.config(address)


@router.patch(
    "/{address}/config",
    summary="Change its configuration",
    **changing(Role.ADMIN, examples.CHANGED),
)
async def change_config(
    services: ServicesDep,
    make: MakeDep,
    address: Address,
    patch: Annotated[ConfigPatch, Body(openapi_examples=examples.CHANGES)],
) -> Response:
    """All keys or none, while it runs. The preview has each value before and after; a key the broker does
    not have is refused with the nearest it has, and one that needs a restart by name."""
    return await make(services.broker_changes.configure(address, patch.settings))


@router.get(
    "/{address}/storage", summary="Its disk", dependencies=_READ, responses={**_NO_BROKER, **examples.STORAGE}
)
async def get_storage(services: ServicesDep, address: Address) -> BrokerStorage:
    """The log's files, the disk they are on, and how long messages stay."""
    return await services.brokers.storage(address)
