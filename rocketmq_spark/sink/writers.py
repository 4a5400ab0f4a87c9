"""The writers that Spark calls: `write` in a task for each partition, `commit` and `abort` at the driver.

When all rows of a batch are acknowledged, the driver asks each broker whether it holds exactly these rows of
the batch, and reports finished writers. Only this finds rows of an earlier attempt that no task of this one
has repeated, because there are fewer partitions now, or fewer rows in one.
"""

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.send import BatchEnd
from rocketmq_spark.client.cluster import Backoff, Cluster
from rocketmq_spark.client.sending import DIFFERS_HINT
from rocketmq_spark.errors import (
    ClusterUnavailableError,
    DeliveryError,
    OptionError,
    RequestRefusedError,
    RocketmqSparkError,
)
from rocketmq_spark.sink.delivery import SinkCommit, TaskPlace, write_partition
from rocketmq_spark.sink.options import parse_sink_options
from rocketmq_spark.sink.planning import SinkPlan, make_plan
from rocketmq_spark.sink.rows import read_columns

DOUBTS_S: Final = 4.0
"""How long the check is repeated after a leader reported a difference, in seconds. An old leader that is cut
off from its group lacks the last rows, and answers until it notices that it has lost its leadership.
"""

logger = logging.getLogger(__name__)

_Writers = dict[str, dict[int, tuple[int, bytes]]]


def end_batch(plan: SinkPlan, commits: Sequence[SinkCommit], *, is_over: bool) -> None:
    """Compare a finished batch with the brokers; with `is_over` they also free the writers.

    Raises:
        DeliveryError: a broker holds other rows of the batch. ClusterUnavailableError, RequestRefusedError.
    """
    # Commit protocol: rows are visible as soon as they are committed in the log, so this does not publish
    # them. It checks them, and only this finds rows of a failed attempt that the successful one did not send
    # again, because it had fewer partitions, or fewer rows in one.
    options = plan.options
    if not (plan.is_sequenced and commits and (options.check_repeats or is_over)):
        return
    connection = options.connection
    batch_id = commits[0].place.batch_id
    with connection.cluster() as cluster:
        for broker_name, writers in by_broker(plan, commits).items():
            # Two requests: a request whose answer was lost is repeated, and a broker that has freed the
            # writers has no numbers to compare any more.
            if options.check_repeats:
                _check_at(cluster, broker_name, BatchEnd(batch_id, writers))
            if is_over:
                _free_at(cluster, broker_name, BatchEnd(batch_id, writers, is_checked=False, is_over=True))


def by_broker(plan: SinkPlan, commits: Sequence[SinkCommit]) -> dict[str, _Writers]:
    """The writers that each broker must hold; none at a broker that rows could go to and did not."""
    found: dict[str, _Writers] = {}
    if plan.placement is not None:
        writer_id = commits[0].place.writer_of(plan.placement)
        found = {queue.broker_name: {writer_id: {}} for queue in plan.placement.queues}
    for commit in commits:
        for one in commit.written:
            written = found.setdefault(one.broker_name, {}).setdefault(one.writer_id, {})
            written[commit.place.partition] = (one.rows, one.digest)
    return found


def _check_at(cluster: Cluster, broker_name: str, end: BatchEnd) -> None:
    body = end.body()
    doubts = Backoff("asking again", DOUBTS_S)
    while True:
        answer = cluster.invoke_leader(
            broker_name, lambda: RemotingCommand(RequestCode.LEDGERMQ_END_BATCH, body=body)
        )
        if answer.code != ResponseCode.LEDGERMQ_SEQUENCE_DIFFERS:
            break
        try:
            doubts.failed(str(answer.remark))
        except ClusterUnavailableError:
            text = f"broker {broker_name} holds other rows: {answer.remark}. {DIFFERS_HINT}"
            raise DeliveryError(text) from None
        cluster.forget_leader(broker_name)
    if answer.code not in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
        raise RequestRefusedError(
            f"the end of batch {end.batch_id} at {broker_name}", answer.code, answer.remark
        )


def _free_at(cluster: Cluster, broker_name: str, end: BatchEnd) -> None:
    """Free the writers' numbers. After a failure the broker only keeps them in memory until they expire:
    all rows are stored.
    """
    body = end.body()
    try:
        answer = cluster.invoke_leader(
            broker_name, lambda: RemotingCommand(RequestCode.LEDGERMQ_END_BATCH, body=body)
        )
    except (ClusterUnavailableError, RequestRefusedError) as error:
        logger.warning("broker %s did not free the writers of a finished write: %s", broker_name, error)
        return
    if answer.code not in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
        logger.warning(
            "broker %s did not free the writers of a finished write: %s", broker_name, answer.remark
        )


if TYPE_CHECKING:
    from pyarrow import RecordBatch

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""What Spark passes to each task of a stream: the id that stays the same as long as the checkpoint does, and
the microbatch.
"""


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> "RocketmqWriter":
    """The writer of one batch write. Raises RocketmqSparkError."""
    return RocketmqWriter(_plan(options, schema, overwrite, is_stream=False))


def make_stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> "RocketmqStreamWriter":
    """The writer of one streaming query. Raises RocketmqSparkError."""
    return RocketmqStreamWriter(_plan(options, schema, overwrite, is_stream=True))


class RocketmqWriter(DataSourceArrowWriter):
    """Appends a DataFrame to topics."""

    # Made once at the driver, so that all attempts of all tasks share one writer id: brokers recognise the
    # rows of a repeated task by it.

    def __init__(self, plan: SinkPlan) -> None:
        self._is_one_off = plan.options.writer_id is None
        writer_id = plan.options.writer_id or uuid.uuid4().hex
        self.plan = replace(plan, options=replace(plan.options, writer_id=writer_id))

    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        options = self.plan.options
        assert options.writer_id is not None
        place = TaskPlace(options.writer_id, options.batch_id, _task().partitionId())
        return write_partition(self.plan, place, iterator)

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Without the option writerId no later write has this writer id, so brokers can free its numbers."""
        done = _commits("the write", messages)
        end_batch(self.plan, done, is_over=self._is_one_off)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Rows that were sent stay in the topics: a broker cannot remove them."""
        logger.warning("a write failed; some of its rows may be in the topics")


class RocketmqStreamWriter(DataSourceStreamArrowWriter):
    """Appends the rows of a streaming query to topics."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        task = _task()
        query_id, batch_id = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query_id is None or batch_id is None:
            raise RocketmqSparkError(f"Spark does not pass to its tasks {QUERY_ID} and {BATCH_ID}")
        return write_partition(self.plan, TaskPlace(query_id, int(batch_id), task.partitionId()), iterator)

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        done = _commits(f"batch {batchId}", messages)
        end_batch(self.plan, done, is_over=False)

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        """Rows that were sent stay in the topics; exactly-once delivery drops them when they come again."""
        logger.warning("batch %d failed; some of its rows may be in the topics", batchId)


def _plan(options: Mapping[str, str], schema: StructType, overwrite: bool, *, is_stream: bool) -> SinkPlan:
    found = parse_sink_options(options, is_stream=is_stream)
    if overwrite:
        mode = "outputMode('append') or ('update')" if is_stream else "mode('append')"
        raise OptionError(f"a topic can only be appended to: use {mode}")
    columns = read_columns(schema, found.topic)
    connection = found.connection
    with connection.cluster() as cluster:
        return make_plan(cluster, found, columns)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "a partition is written by a task"
    return task


def _commits(what: str, messages: "list[WriterCommitMessage | None]") -> list[SinkCommit]:
    done = [message for message in messages if isinstance(message, SinkCommit)]
    logger.info(
        "%s: %d rows, %d of them written by an earlier attempt, %d requests sent again",
        what,
        sum(one.rows for one in done),
        sum(one.repeats for one in done),
        sum(one.retries for one in done),
    )
    return done
