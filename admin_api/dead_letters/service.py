"""Dead letters: finding them, and exporting all of a group's as a file."""

import base64
import csv
import io
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import orjson
from pydantic import Field

from admin_api.dead_letters.queues import DlqQueues
from admin_api.errors import InvalidError, UnavailableError, partial_fields
from admin_api.gateway import Trouble
from admin_api.messages.sending import original_id, original_topic, time_text, unix_ms
from admin_api.messages.service import Messages
from admin_api.messages.views import MessageSummary, id_of, plain_body, summarize
from admin_api.messages.window import FOREVER_MS, Search, is_wanted, next_offset
from admin_api.schema import Partial, RequestSchema
from admin_api.sources.messages import PULL_COUNT
from admin_api.sources.offsets import OffsetSource
from remoting.record import Record, parse_properties
from remoting.topic_names import DLQ_PREFIX

RESEND_MAX: int = 200
EXPORT_MAX: int = 10_000


class DlqMessage(MessageSummary):
    """One dead letter."""

    original_topic: str | None = Field(description="where it was sent first")
    original_id: str | None = Field(description="offset message id of the first one")
    age_ms: int = Field(description="since it came here, by this service's clock")


class DlqWindow(Partial):
    """A part of a group's dead letters, and where to go on."""

    group: str
    items: list[DlqMessage]
    next_cursor: str | None = Field(description="for the next part; null: there is no more")
    examined: int = Field(description="messages read for this part")


class DlqTarget(StrEnum):
    """GROUP: by its retry topic, for this group only. TOPIC: for all groups of the original topic."""

    GROUP = "group"
    TOPIC = "topic"


class DlqResendOrder(RequestSchema):
    """Which dead letters to resend: those with the ids, or the oldest of the window not resent yet."""

    target: DlqTarget = DlqTarget.GROUP
    ids: list[str] = Field(default=[], max_length=RESEND_MAX, description="none: those of the window")
    from_ms: int = Field(default=0, ge=0, le=2**62)
    to_ms: int | None = Field(default=None, ge=0, le=2**62, description="null: until now")
    limit: int = Field(default=RESEND_MAX, ge=1, le=RESEND_MAX)


class ExportFormat(StrEnum):
    """JSONL: an object a line, bodies in base64 where they are no text. CSV: a line each, with a heading."""

    JSONL = "jsonl"
    CSV = "csv"


SCANNED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Messages of one scan; beyond it the answer is cut and marked as such."""


class Scan:
    """One pass over the messages. `is_cut`, set at its end: it stopped at the limit."""

    def __init__(self, messages: Messages, search: Search) -> None:
        self.is_cut = False
        self._messages = messages
        self._search = search

    async def records(self) -> AsyncIterator[tuple[Record, str]]:
        """Records with their broker's name.

        Raises: NotFoundError; UnavailableError when a broker that has a part of them does not answer;
        AskError when one falls silent on the way.
        """
        search, windows = self._search, self._messages.windows
        lanes, troubles = await windows.lanes(search, await self._messages.places.queues_of(search.topic))
        refuse_partial(troubles)
        left_bytes = SCANNED_BYTES_MAX
        for place, low, high in lanes:
            at = low
            while at < high:
                if left_bytes <= 0:
                    self.is_cut = True
                    return
                pulled = await self._messages.source.pull(
                    place.address, search.topic, place.queue_id, at, PULL_COUNT, search.tag or "*"
                )
                left_bytes -= pulled.size_bytes
                for record in pulled.records:
                    if at <= record.queue_offset < high and is_wanted(record, search):
                        yield record, place.broker_name
                at = next_offset(at, pulled.next_offset, high)


def refuse_partial(troubles: tuple[Trouble, ...]) -> None:
    """What is done to all must know all. Raises: UnavailableError."""
    if troubles:
        raise UnavailableError(f"Some of the messages cannot be read now: {troubles[0].problem}")


REMEMBERED_MAX: Final = 50_000
_COLUMNS: Final = (
    "id",
    "uniqueKey",
    "originalTopic",
    "originalId",
    "reconsumeTimes",
    "bornAt",
    "storedAt",
    "keys",
    "tags",
    "bodyEncoding",
    "body",
    "properties",
)
_FORMULA_SIGNS: Final = ("=", "+", "-", "@", "\t", "\r")


@dataclass(slots=True)
class Resent:
    """(letter's id, topic) -> when this process resent it there, Unix ms; the oldest are dropped."""

    at_ms: OrderedDict[tuple[str, str], int] = field(default_factory=OrderedDict)

    def remember(self, letter_id: str, topic: str, now_ms: int) -> None:
        self.at_ms[letter_id, topic] = now_ms
        if len(self.at_ms) > REMEMBERED_MAX:
            self.at_ms.popitem(last=False)


@dataclass(slots=True)
class Written:
    """What a file has so far; `is_whole` once it is complete, or marked as cut."""

    letters: int = 0
    is_whole: bool = False


class Dlq(DlqQueues):
    """Looks at the messages in the %DLQ% topics."""

    def __init__(
        self, messages: Messages, offsets: OffsetSource, now_ms: Callable[[], int] = unix_ms
    ) -> None:
        super().__init__(messages.gateway, messages.directory, messages.source, offsets)
        self.messages = messages
        self.resent = Resent()
        self._now_ms = now_ms

    async def window(self, group: str, from_ms: int, to_ms: int, limit: int) -> DlqWindow:
        """The newest dead letters between two times. Raises: NotFoundError, UnavailableError."""
        await self.places(group)
        search = Search(DLQ_PREFIX + group, from_ms, to_ms)
        part = await self.messages.windows.begin(search, limit, self._view)
        return _window(group, part.items, part.cursor, part.examined, part.troubles)

    async def next_window(self, group: str, cursor: str, limit: int) -> DlqWindow:
        """Raises: as window; InvalidError."""
        part = await self.messages.windows.resume(DLQ_PREFIX + group, cursor, limit, self._view)
        return _window(group, part.items, part.cursor, part.examined, part.troubles)

    def _view(self, record: Record, broker_name: str) -> DlqMessage:
        return DlqMessage(
            **summarize(record, broker_name).model_dump(),
            original_topic=original_topic(record) if original_topic(record) != record.topic else None,
            original_id=original_id(record),
            age_ms=max(0, self._now_ms() - record.store_timestamp_ms),
        )

    async def export(
        self,
        group: str,
        file_format: ExportFormat,
        from_ms: int = 0,
        to_ms: int = FOREVER_MS,
        limit: int = 1000,
        written: Written | None = None,
    ) -> AsyncIterator[str]:
        """Lines, the oldest message of each queue first; one that ends at a bound is marked as cut in its
        last line. `written` is kept up to date.

        Raises: NotFoundError, UnavailableError before the first line; AskError when a broker falls silent.
        """
        await self.places(group)
        scan = Scan(self.messages, Search(DLQ_PREFIX + group, from_ms, to_ms))
        is_csv = file_format is ExportFormat.CSV
        line = _csv_row if is_csv else _json_line
        records = scan.records()
        at_hand = await anext(records, None)  # before the heading: what cannot be begun has no line
        if is_csv:
            yield _csv_text(_COLUMNS)
        written = written or Written()
        while at_hand is not None and written.letters < limit:
            written.letters += 1
            yield line(at_hand[0])
            at_hand = await anext(records, None)
        if at_hand is not None or scan.is_cut:
            notice = f"cut: there is more than the {written.letters} messages of this file"
            yield _csv_text([f"# {notice}"]) if is_csv else orjson.dumps({"cut": notice}).decode() + "\n"
        written.is_whole = True


def _window(
    group: str, items: list[DlqMessage], cursor: str | None, examined: int, troubles: tuple[Trouble, ...]
) -> DlqWindow:
    return DlqWindow(
        group=group,
        items=items,
        next_cursor=cursor,
        examined=examined,
        **partial_fields(troubles),
    )


def _fields(record: Record) -> dict[str, object]:
    """What a file has of one message; a body that is no text, or cannot be unpacked, is in base64."""
    properties = parse_properties(record.properties)
    encoding, body = "text", ""
    try:
        plain = plain_body(record)
    except InvalidError:
        encoding, body = "base64 of the compressed body", base64.b64encode(record.body).decode()
    else:
        try:
            body = plain.decode()
        except UnicodeDecodeError:
            encoding, body = "base64", base64.b64encode(plain).decode()
    topic = original_topic(record)
    return {
        "id": id_of(record),
        "uniqueKey": properties.get("UNIQ_KEY"),
        "originalTopic": None if topic == record.topic else topic,
        "originalId": original_id(record),
        "reconsumeTimes": record.reconsume_times,
        "bornAt": time_text(record.born_timestamp_ms),
        "storedAt": time_text(record.store_timestamp_ms),
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "bodyEncoding": encoding,
        "body": body,
        "properties": properties,
    }


def _json_line(record: Record) -> str:
    return orjson.dumps(_fields(record)).decode() + "\n"


def _csv_row(record: Record) -> str:
    fields = _fields(record)
    fields["properties"] = orjson.dumps(fields["properties"]).decode()
    return _csv_text([_cell(fields[name]) for name in _COLUMNS])


def _cell(value: object) -> str:
    """A text that a spreadsheet would take for a formula gets a quote before it."""
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA_SIGNS) else text


def _csv_text(cells: object) -> str:
    assert isinstance(cells, list | tuple)
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue()
