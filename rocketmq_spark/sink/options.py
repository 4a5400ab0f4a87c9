"""The options of the sink `rocketmq`. Pure."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from commitlog.sequences import BATCH_MAX, writer_error
from rocketmq_spark.errors import OptionError
from rocketmq_spark.options import CONNECTION_OPTIONS, ConnectionOptions, OptionReader

BATCH_BYTES_MAX: Final = 1 << 20
BATCH_MESSAGES_MAX: Final = 1_024
BATCH_BYTES: Final = 512 << 10
WINDOW_BYTES: Final = 4 << 20
WINDOW_BYTES_MAX: Final = 64 << 20
SEND_TIMEOUT_MS: Final = 120_000
QUEUES_MAX: Final = 1_024
WRITER_CHARS_MAX: Final = 47
"""What the sink adds to a writer's id is 17 characters long."""

WHAT: Final = "the sink rocketmq"
STREAM_OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    *("topic", "delivery", "producerGroup", "createTopicQueues"),
    *("sendTimeout", "batchBytes", "inFlightBytes", "checkRepeats"),
)
BATCH_OPTIONS: Final = (*STREAM_OPTIONS, "writerId", "batchId")
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of a stream that Spark itself uses and passes on."""
HINTS: Final = {"path": "names a folder: the topic is named by the option topic"}
BATCH_HINTS: Final = HINTS | {
    "checkpointLocation": "is for streams: a batch write has writerId and batchId",
    "queryName": "is for streams",
}


class Delivery(enum.Enum):
    """Delivery guarantee. AUTO: exactly once if every broker supports it, else at least once."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """`topic`: None when a column names it. `create_queues`: 0 = a missing topic is an error.

    check_repeats: whether a row that is sent again must be the row that was sent.
    writer_id, batch_id: given by the user of a batch write who may run it again; None otherwise.
    """

    connection: ConnectionOptions
    topic: str | None = None
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    producer_group: str = "rocketmq-spark"
    create_queues: int = 0
    send_timeout_s: float = SEND_TIMEOUT_MS / 1000
    batch_bytes: int = BATCH_BYTES
    window_bytes: int = WINDOW_BYTES
    check_repeats: bool = True
    writer_id: str | None = None
    batch_id: int = 0


def parse_sink_options(options: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Raises OptionError naming every unknown option, or the one that cannot be used."""
    if is_stream:
        own = {name: value for name, value in options.items() if name.lower() not in SPARKS_OWN}
        reader = OptionReader(own, STREAM_OPTIONS, WHAT, HINTS)
    else:
        reader = OptionReader(options, BATCH_OPTIONS, WHAT, BATCH_HINTS)
    found = SinkOptions(
        connection=reader.connection(),
        topic=reader.text("topic"),
        delivery=Delivery(reader.choice("delivery", [one.value for one in Delivery], "at-least-once")),
        producer_group=reader.text("producerGroup", "rocketmq-spark") or "",
        create_queues=_bounded(reader, "createTopicQueues", 0, QUEUES_MAX),
        send_timeout_s=reader.duration_ms("sendTimeout", SEND_TIMEOUT_MS) / 1000,
        batch_bytes=_bounded(reader, "batchBytes", BATCH_BYTES, BATCH_BYTES_MAX),
        window_bytes=_bounded(reader, "inFlightBytes", WINDOW_BYTES, WINDOW_BYTES_MAX),
        check_repeats=reader.boolean("checkRepeats", True),
        writer_id=reader.text("writerId"),
        batch_id=_bounded(reader, "batchId", 0, BATCH_MAX),
    )
    _check_writer(found, reader)
    return found


def _check_writer(options: SinkOptions, reader: OptionReader) -> None:
    writer_id = options.writer_id
    if writer_id is None:
        if reader.has("batchId"):
            raise OptionError("option batchId has a meaning beside the option writerId only")
        return
    if options.delivery is Delivery.AT_LEAST_ONCE:
        raise OptionError("option writerId is for delivery=exactly-once (or auto)")
    error = writer_error(writer_id)
    if error is None and len(writer_id) > WRITER_CHARS_MAX:
        error = f"at most {WRITER_CHARS_MAX} characters are possible"
    if error is not None:
        raise OptionError(f"option writerId is {writer_id!r}: {error}")


def _bounded(reader: OptionReader, name: str, default: int, most: int) -> int:
    value = reader.integer(name, default)
    assert value is not None
    if value > most:
        raise OptionError(f"option {name} is {value}, must be at most {most}")
    return value
