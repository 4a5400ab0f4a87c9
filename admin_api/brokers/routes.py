"""`/api/v1/brokers`, `/api/v1/name-server`: figures, configuration, storage, write permission, clean-up."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, Path
from fastapi.responses import Response

from admin_api.brokers.changes import (
    Cleaning,
    ItemsView,
    ItemValue,
    NameServerChange,
    NameServerConfig,
    NameServerView,
    WritePermission,
)
from admin_api.brokers.service import (
    BrokerConfig,
    BrokerRow,
    BrokerRuntime,
    Brokers,
    BrokerStorage,
    ConfigPatch,
    DiskView,
    LogStorage,
    Product,
    RetentionView,
    SettingView,
)
from admin_api.changes import Action
from admin_api.cluster.schemas import NodeState
from admin_api.routing import MakeDep, PageDep, ServicesDep, changing, problems, require, shown, shown_preview
from admin_api.schema import EffectView
from admin_api.security.policy import Role

_ADDRESS: Final = "127.0.0.1:10911"
_STARTED_MS: Final = 1_767_139_200_000
_GIB: Final = 1024**3
_ROW: Final = BrokerRow(
    address=_ADDRESS,
    broker_name="broker-a",
    cluster="DefaultCluster",
    broker_id=0,
    state=NodeState.UP,
    problem=None,
    product=Product.LEDGERMQ,
    node_id="n0",
    role="LEADER",
    is_writable=True,
    version="LedgerMQ",
    started_at_ms=_STARTED_MS,
    put_per_second=118.5,
    get_per_second=237.0,
    put_today=420_300,
    get_today=840_600,
    disk_used_ratio=0.42,
)

_PAGE_EXAMPLE: Final = shown(Brokers(items=[_ROW], page=1, page_size=100, total=1))
_BROKER_EXAMPLE: Final = shown(_ROW)
_RUNTIME_EXAMPLE: Final = shown(
    BrokerRuntime(
        address=_ADDRESS,
        broker=_ROW,
        figures={"brokerVersionDesc": "LedgerMQ", "putTps": "118.50 97.20 90.00"},
    )
)
_CONFIG_EXAMPLE: Final = shown(
    BrokerConfig(
        address=_ADDRESS,
        settings=[
            SettingView(key="fileReservedTime", value="72", can_change=True),
            SettingView(key="listenPort", value="10911", can_change=False),
        ],
    )
)
_CHANGED_EXAMPLE: Final = shown_preview(
    Action.BROKER_CONFIG,
    _ADDRESS,
    EffectView(subject="fileReservedTime", before="72", after="48"),
    warning="This holds for every node of broker-a, also after a restart.",
)
_CHANGE_EXAMPLES: Final[dict[str, Any]] = {
    "shorter retention": {"value": {"settings": {"fileReservedTime": "48"}}},
}
_STORAGE_EXAMPLE: Final = shown(
    BrokerStorage(
        address=_ADDRESS,
        directory="/var/lib/ledgermq",
        log=LogStorage(
            begin_position=0,
            end_position=5 * _GIB,
            dispatched_position=5 * _GIB,
            size_bytes=5 * _GIB,
            file_bytes=_GIB,
            file_count=5,
            earliest_message_at_ms=_STARTED_MS,
        ),
        disk=DiskView(
            total_bytes=100 * _GIB,
            free_bytes=58 * _GIB,
            used_ratio=0.42,
            clean_above_ratio=0.75,
            full_above_ratio=0.9,
        ),
        retention=RetentionView(keep_hours=72, delete_hours="04"),
    )
)


router = APIRouter(prefix="/api/v1/brokers", tags=["brokers"])

Address = Annotated[
    str, Path(min_length=1, max_length=255, description="as listed, such as `127.0.0.1:10911`")
]
_READ = [Depends(require(Role.READ))]
_NO_BROKER = problems(e404="The cluster names no broker at this address.")


@router.get("", summary="Every broker", dependencies=_READ, responses={**problems(), **_PAGE_EXAMPLE})
async def get_brokers(services: ServicesDep, page: PageDep) -> Brokers:
    """Role, version, traffic and disk of each. One that does not answer is listed as down; what only
    LedgerMQ tells is null for RocketMQ's own brokers."""
    return await services.brokers.find(page)


@router.get(
    "/{address}", summary="One broker", dependencies=_READ, responses={**_NO_BROKER, **_BROKER_EXAMPLE}
)
async def get_broker(services: ServicesDep, address: Address) -> BrokerRow:
    """As in the list."""
    return await services.brokers.one(address)


@router.get(
    "/{address}/runtime",
    summary="All its figures",
    dependencies=_READ,
    responses={**_NO_BROKER, **_RUNTIME_EXAMPLE},
)
async def get_runtime(services: ServicesDep, address: Address) -> BrokerRuntime:
    """What the broker says of itself, in RocketMQ's names."""
    return await services.brokers.runtime(address)


@router.get(
    "/{address}/config",
    summary="Its configuration",
    dependencies=_READ,
    responses={**_NO_BROKER, **_CONFIG_EXAMPLE},
)
async def get_config(services: ServicesDep, address: Address) -> BrokerConfig:
    """Every key with the value in force. Secrets are masked."""
    return await services.brokers.config(address)


@router.patch(
    "/{address}/config",
    summary="Change its configuration",
    **changing(Role.ADMIN, _CHANGED_EXAMPLE),
)
async def change_config(
    services: ServicesDep,
    make: MakeDep,
    address: Address,
    patch: Annotated[ConfigPatch, Body(openapi_examples=_CHANGE_EXAMPLES)],
) -> Response:
    """All keys or none, while it runs. The preview has each value before and after; a key the broker does
    not have is refused with the nearest it has, and one that needs a restart by name."""
    return await make(services.broker_changes.configure(address, patch.settings))


@router.get(
    "/{address}/storage", summary="Its disk", dependencies=_READ, responses={**_NO_BROKER, **_STORAGE_EXAMPLE}
)
async def get_storage(services: ServicesDep, address: Address) -> BrokerStorage:
    """The log's files, the disk they are on, and how long messages stay."""
    return await services.brokers.storage(address)


maintenance_router = APIRouter(prefix="/api/v1", tags=["name server and cleaning"])

_ITEMS_EXAMPLE: Final = shown(
    ItemsView(namespace="ORDER_TOPIC_CONFIG", items={"orders": "broker-a:4;broker-b:4"})
)
_CONFIG: Final = {"listenPort": "9876", "orderMessageEnable": "false"}
_NAME_SERVER: Final = shown(
    NameServerView(
        address="127.0.0.1:9876",
        config=_CONFIG,
        name_servers=[NameServerConfig(address="127.0.0.1:9876", config=_CONFIG)],
    )
)


_SERVER = {**problems(e503="The name server does not answer."), **_NAME_SERVER}
_ITEMS = problems(e404="It has no such namespace.", e503="The name server does not answer.")
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
    """The name servers that this service asks."""
    return await services.name_servers.view()


@maintenance_router.patch("/name-server", summary="Change its configuration", **changing(Role.ADMIN))
async def patch_name_server(services: ServicesDep, make: MakeDep, change: NameServerChange) -> Response:
    """Of every name server, until it starts again; which keys can change it knows itself."""
    return await make(services.name_servers.configure(change.values))


@maintenance_router.get(
    "/name-server/items/{namespace}",
    summary="Key-value items",
    dependencies=_READ,
    responses={**_ITEMS, **_ITEMS_EXAMPLE},
)
async def get_items(services: ServicesDep, namespace: Namespace) -> ItemsView:
    """The items of one namespace, such as `ORDER_TOPIC_CONFIG`."""
    return await services.name_servers.items(namespace)


@maintenance_router.put("/name-server/items/{namespace}/{key}", summary="Set an item", **changing(Role.ADMIN))
async def put_item(
    services: ServicesDep,
    make: MakeDep,
    namespace: Namespace,
    key: Key,
    item: ItemValue,
) -> Response:
    """The order of a topic is one: its name in `ORDER_TOPIC_CONFIG`, `broker-a:4;broker-b:4`."""
    return await make(services.name_servers.put_item(namespace, key, item.value))


@maintenance_router.delete(
    "/name-server/items/{namespace}/{key}", summary="Delete an item", **changing(Role.ADMIN)
)
async def delete_item(services: ServicesDep, make: MakeDep, namespace: Namespace, key: Key) -> Response:
    """It is gone at every name server that answers."""
    return await make(services.name_servers.put_item(namespace, key, None))


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
    """In the routes that name servers give; consumers read on. For maintenance of stock brokers above all."""
    return await make(services.name_servers.allow_writes(broker_name, allow=permission.is_writable))


@maintenance_router.post("/brokers/clean", summary="Clean up by hand", **changing(Role.ADMIN))
async def clean_brokers(services: ServicesDep, make: MakeDep, cleaning: Cleaning) -> Response:
    """What retention would delete in its time, at once."""
    return await make(services.cleaning.clean(cleaning.garbage, cleaning.addresses))
