"""Which field of an entry a byte belongs to. Pure."""

from typing import Final

import numpy as np

from commitlog.entry import HEADER_BYTES
from remoting.record_layout import BORN_HOST_V6, STORE_HOST_V6
from rocketmq_spark.log.record_columns import RecordColumns

_HEADER: Final = (
    (0, "magic"),
    (4, "size"),
    (8, "index"),
    (16, "term"),
    (24, "position"),
    (32, "channel"),
    (36, "headerCrc"),
    (40, "bodyCrc"),
    (44, "bodyLength"),
)


def field_at(entry: bytes, at: int, record_at: int) -> str:
    """The name of the field that byte `at` of an entry stands in; `entry` without a header in a plain log."""
    if record_at == HEADER_BYTES and at < HEADER_BYTES:
        return "entry." + next(name for start, name in reversed(_HEADER) if start <= at)
    record = entry[record_at:]
    start = np.array([0], np.int64)
    columns = RecordColumns(record, start, np.array([len(record)], np.int64), start)
    places = columns.places
    if not len(record) or not places.is_whole[0]:
        return "record"
    flags = int(columns.heads["sys_flag"][0])
    store = 56 + (12 if flags & BORN_HOST_V6 else 0)
    tail = store + 16 + (12 if flags & STORE_HOST_V6 else 0)
    body, topic = int(places.body[0]), int(places.topic[0])
    fields = [(0, "size"), (4, "magic"), (8, "bodyCrc"), (12, "queueId"), (16, "flag"), (20, "queueOffset")]
    fields += [(28, "physicalOffset"), (36, "sysFlag"), (40, "bornTimestamp"), (48, "bornHost")]
    fields += [(store, "storeTimestamp"), (store + 8, "storeHost"), (tail, "reconsumeTimes")]
    fields += [(tail + 4, "preparedTransactionOffset"), (body - 4, "bodyLength"), (body, "body")]
    fields += [(body + int(places.body_bytes[0]), "topicLength"), (topic, "topic")]
    fields += [(int(places.properties[0]) - 2, "propertiesLength"), (int(places.properties[0]), "properties")]
    return "record." + next(name for start, name in reversed(fields) if start <= at - record_at)
