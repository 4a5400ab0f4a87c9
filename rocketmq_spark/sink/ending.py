"""What the driver does when all rows of a batch are acknowledged: ask each broker whether it holds these rows
of the batch and no others, and tell it of writers that are done.

Rows of an earlier try that no task of this one came upon (there are fewer partitions now, or fewer rows in
one) are seen by nobody else.
"""

import logging
from collections.abc import Sequence
from typing import Final

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.sequenced_send import BatchEnd
from rocketmq_spark.client.backoff import Backoff
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.sending import DIFFERS_HINT
from rocketmq_spark.errors import ClusterUnavailableError, DeliveryError, RequestRefusedError
from rocketmq_spark.sink.planning import SinkPlan
from rocketmq_spark.sink.task import SinkCommit

DOUBTS_S: Final = 4.0
"""How long a leader is asked again that holds other rows: one that is cut off from its group lacks the last
ones for the seconds that it takes to notice.
"""

logger = logging.getLogger(__name__)

_Writers = dict[str, dict[int, tuple[int, bytes]]]


def end_batch(plan: SinkPlan, commits: Sequence[SinkCommit], *, is_over: bool) -> None:
    """After a batch, or with `is_over` after all that these writers write.

    Raises:
        DeliveryError: a broker holds other rows of the batch. ClusterUnavailableError, RequestRefusedError.
    """
    options = plan.options
    if not (plan.is_sequenced and commits and (options.check_repeats or is_over)):
        return
    connection = options.connection
    batch_id = commits[0].place.batch_id
    with Cluster(connection.namesrv, connection.timeout_s, connection.deadline_s) as cluster:
        for broker_name, writers in by_broker(plan, commits).items():
            end = BatchEnd(batch_id, writers, is_checked=options.check_repeats, is_over=is_over)
            _end_at(cluster, broker_name, end)


def by_broker(plan: SinkPlan, commits: Sequence[SinkCommit]) -> dict[str, _Writers]:
    """What each broker must hold; nothing is an answer, too, of one that rows may go to."""
    found: dict[str, _Writers] = {}
    if plan.placement is not None:
        writer_id = commits[0].place.writer_of(plan.placement)
        found = {queue.broker_name: {writer_id: {}} for queue in plan.placement.queues}
    for commit in commits:
        for one in commit.written:
            written = found.setdefault(one.broker_name, {}).setdefault(one.writer_id, {})
            written[commit.place.partition] = (one.rows, one.digest)
    return found


def _end_at(cluster: Cluster, broker_name: str, end: BatchEnd) -> None:
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
    if answer.code in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
        return
    if not end.is_over:
        raise RequestRefusedError(
            f"the end of batch {end.batch_id} at {broker_name}", answer.code, answer.remark
        )
    # Everything is stored: what could not be told is that the writers need not be remembered.
    logger.warning("broker %s keeps the writers of a batch that is over: %s", broker_name, answer.remark)
