"""LedgerMQ's own requests for exactly-once: the header of LEDGERMQ_SEND_SEQUENCED (65003), and the body of
LEDGERMQ_END_BATCH (65004). Pure.

The body is that of a batch send (code 320), but each message has the id of its queue where the others
have a magic of 0: the rows of a partition keep their order and their numbers, in whatever queues.
They carry the numbers from `sequence` on; the answer says in `repeats` how many of them, from the first on,
were in the log already. `digest` is the rolling one of what the partition has sent in the batch before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import orjson

from remoting.headers.fields import Int, Long, RequestHeader, request_header, wire_name


@request_header
class SequencedSendRequestHeader(RequestHeader):
    """`broker_name`: the group that the sender means; for readers of captured traffic."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    sys_flag: Int
    writer_id: str
    partition: Int
    batch_id: Long
    sequence: Int
    born_timestamp_ms: Long = wire_name("bornTimestamp")
    unit_mode: bool = False
    broker_name: str | None = wire_name("bname", default=None)
    digest: str | None = None


Written = Mapping[int, tuple[int, bytes]]
"""What a writer's partitions have written in a batch: how many rows, and their digest if one is kept."""


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """All of a batch is acknowledged. `is_checked`: the log must hold just that of it. `is_over`: these
    writers will not write any more.
    """

    batch_id: int
    writers: Mapping[str, Written]
    is_checked: bool = True
    is_over: bool = False

    def body(self) -> bytes:
        writers = {
            writer: {str(partition): [rows, digest.decode()] for partition, (rows, digest) in written.items()}
            for writer, written in self.writers.items()
        }
        fields = {"batchId": self.batch_id, "isChecked": self.is_checked, "isOver": self.is_over}
        return orjson.dumps(fields | {"writers": writers})

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Raises ValueError."""
        try:
            fields: Any = orjson.loads(body)
            writers = {
                str(writer): {
                    int(partition): (int(rows), str(digest).encode())
                    for partition, (rows, digest) in written.items()
                }
                for writer, written in fields["writers"].items()
            }
            return cls(int(fields["batchId"]), writers, bool(fields["isChecked"]), bool(fields["isOver"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the end of a batch cannot be read: {error!r}") from error
