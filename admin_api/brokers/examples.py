"""Examples of brokers for the OpenAPI description, built from the models so that both stay in step."""

from typing import Any, Final

from admin_api.brokers.schemas import (
    BrokerConfig,
    BrokerRow,
    BrokerRuntime,
    Brokers,
    BrokerStorage,
    DiskView,
    LogStorage,
    Product,
    RetentionView,
    SettingView,
)
from admin_api.changes import Action
from admin_api.cluster.schemas import NodeState
from admin_api.routing import shown
from admin_api.schema import ChangeResult, EffectView

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

PAGE: Final = shown(Brokers(items=[_ROW], page=1, page_size=100, total=1))
BROKER: Final = shown(_ROW)
RUNTIME: Final = shown(
    BrokerRuntime(
        address=_ADDRESS,
        broker=_ROW,
        figures={"brokerVersionDesc": "LedgerMQ", "putTps": "118.50 97.20 90.00"},
    )
)
CONFIG: Final = shown(
    BrokerConfig(
        address=_ADDRESS,
        settings=[
            SettingView(key="fileReservedTime", value="72", can_change=True),
            SettingView(key="listenPort", value="10911", can_change=False),
        ],
    )
)
CHANGED: Final = shown(
    ChangeResult(
        action=Action.BROKER_CONFIG.value,
        target=_ADDRESS,
        is_dry_run=True,
        is_destructive=True,
        effects=[EffectView(subject="fileReservedTime", before="72", after="48")],
        warnings=["This holds for every node of broker-a, also after a restart."],
        confirmation="1767225900.0123456789abcdef.5d41402abc4b2a76b9719d911017c592",
    )
)
CHANGES: Final[dict[str, Any]] = {
    "shorter retention": {"value": {"settings": {"fileReservedTime": "48"}}},
}
STORAGE: Final = shown(
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
