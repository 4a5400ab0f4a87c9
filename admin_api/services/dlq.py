"""Dead letters: what they are, and all of them as a file."""

import base64
import csv
import io
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

import orjson

from admin_api.gateway import Trouble
from admin_api.schemas.dlq import DlqMessage, DlqWindow, ExportFormat
from admin_api.services.dlq_queues import DLQ_PREFIX, DlqQueues
from admin_api.services.errors import InvalidError
from admin_api.services.message_copies import original_id, original_topic
from admin_api.services.message_cursor import Search
from admin_api.services.message_scan import Scan
from admin_api.services.message_sending import time_text, unix_ms
from admin_api.services.message_views import id_of, plain_body, summarize
from admin_api.services.message_window import FOREVER_MS
from admin_api.services.messages import Messages
from admin_api.services.partial import partial_fields
from admin_api.sources.offsets import OffsetSource
from remoting.record import Record, parse_properties

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
    """(letter's id, topic) -> when this process resent it there, Unix ms; the oldest are forgotten."""

    at_ms: OrderedDict[tuple[str, str], int] = field(default_factory=OrderedDict)

    def remember(self, letter_id: str, topic: str, now_ms: int) -> None:
        self.at_ms[letter_id, topic] = now_ms
        if len(self.at_ms) > REMEMBERED_MAX:
            self.at_ms.popitem(last=False)


@dataclass(slots=True)
class Written:
    """What a file has so far; `is_whole` once it is complete, or says that it is cut."""

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
        """Lines, the oldest message of each queue first; one that ends at a bound says so in its last line.
        `written` is kept up to date.

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
            said = f"cut: there is more than the {written.letters} messages of this file"
            yield _csv_text([f"# {said}"]) if is_csv else orjson.dumps({"cut": said}).decode() + "\n"
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
