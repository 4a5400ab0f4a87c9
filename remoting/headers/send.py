"""The typed headers of sends and recalls, and a send whose header was read together with its frame. Pure.

LedgerMQ's own requests for exactly-once are LEDGERMQ_SEND_SEQUENCED (65003) and LEDGERMQ_END_BATCH (65004).
The body of the former is that of a batch send (code 320), but each message has the id of its queue where the
others have a magic of 0: the rows of a partition keep their order and their numbers, in whatever queues. They
carry the numbers from `sequence` on; the answer says in `repeats` how many of them, from the first on, were
in the log already. `digest` is the rolling digest of what the partition has sent in the batch before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

from remoting.command import RemotingCommand
from remoting.errors import HeaderError
from remoting.fastjson import loads_request
from remoting.headers.fields import Int, Long, RequestHeader, parse_bool, request_header, wire_name
from remoting.route import DEFAULT_TOPIC

_INT32_MAX: Final = 0x7FFFFFFF
_TRUE_TEXTS: Final = ("true", "1")


@request_header
class SendMessageRequestHeader(RequestHeader):
    """Codes 10, 310, 320, 324 and 325. `is_batch` alone decides whether the body is a batch, not the code.

    queue_id: below 0 lets the broker choose.
    properties: NAME 0x01 VALUE 0x02 …
    max_reconsume_times: None when the client does not give it.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp_ms: Long = wire_name("bornTimestamp")
    flag: Int = 0
    properties: str = ""
    reconsume_times: Int = 0
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    is_batch: bool = wire_name("batch", default=False)
    broker_name: str | None = wire_name("bname", default=None)

    @classmethod
    def parse(cls, ext: Mapping[str, str]) -> Self:
        """Read the one-letter form (V2), which nearly every client sends, or the one with full names."""
        if "b" not in ext:
            return cls.parse_named(ext)
        get = ext.get
        try:
            nums, queue_id, sys_flag = int(ext["d"]), int(ext["e"]), int(ext["f"])
            born_timestamp_ms, flag = int(ext["g"]), int(ext["h"])
            reconsume_times = int(get("j") or 0)
            most = get("l")
            max_reconsume_times = int(most) if most else None
            batch = get("m", "false")
            header = cls(
                ext["a"],
                ext["b"],
                ext["c"],
                nums,
                queue_id,
                sys_flag,
                born_timestamp_ms,
                flag,
                get("i", ""),
                reconsume_times,
                get("k") in _TRUE_TEXTS,
                max_reconsume_times,
                batch != "false" and parse_bool("m", batch),
                get("n"),
            )
        except (KeyError, ValueError):
            return cls._parse_v2(ext)
        # One `|` proves that all are neither negative nor beyond 32 bits.
        merged = nums | queue_id | sys_flag | flag | reconsume_times | (max_reconsume_times or 0)
        if 0 <= merged <= _INT32_MAX and 0 <= born_timestamp_ms < 1 << 63:
            return header
        return cls._parse_v2(ext)

    @classmethod
    def _parse_v2(cls, ext: Mapping[str, str]) -> Self:
        """The careful way, for headers out of the ordinary; raises HeaderError with the letter of the
        field.
        """
        full = {}
        for letter, field in zip("abcdefghijklmn", cls._fields, strict=True):
            text = ext.get(letter)
            if text is None and letter in "abcdefgh":
                raise HeaderError(letter, "is null")
            if text is not None:
                full[field.wire_name] = text
        try:
            return cls.parse_named(full)
        except HeaderError as error:
            names = [field.wire_name for field in cls._fields]
            letter = "abcdefghijklmn"[names.index(error.field)]
            raise HeaderError(letter, f"({error.field}) {error.problem}") from None


def letters_of_send(
    topic: str, queue_id: int, *, sys_flag: int, born_timestamp_ms: int, properties: str, is_batch: bool
) -> dict[str, str]:
    """The one-letter form of a send to a topic that exists, whose producer group is named after it: what a
    header's `ext_fields` would make, in a fifth of the time.
    """
    return {
        "a": topic,
        "b": topic,
        "c": DEFAULT_TOPIC,
        "d": "4",
        "e": str(queue_id),
        "f": str(sys_flag),
        "g": str(born_timestamp_ms),
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "true" if is_batch else "false",
    }


_kept_fields: Final = RemotingCommand.__dict__["ext_fields"]


class SendRequest(RemotingCommand):
    """An ordinary request 10, 310 or 320. Its ext fields are those of its header, in the form with full
    names: what the header has no name for is not kept. Of a request that is signed, names a gRPC client or
    was forwarded by another node all fields are kept as they came.
    """

    __slots__ = ("header",)

    header: SendMessageRequestHeader

    @property
    def ext_fields(self) -> dict[str, str]:
        try:
            kept: dict[str, str] = _kept_fields.__get__(self)
        except AttributeError:
            return self.header.ext_fields()
        return kept

    @ext_fields.setter
    def ext_fields(self, fields: dict[str, str]) -> None:
        self.header = SendMessageRequestHeader.parse(fields)


def send_header(request: RemotingCommand) -> SendMessageRequestHeader:
    """The header of a send, whichever way it was read. Raises HeaderError."""
    if type(request) is SendRequest:
        return request.header
    return SendMessageRequestHeader.parse(request.ext_fields)


@request_header
class RecallMessageRequestHeader(RequestHeader):
    """Code 370. The handle is of a timer message's answer."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


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
            fields: Any = loads_request(body)
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
