"""Dead letters: which groups have some, how old they are, what they are, and all of them as a file."""

import asyncio
import base64
import csv
import io
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

import orjson

from admin_api.gateway import AskError, Trouble
from admin_api.schemas.base import Page
from admin_api.schemas.dlq import DlqMessage, DlqView, DlqWindow, ExportFormat
from admin_api.services.errors import InvalidError, NotFoundError, UnavailableError
from admin_api.services.message_copies import DLQ_PREFIX, original_id, original_topic
from admin_api.services.message_cursor import Search
from admin_api.services.message_places import TopicPlace
from admin_api.services.message_scan import Scan
from admin_api.services.message_sending import time_text, unix_ms
from admin_api.services.message_views import id_of, plain_body, summarize
from admin_api.services.message_window import FOREVER_MS
from admin_api.services.messages import Messages
from admin_api.services.partial import PageWanted, partial_fields
from admin_api.sources.offsets import BoundsRow, OffsetSource
from remoting.record import Record, parse_properties

GROUPS_AT_ONCE_MAX: Final = 16
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


class Dlq:
    """Looks at the %DLQ% topics."""

    def __init__(
        self, messages: Messages, offsets: OffsetSource, now_ms: Callable[[], int] = unix_ms
    ) -> None:
        self.messages = messages
        self.resent = Resent()
        self._offsets = offsets
        self._now_ms = now_ms

    async def groups(self, wanted: PageWanted, text: str | None = None) -> Page[DlqView]:
        """The groups that have a dead-letter topic, by name; those whose name holds the text.

        Raises: UnavailableError when the name server says nothing.
        """
        try:
            topics = await self.messages.source.topics()
        except AskError as error:
            raise UnavailableError(str(error)) from error
        names = [topic.removeprefix(DLQ_PREFIX) for topic in topics if topic.startswith(DLQ_PREFIX)]
        names = [name for name in names if text is None or text.lower() in name.lower()]
        gate = asyncio.Semaphore(GROUPS_AT_ONCE_MAX)
        troubles: dict[Trouble, None] = {}

        async def look(name: str) -> DlqView | None:
            async with gate:
                try:
                    return await self._group(name, troubles)
                except NotFoundError:
                    return None  # its topic went after the list was made
                except UnavailableError as error:
                    troubles[Trouble(DLQ_PREFIX + name, str(error))] = None
                    return _unknown(name)

        found = await asyncio.gather(*map(look, wanted.of(names)))
        items = [view for view in found if view is not None]
        return Page[DlqView](
            items=items,
            page=wanted.number,
            page_size=wanted.size,
            total=len(names) - len(found) + len(items),
            **partial_fields(troubles),
        )

    async def group(self, group: str) -> DlqView:
        """Raises: NotFoundError when the group has no dead letters, UnavailableError when nobody says so."""
        troubles: dict[Trouble, None] = {}
        view = await self._group(group, troubles)
        if view.count is None:
            raise UnavailableError(next(iter(troubles)).problem if troubles else f"{group} cannot be read.")
        return view

    async def _group(self, group: str, troubles: dict[Trouble, None]) -> DlqView:
        """Raises: NotFoundError when there is no such topic (any more), UnavailableError."""
        topic = DLQ_PREFIX + group
        places = await self.places(group)
        asked = await self.messages.gateway.ask_each(places, lambda place: self._part(place, topic))
        if not places:
            troubles[Trouble(topic, f"the route of {topic} names no broker")] = None
        troubles.update(dict.fromkeys(asked.troubles))
        parts = [part for part in asked.answers.values() if part is not None]
        if not parts:
            if places and not asked.troubles:
                raise _absent(group)
            return _unknown(group)
        oldest = [first for _, first, _ in parts if first is not None]
        newest = [last for _, _, last in parts if last is not None]
        return DlqView(
            group=group,
            topic=topic,
            count=sum(count for count, _, _ in parts),
            oldest_at_ms=min(oldest, default=None),
            newest_at_ms=max(newest, default=None),
            is_partial=bool(asked.troubles),
        )

    async def places(self, group: str) -> list[TopicPlace]:
        """Raises: NotFoundError when the group has no dead-letter topic, UnavailableError."""
        try:
            return await self.messages.places.of_topic(DLQ_PREFIX + group)
        except NotFoundError as error:
            raise _absent(group) from error

    async def _part(self, place: TopicPlace, topic: str) -> tuple[int, int | None, int | None] | None:
        """(messages, oldest ms, newest ms) on one broker; None where it does not have the topic.

        Raises: AskError.
        """
        address = place.addresses[0]
        rows = await self._offsets.bounds(address, topic)
        if rows is None:
            return None
        full: dict[int, BoundsRow] = {
            key.queue_id: row for key, row in rows.items() if row.min_offset < row.max_offset
        }
        oldest = [await self.messages.source.earliest_ms(address, topic, queue_id) for queue_id in full]
        newest = [row.last_update_timestamp for row in full.values() if row.last_update_timestamp > 0]
        count = sum(row.max_offset - row.min_offset for row in full.values())
        known = [time_ms for time_ms in oldest if time_ms is not None]
        return count, min(known, default=None), max(newest, default=None)

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


def _absent(group: str) -> NotFoundError:
    return NotFoundError(f"The group {group} has no dead letters.")


def _unknown(group: str) -> DlqView:
    """Of a group whose letters nobody could count."""
    return DlqView(
        group=group,
        topic=DLQ_PREFIX + group,
        count=None,
        oldest_at_ms=None,
        newest_at_ms=None,
        is_partial=True,
    )


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
