"""How far consumer groups are, asked of the brokers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import orjson
import pyarrow as pa

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.fastjson import FastjsonError, loads
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.system_topics import DLQ_PREFIX
from rocketmq_spark.errors import RequestRefusedError

LAG_SCHEMA: Final = pa.schema(
    [
        ("sampledMs", pa.int64()),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("consumerOffset", pa.int64()),
        ("brokerOffset", pa.int64()),
        ("lag", pa.int64()),
        ("behindMs", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """One group in one queue at one moment, in the columns of LAG_SCHEMA.

    `behindMs` is how long ago the last message that the group consumed was stored, 0 when nothing waits, and
    None when it has consumed nothing that is still there.
    """

    sampledMs: int  # noqa: N815 - the columns' names
    group: str
    topic: str
    brokerName: str  # noqa: N815
    queueId: int  # noqa: N815
    consumerOffset: int  # noqa: N815
    brokerOffset: int  # noqa: N815
    lag: int
    behindMs: int | None  # noqa: N815


def sample_lag(cluster: Cluster, topics: Sequence[str], groups: Sequence[str], now_ms: int) -> list[GroupLag]:
    """Every group in every queue that it has offsets of; all groups and topics, if none is named."""
    found = []
    for broker_name in sorted(cluster.cluster_info().brokers):
        for group in groups or group_names(cluster, broker_name):
            answer = cluster.invoke_leader(broker_name, partial(_stats_command, group))
            if answer.code == ResponseCode.SUCCESS:
                found += parse_lag(answer.body, group, now_ms)
    return [one for one in found if not topics or one.topic in topics]


def _stats_command(group: str) -> RemotingCommand:
    return RemotingCommand(RequestCode.GET_CONSUME_STATS, ext_fields={"consumerGroup": group})


def group_names(cluster: Cluster, broker_name: str) -> list[str]:
    """The groups that a broker knows. Raises: RequestRefusedError."""
    what = f"the list of groups of {broker_name}"
    answer = cluster.invoke_leader(
        broker_name, lambda: RemotingCommand(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    )
    if answer.code != ResponseCode.SUCCESS:
        raise RequestRefusedError(what, answer.code, answer.remark)
    try:
        return sorted(loads(answer.body)["subscriptionGroupTable"])
    except (FastjsonError, KeyError, TypeError) as error:
        raise RequestRefusedError(what, answer.code, f"unreadable: {error!r}") from None


def parse_lag(body: bytes, group: str, now_ms: int) -> list[GroupLag]:
    """The answer to GET_CONSUME_STATS. Raises: RequestRefusedError when it is unreadable."""
    try:
        table: dict[str, Any] = loads(body).get("offsetTable") or {}
        return [_lag(orjson.loads(queue), offsets, group, now_ms) for queue, offsets in table.items()]
    except (FastjsonError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"the offsets of group {group}"
        raise RequestRefusedError(what, ResponseCode.SUCCESS, f"unreadable: {error!r}") from None


def _lag(queue: dict[str, Any], offsets: dict[str, Any], group: str, now_ms: int) -> GroupLag:
    consumed, end = int(offsets["consumerOffset"]), int(offsets["brokerOffset"])
    lag, last_ms = max(0, end - max(0, consumed)), int(offsets["lastTimestamp"])
    behind_ms = 0 if lag == 0 else max(0, now_ms - last_ms) if last_ms > 0 else None
    where = (str(queue["topic"]), str(queue["brokerName"]), int(queue["queueId"]))
    return GroupLag(now_ms, group, *where, consumed, end, lag, behind_ms)


def lag_table(samples: Iterable[GroupLag]) -> pa.Table:
    """The samples with LAG_SCHEMA."""
    return pa.Table.from_pylist([asdict(one) for one in samples], schema=LAG_SCHEMA)


def dead_letter_topics(cluster: Cluster, groups: Sequence[str]) -> list[str]:
    """The dead-letter topics that there are, of these groups if any are named."""
    named = {f"{DLQ_PREFIX}{group}" for group in groups}
    topics = cluster.topics(include_system=True)
    return [one for one in topics if one.startswith(DLQ_PREFIX) and (not groups or one in named)]
