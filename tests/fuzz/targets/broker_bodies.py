"""Bodies that a broker reads, and the bytes of its replicated state."""

import zlib
from contextlib import suppress

import orjson
import pydantic

from broker.admin.types import NodeStatusMessage
from broker.config import config_from
from broker.consume.heartbeats import HeartbeatError, parse_client_config, parse_heartbeat
from broker.send.admission import SUB_MESSAGE_BYTES_MIN, BatchBodyError, split_batch
from broker.state.changes import (
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    PutGroup,
    PutTopic,
    SetDelayOffset,
    StateRecordError,
    decode_changes,
    encode_change,
    join_changes,
)
from broker.state.groups import SubscriptionGroupConfig, static_groups
from broker.state.snapshot import CorruptSnapshotError, Snapshot, decode_snapshot, encode_snapshot
from broker.state.tables import StateTables
from broker.state.topics import TopicConfig, static_topics
from commitlog.record import Message, decode_record, encode_record
from remoting.tag_filters import FilterError, parse_tag_expression
from tests.fuzz.target import Target
from tests.unit.broker.heartbeat_samples import CPP_CONSUMER, CPP_PRODUCER, GO_CONSUMER, JAVA_CONSUMER

MESSAGES_MAX = 1000
_SUBSCRIPTION = b'{"topic":"T","subString":"TagA||TagB","subVersion":"1700000000001","expressionType":"TAG"}'
_CLIENT_CONFIG = b'{"clientId":"c","group":"G","subscriptionData":%b}' % _SUBSCRIPTION
_SUB_MESSAGE = bytes.fromhex("00000022000000000000000000000000000000026d31000a54414753015461674102")
_CHANGES = (
    PutTopic(TopicConfig("T", attributes={"a": "b"})),
    PutGroup(SubscriptionGroupConfig("G")),
    CommitOffsets("G", "T", {0: 5, 3: 7}),
    SetDelayOffset(3, 9),
    DeleteGroup("G", True),
    DeleteTopic("T"),
)
_RECORD = join_changes([encode_change(change) for change in _CHANGES])
_STATUS = (
    b'{"version":1,"cluster":"c","group":"g","brokerName":"b","nodeId":"n0","role":"LEADER","term":3,'
    b'"leaderId":"n0","isWritable":true,"durability":"persisted","remotingAddress":"h:1",'
    b'"replicationAddress":"h:2","beginIndex":0,"endIndex":9,"committedIndex":9,"persistedIndex":9,'
    b'"appliedIndex":9,"endPosition":99,"committedPosition":99,"epochs":[{"term":1,"firstIndex":0}],'
    b'"peers":[{"id":"n1","replicationAddress":"h:3","isConnected":true,"pushState":"APPEND"}],'
    b'"watermarksByTerm":{"3":{"n0":9}},"elections":[{"atMs":1,"term":3,"leaderId":"n0","reason":"r"}],'
    b'"startedAtMs":1,"pid":2}'
)


def _new_tables() -> StateTables:
    return StateTables(static_topics(config_from({})), static_groups())


def _tables_after(changes: tuple[object, ...]) -> StateTables:
    tables = _new_tables()
    for number, change in enumerate(changes):
        tables.apply(change, number)  # type: ignore[arg-type]
    return tables


_SNAPSHOT = encode_snapshot(Snapshot(9, _tables_after(_CHANGES[:4]).to_json()))


def _check_heartbeat(data: bytes) -> None:
    with suppress(HeartbeatError):
        heartbeat = parse_heartbeat(data)
        for consumer in heartbeat.consumers:
            for subscription in consumer.subscriptions or ():
                orjson.dumps(subscription.to_json())
                hash(subscription.wanted)


def _check_client_config(data: bytes) -> None:
    with suppress(HeartbeatError, FilterError):
        _, subscription = parse_client_config(data)
        orjson.dumps(subscription.to_json())


def _check_expression(data: bytes) -> None:
    expression = data.decode(errors="surrogatepass" if data.isascii() else "replace")
    with suppress(FilterError):
        wanted = parse_tag_expression(expression)
        has_bars = any("|" in tag for tag in wanted.tags)
        assert has_bars or parse_tag_expression("||".join(wanted.tags)).codes == wanted.codes
        assert all(-(2**31) <= code < 2**31 for code in wanted.codes or ())


def _check_batch(data: bytes) -> None:
    with suppress(BatchBodyError):
        parts = split_batch(data, MESSAGES_MAX)
        assert sum(len(p.body) + len(p.properties) + SUB_MESSAGE_BYTES_MIN for p in parts) == len(data)
        for part in parts:
            message = Message("T", 0, part.body, part.properties, part.flag)
            record = decode_record(encode_record(message, 0, 0), check_crc=True)
            assert (record.flag, record.body, record.properties) == (part.flag, part.body, part.properties)


def _check_changes(data: bytes) -> None:
    with suppress(StateRecordError):
        changes = decode_changes(data)
        tables = _new_tables()
        for change in changes:
            tables.apply(change, 1)
        snapshot = decode_snapshot(encode_snapshot(Snapshot(1, tables.to_json())))
        again = _new_tables()
        again.load_json(snapshot.tables)
        assert again.to_json() == tables.to_json()
        assert decode_changes(join_changes([encode_change(change) for change in changes])) == changes


def _check_snapshot(data: bytes) -> None:
    """As it is, and with a length and a checksum that fit: a start takes ValueError, KeyError and TypeError
    of the tables for a file that is no snapshot.
    """
    body = data[24:]
    sealed = data[:12] + zlib.crc32(body).to_bytes(4, "big") + len(body).to_bytes(8, "big") + body
    for content in (data, sealed):
        with suppress(CorruptSnapshotError):
            snapshot = decode_snapshot(content)
            tables = _new_tables()
            with suppress(ValueError, KeyError, TypeError):
                tables.load_json(snapshot.tables)
            encode_snapshot(Snapshot(snapshot.applied_index, tables.to_json()))


def _check_node_status(data: bytes) -> None:
    with suppress(pydantic.ValidationError):
        status = NodeStatusMessage.from_json(data)
        assert NodeStatusMessage.from_json(status.to_json()) == status


TARGETS = (
    Target("heartbeat", _check_heartbeat, (CPP_CONSUMER, CPP_PRODUCER, GO_CONSUMER, JAVA_CONSUMER)),
    Target("client_config", _check_client_config, (_CLIENT_CONFIG,)),
    Target("tag_expression", _check_expression, (b"TagA || TagB", b"*", "TagÜ||\U0001f600".encode())),
    Target("batch_body", _check_batch, (_SUB_MESSAGE, _SUB_MESSAGE * 3)),
    Target("state_record", _check_changes, (_RECORD,)),
    Target("state_snapshot", _check_snapshot, (_SNAPSHOT,)),
    Target("node_status", _check_node_status, (_STATUS,)),
)
