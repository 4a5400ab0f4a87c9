"""The header of LEDGERMQ_SEND_SEQUENCED (65003), LedgerMQ's own send for exactly-once. Pure.

The body is that of a batch send (code 320), but in each message the id of its queue stands where the others
have a magic of 0: the rows of a partition keep their order and their numbers, whatever queues they go to.
They carry the numbers from `sequence` on; the answer says in `repeats` how many of them, from the first on,
stood in the log already.
"""

from remoting.header_fields import Int, Long, RequestHeader, request_header, wire_name


@request_header
class SequencedSendRequestHeader(RequestHeader):
    """`broker_name`: the group that the sender means; for whoever reads along."""

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
