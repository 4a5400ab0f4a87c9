"""What the driver decides before a write begins: the queues, how rows are assigned to them, and whether rows
can be written exactly once.

A retried task must assign each row to the same queue again. A row with keys goes to the queue of their
CRC-32, so equal keys keep their order; one without keys goes by its number in its partition, RUN rows to each
queue in turn. The list of queues is fixed when the write begins.
"""

import hashlib
import logging
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.fastjson import FastjsonError, loads
from remoting.headers.admin import CreateTopicRequestHeader
from remoting.route import DEFAULT_TOPIC
from rocketmq_spark.client.cluster import Backoff, Cluster
from rocketmq_spark.errors import DeliveryError, OptionError, RequestRefusedError, TopicNotFoundError
from rocketmq_spark.sink.options import Delivery, SinkOptions
from rocketmq_spark.sink.rows import Columns

RUN: Final = 64
"""This many successive rows without keys are sent to one queue, then the next queue follows."""


@dataclass(frozen=True)
class Placement:
    """A topic's writable queues, sorted."""

    topic: str
    queues: tuple[MessageQueue, ...]
    _narrowed: dict[tuple[str | None, int | None], Sequence[MessageQueue]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def place(
        self, partition: int, row: int, keys: str | None, broker_name: str | None, queue_id: int | None
    ) -> MessageQueue:
        """Raises LookupError when the row names a broker or queue that the topic does not have."""
        queues: Sequence[MessageQueue] = self.queues
        if broker_name is not None or queue_id is not None:
            queues = self._named(broker_name, queue_id)
        number = zlib.crc32(keys.encode()) if keys else partition + row // RUN
        return queues[number % len(queues)]

    def _named(self, broker_name: str | None, queue_id: int | None) -> Sequence[MessageQueue]:
        found = self._narrowed.get((broker_name, queue_id))
        if found is None:
            found = [
                queue
                for queue in self.queues
                if broker_name in (None, queue.broker_name) and queue_id in (None, queue.queue_id)
            ]
            if not found:
                raise LookupError(_no_such_queue(self, broker_name, queue_id))
            self._narrowed[broker_name, queue_id] = found
        return found

    @property
    def suffix(self) -> str:
        """The part of a writer id that differs between topics, and between lists of queues that spread rows
        over brokers differently. A row that a retried task sends to another broker may then be stored
        twice; with one sequence it could be dropped as a repeat of another row.
        """
        brokers = {queue.broker_name for queue in self.queues}
        text = self.topic if len(brokers) == 1 else f"{self.topic} {' '.join(map(str, self.queues))}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _no_such_queue(placement: Placement, broker_name: str | None, queue_id: int | None) -> str:
    named = "" if broker_name is None else f" of broker {broker_name}"
    which = "queue" if queue_id is None else f"queue {queue_id}"
    queues = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in placement.queues[:20])
    return f"topic {placement.topic} has no writable {which}{named}; it has {queues}"


SEQUENCED_SENDS: Final = "sequencedSends"
"""Key in the runtime info of a broker that supports exactly-once writes."""

JAVA: Final = "java."
"""A RocketMQ 4.9 broker that has just started answers with a Java exception. The client learns from it only
that the broker is not LedgerMQ.
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SinkPlan:
    """What the driver sends to every task. `placement`: None when a column names the topics."""

    options: SinkOptions
    columns: Columns
    is_sequenced: bool
    placement: Placement | None = None


@dataclass
class Placements:
    """The topics of one task, each looked up once."""

    cluster: Cluster
    options: SinkOptions
    _known: dict[str, Placement] = field(default_factory=dict)
    _topics: dict[str, str] = field(default_factory=dict)
    """By suffix."""

    def of(self, topic: str) -> Placement:
        """Raises TopicNotFoundError, OptionError."""
        found = self._known.get(topic)
        if found is None:
            found = find_placement(self.cluster, topic, self.options.create_queues)
            other = self._topics.setdefault(found.suffix, topic)
            if other != topic:
                raise OptionError(f"the topics {other} and {topic} have one hash: write them by two queries")
            self._known[topic] = found
        return found


def make_plan(cluster: Cluster, options: SinkOptions, columns: Columns) -> SinkPlan:
    """Raises TopicNotFoundError, OptionError, DeliveryError, ClusterUnavailableError."""
    placement = None
    if options.topic is not None:
        placement = find_placement(cluster, options.topic, options.create_queues)
        names = sorted({queue.broker_name for queue in placement.queues})
    else:
        names = sorted(cluster.cluster_info().brokers)
    return SinkPlan(options, columns, is_sequenced(cluster, options.delivery, names), placement)


def is_sequenced(cluster: Cluster, delivery: Delivery, broker_names: Iterable[str]) -> bool:
    """Whether to write exactly once. AUTO: not if a broker answers that it does not support this.

    Raises: DeliveryError for delivery=exactly-once at a broker without support; the errors of `runtime_info`.
    """
    if delivery is Delivery.AT_LEAST_ONCE:
        return False
    for name in broker_names:
        info = runtime_info(cluster, name)
        if info.get(SEQUENCED_SENDS) == "true":
            continue
        text = f"broker {name} ({info.get('brokerVersionDesc', 'of an unknown version')})"
        if delivery is Delivery.EXACTLY_ONCE:
            raise DeliveryError(
                f"delivery=exactly-once is not possible: {text} does not keep the row numbers of "
                f"writers, as LedgerMQ does. delivery=at-least-once works with every broker; delivery=auto "
                f"falls back to at-least-once"
            )
        logger.warning("rows are written at least once: %s does not keep row numbers of writers", text)
        return False
    return True


def runtime_info(cluster: Cluster, broker_name: str) -> dict[str, str]:
    """The runtime info of the leader."""
    # Raises ClusterUnavailableError, and RequestRefusedError for an unexpected answer.
    answer = cluster.invoke_leader(broker_name, lambda: RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
    what = f"the figures of broker {broker_name}"
    if answer.code == ResponseCode.SYSTEM_ERROR and (answer.remark or "").startswith(JAVA):
        return {}
    if answer.code != ResponseCode.SUCCESS:
        raise RequestRefusedError(what, answer.code, answer.remark)
    try:
        table = loads(answer.body)["table"]
        return {str(name): str(value) for name, value in table.items()}
    except (FastjsonError, KeyError, TypeError, AttributeError) as error:
        raise RequestRefusedError(what, answer.code, f"unreadable: {error!r}") from None


def find_placement(cluster: Cluster, topic: str, create_queues: int) -> Placement:
    """The topic's writable queues; creates a missing topic if the number of its queues is given."""
    try:
        queues = cluster.write_queues(topic)
    except TopicNotFoundError:
        if not create_queues:
            raise TopicNotFoundError(
                f"topic {topic} does not exist; make it first, or give the option createTopicQueues"
            ) from None
        queues = _create(cluster, topic, create_queues)
    if not queues:
        raise OptionError(f"topic {topic} has no queue that may be written to")
    return Placement(topic, tuple(queues))


def _create(cluster: Cluster, topic: str, queues: int) -> list[MessageQueue]:
    header = CreateTopicRequestHeader(topic, DEFAULT_TOPIC, queues, queues)
    for name in sorted(cluster.cluster_info().brokers):
        answer = cluster.invoke_leader(
            name,
            lambda: RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=header.ext_fields()),
        )
        if answer.code != ResponseCode.SUCCESS:
            raise RequestRefusedError(f"making topic {topic} at broker {name}", answer.code, answer.remark)
    backoff = Backoff(f"the route of the new topic {topic}", cluster.deadline_s)
    while True:
        cluster.refresh()
        try:
            found = cluster.write_queues(topic)
        except TopicNotFoundError as error:
            backoff.failed(str(error))
        else:
            return found
