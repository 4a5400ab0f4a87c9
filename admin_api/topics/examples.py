"""Examples of topics for the OpenAPI description, built from the models so that both stay in step."""

from typing import Any, Final

from admin_api.changes import Action
from admin_api.routing import shown
from admin_api.schema import ChangeResult, EffectView
from admin_api.topics.schemas import (
    QueueView,
    RouteBroker,
    TopicConfigView,
    TopicKind,
    TopicPage,
    TopicQueues,
    TopicRouteView,
    TopicRow,
    TopicView,
)
from admin_api.topics.traffic import BrokerTopicStats, Counts, GroupTopicStats, TopicStats

_NOW_MS: Final = 1_767_225_600_000
_COUNTS: Final = Counts(last_minute=7_110, last_hour=420_300, last_day=9_876_000, per_second=118.5)
_BYTES: Final = Counts(
    last_minute=1_820_160, last_hour=107_596_800, last_day=2_528_256_000, per_second=30_336.0
)

PAGE: Final = shown(
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
TOPIC: Final = shown(
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
ROUTE: Final = shown(
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
QUEUES: Final = shown(
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
STATS: Final = shown(
    TopicStats(
        topic="orders",
        put_messages=_COUNTS,
        put_bytes=_BYTES,
        brokers=[BrokerTopicStats(broker_name="broker-a", put_messages=_COUNTS, put_bytes=_BYTES)],
        groups=[GroupTopicStats(group="billing", got_messages=_COUNTS, got_bytes=None)],
        groups_left_out=0,
    )
)
CREATED: Final = shown(
    ChangeResult(
        action=Action.TOPIC_CREATE.value,
        target="orders",
        is_dry_run=True,
        is_destructive=False,
        effects=[EffectView(subject="broker-a: readQueues", before=None, after="8")],
        warnings=[],
    )
)
EDITED: Final = shown(
    ChangeResult(
        action=Action.TOPIC_UPDATE.value,
        target="orders",
        is_dry_run=True,
        is_destructive=True,
        effects=[EffectView(subject="broker-a: readQueues", before="8", after="4")],
        warnings=["broker-a: consumers no longer get what is in the queues 4 to 7."],
        confirmation="1767225900.0123456789abcdef.5d41402abc4b2a76b9719d911017c592",
    )
)
DELETED: Final = shown(
    ChangeResult(
        action=Action.TOPIC_DELETE.value,
        target="orders",
        is_dry_run=True,
        is_destructive=True,
        effects=[
            EffectView(subject="broker-a", before="8 queues, 63 messages", after=None),
            EffectView(subject="name server 127.0.0.1:9876", before="a route", after=None),
        ],
        warnings=["These groups lose their offsets in the topic: billing."],
        confirmation="1767225900.0123456789abcdef.5d41402abc4b2a76b9719d911017c592",
    )
)
NEW_TOPICS: Final[dict[str, Any]] = {
    "plain": {"value": {"name": "orders"}},
    "on one broker, kept for an hour": {
        "value": {"name": "ticks", "brokers": ["broker-a"], "attributes": {"retention.ms": "3600000"}}
    },
}
EDITS: Final[dict[str, Any]] = {
    "more queues": {"value": {"readQueues": 16, "writeQueues": 16}},
    "no more sends": {"value": {"canWrite": False}},
}
