"""Writes one partition: what a task of a batch write or a microbatch does."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.sending import Sender
from rocketmq_spark.sink.delivering import (
    Delivering,
    PlainDelivering,
    SequencedDelivering,
    TaskPlace,
    Written,
)
from rocketmq_spark.sink.planning import Placements, SinkPlan
from rocketmq_spark.sink.rows import RowError, RowReader

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@dataclass
class SinkCommit(WriterCommitMessage):
    """What a task has written. `repeats`: rows that an earlier try of it had written already; `retries`: how
    often it had to send again; `written`: what the log has now, where rows are numbered.
    """

    place: TaskPlace
    rows: int
    repeats: int
    retries: int
    written: tuple[Written, ...] = ()


def write_partition(plan: SinkPlan, place: TaskPlace, batches: "Iterable[RecordBatch]") -> SinkCommit:
    """Returns when every row is acknowledged.

    Raises:
        RowError: a row cannot be a message, or go where it names. TopicNotFoundError.
        ClusterUnavailableError, RequestRefusedError, DeliveryError: as of `client.sending`.
    """
    options = plan.options
    with Cluster(
        options.connection.namesrv, options.connection.timeout_s, options.connection.deadline_s
    ) as cluster:
        sender = Sender(cluster, options.window_bytes, options.send_timeout_s)
        reader = RowReader(plan.columns, place.partition, f"{place.writer_id}|{place.batch_id}")
        delivering: Delivering
        if plan.is_sequenced:
            delivering = SequencedDelivering(sender, options, place)
        else:
            delivering = PlainDelivering(sender, options, place.partition)
        placements = Placements(cluster, options)
        for batch in batches:
            _write_batch(plan, place.partition, reader, batch, placements, delivering)
        delivering.finish()
        sender.flush()
        brokers = sender.brokers.values()
        return SinkCommit(
            place,
            sum(broker.acknowledged for broker in brokers),
            sum(broker.repeats for broker in brokers),
            sum(broker.retries for broker in brokers),
            tuple(delivering.written()),
        )


def _write_batch(
    plan: SinkPlan,
    partition: int,
    reader: RowReader,
    batch: "RecordBatch",
    placements: Placements,
    delivering: Delivering,
) -> None:
    fixed = plan.placement
    for row in reader.read(batch):
        placement = fixed
        if placement is None:
            if not row.topic:
                raise RowError(f"row {row.row} of partition {partition} has no topic")
            placement = placements.of(row.topic)
        try:
            queue = placement.place(partition, row.row, row.keys, row.broker_name, row.queue_id)
        except LookupError as error:
            raise RowError(f"row {row.row} of partition {partition}: {error.args[0]}") from None
        delivering.add(placement, queue, row)
