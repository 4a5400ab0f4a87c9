"""Which node is nearest to a consumer: nodes have a zone (a rack, a data center), and Java clients that run
with -Drocketmq.zone name theirs in every request.

A follower with a zone asks its leader for the read index every REPORT_S, and so the leader knows which
followers are there for which zone, and the follower how old its answers are. The leader suggests a follower
in the consumer's zone that reported lately and has nearly all of the log; the follower keeps the consumer
while it knows that its answers are no older than SERVED_AGE_MS, and otherwise sends it back.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from broker.config import LEADER_BROKER_ID, BrokerConfig
from broker.read_index import INDEX_FIELD, ReadIndex
from commitlog.log import MessageLog
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.headers.consume import ReadIndexRequestHeader
from remoting.router import Handlers

REPORT_S: Final = 2.0
REPORT_VALID_MS: Final = 6_000
SERVED_AGE_MS: Final = 5_000
STAY_MS: Final = 10_000
"""A consumer that comes back from a follower stays at the leader so long, whatever the two know of each
other: so it does not go to and fro.
"""
SENT_MAX: Final = 10_000
REPORTS_MAX: Final = 64
ZONE_CHARS_MAX: Final = 64

QueueOfClient = tuple[int, str, int]
"""Connection, topic, queue."""


class NearestReplica:
    """What one node knows about zones, as leader and as follower."""

    def __init__(
        self, config: BrokerConfig, log: MessageLog, read_index: ReadIndex, now_ms: Callable[[], int]
    ) -> None:
        self._config = config
        self._log = log
        self._read_index = read_index
        self._now_ms = now_ms
        self._reports: dict[int, tuple[str, int]] = {}
        """Broker id -> zone and time of the last report, the oldest first."""
        self._sent: OrderedDict[QueueOfClient, int] = OrderedDict()
        self._task: asyncio.Task[None] | None = None

    def handlers(self) -> Handlers:
        return {RequestCode.LEDGERMQ_READ_INDEX: self.answer}

    async def answer(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """65010. Raises RequestError when no majority says that this node leads."""
        header = ReadIndexRequestHeader.parse(request.ext_fields)
        index = await self._read_index.index()
        if header.broker_id > LEADER_BROKER_ID and 0 < len(header.zone) <= ZONE_CHARS_MAX:
            self._note(header.broker_id, header.zone)
        return success_response(request, {INDEX_FIELD: str(index)})

    def _note(self, broker_id: int, zone: str) -> None:
        self._reports.pop(broker_id, None)
        if len(self._reports) >= REPORTS_MAX:
            del self._reports[next(iter(self._reports))]
        self._reports[broker_id] = zone, self._now_ms()

    def in_zone(self, zone: str) -> frozenset[int]:
        """The broker ids of the followers that lately said that they serve this zone."""
        since_ms = self._now_ms() - REPORT_VALID_MS
        return frozenset(
            number for number, (known, at_ms) in self._reports.items() if known == zone and at_ms >= since_ms
        )

    def may_send(self, queue: QueueOfClient) -> bool:
        """Whether the queue's consumer may be sent to a follower now; counted as sent."""
        now_ms = self._now_ms()
        if now_ms - self._sent.get(queue, now_ms - STAY_MS) < STAY_MS:
            return False
        self._sent[queue] = now_ms
        self._sent.move_to_end(queue)
        if len(self._sent) > SENT_MAX:
            self._sent.popitem(last=False)
        return True

    def is_fresh(self) -> bool:
        """Of a follower: whether it may serve the consumers near it."""
        age_ms = self._read_index.known_age_ms
        return age_ms is not None and age_ms <= SERVED_AGE_MS

    async def start(self) -> None:
        if self._config.zone and self._config.slave_read_enable:
            self._task = asyncio.get_running_loop().create_task(self._report())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _report(self) -> None:
        fields = ReadIndexRequestHeader(self._config.follower_broker_id, self._config.zone).ext_fields()
        while True:
            if not self._log.is_writable():
                await self._read_index.ask_leader(fields)
            await asyncio.sleep(REPORT_S)
